// Tests files, the store over HTTP and its signatures together, against a server in memory.
#include <array>
#include <catch2/catch.hpp>

#include "common/object_store/object_files.h"
#include "tests/unit/common/object_store/http_store_fixture.h"

namespace evergrad::object_store {
namespace {

struct HttpFiles : StoreStage {
  explicit HttpFiles(fs::StoreKind kind) : StoreStage(kind) {
    ObjectFileOptions options;
    options.part_bytes = 4;
    options.read_bytes = 4;
    files = MakeObjectFileSystem([this](fs::StoreKind, const std::string&) { return NewStore(); },
                                 options);
    root = kind == fs::StoreKind::kS3 ? "s3://bucket/" : "gs://bucket/";
  }
  std::unique_ptr<fs::FileSystem> files;
  std::string root;
};

TEST_CASE("files are written to stores of both kinds, read, listed and removed") {
  for (const fs::StoreKind kind : kKinds) {
    INFO(NameOfKind(kind));
    HttpFiles stage(kind);
    fs::FileSystem& files = *stage.files;
    const std::string folder = stage.root + "jobs/größe +%2F&7";
    REQUIRE(files.MakeFolders(folder).ok());
    CHECK(files.List(folder)->empty());
    std::vector<fs::ListedFile> expected;
    for (const std::size_t bytes : {0, 3, 4, 5, 8, 41}) {
      const std::string name = "f " + std::to_string(10 + bytes);
      const std::string uri = fs::JoinUri(folder, name);
      INFO(uri);
      const std::string text(bytes, static_cast<char>('a' + bytes % 26));
      const absl::Status written = fs::WriteWhole(files, uri, text);
      INFO(written.ToString());
      REQUIRE(written.ok());
      CHECK(*fs::ReadWhole(files, uri, 100) == text);
      CHECK_FALSE((*files.Open(uri))->version().empty());
      CHECK(absl::IsAlreadyExists(fs::WriteWhole(files, uri, "other")));
      expected.push_back({name, bytes, false});
    }
    CHECK(*files.List(folder) == expected);
    CHECK(*files.List(stage.root + "jobs") ==
          std::vector<fs::ListedFile>{{"größe +%2F&7", 0, true}});
    CHECK(absl::IsFailedPrecondition(files.Remove(folder)));
    for (const fs::ListedFile& file : expected)
      REQUIRE(files.Remove(fs::JoinUri(folder, file.name)).ok());
    REQUIRE(files.Remove(folder).ok());
    CHECK(absl::IsNotFound(files.List(folder).status()));
    // Neither probes nor parts are left.
    CHECK(stage.server->objects().empty());
    CHECK(stage.server->uploads() == 0);
  }
}

TEST_CASE("of two writers over HTTP one wins, and a replaced object is noticed") {
  for (const fs::StoreKind kind : kKinds) {
    for (const std::string& text : {std::string("one"), std::string("in several parts")}) {
      INFO(NameOfKind(kind) << " " << text);
      HttpFiles stage(kind);
      fs::FileSystem& files = *stage.files;
      const std::string uri = stage.root + "a";
      auto slow = files.Create(uri);
      REQUIRE(slow.ok());
      REQUIRE((*slow)->Append(std::as_bytes(std::span(text.data(), text.size()))).ok());
      REQUIRE(fs::WriteWhole(files, uri, "the bytes of the winner").ok());
      CHECK(absl::IsAlreadyExists((*slow)->Commit()));
      slow->reset();
      CHECK(stage.BytesOf("a") == "the bytes of the winner");
      CHECK(stage.server->uploads() == 0);

      const auto file = files.Open(uri);
      REQUIRE(file.ok());
      REQUIRE(files.Remove(uri).ok());
      std::array<std::byte, 9> out{};
      CHECK(absl::IsNotFound((*file)->ReadAt(0, out).status()));
      REQUIRE(fs::WriteWhole(files, uri, "other bytes of equal ..").ok());
      CHECK(absl::IsFailedPrecondition((*file)->ReadAt(0, out).status()));
    }
  }
}

}  // namespace
}  // namespace evergrad::object_store
