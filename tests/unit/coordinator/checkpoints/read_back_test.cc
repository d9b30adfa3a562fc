// Tests which files of a manifest the coordinator can read, and its report about the files that it
// cannot read.
#include "coordinator/checkpoints/read_back.h"

#include <catch2/catch.hpp>

#include "tests/support/memory_files/memory_file_system.h"
#include "tests/unit/coordinator/checkpoints/checkpoints_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;

const char kFolder[] = "file:///runs/mnist-0000000000000001/checkpoint";

struct Read {
  std::vector<UnreadFile> unread;
  int steps = 0;
};
Read ReadAll(fs::FileSystem& files, v1::Manifest manifest, ReadBack::Options options) {
  for (int i = 0; i < manifest.shards_size(); ++i)
    manifest.mutable_shards(i)->set_host(i == 0 ? "host-a" : "host-b");
  ReadBack reading(kFolder, manifest, std::move(options));
  Read result;
  do {
    ++result.steps;
    REQUIRE(result.steps < 10);
  } while (!reading.Step(files));
  CHECK(reading.done() == 2);
  result.unread = reading.unread();
  return result;
}

TEST_CASE("a manifest with all its files is read back without an error, about one file at a time") {
  fs::MemoryFileSystem files;
  const v1::Manifest manifest = SavedJob{kFolder}.Cut(files);
  for (const bool whole : {false, true}) {
    const Read read = ReadAll(files, manifest, {whole, {}, 1});
    CHECK(read.unread.empty());
    CHECK(read.steps == 2);
    CHECK(UnreadError(read.unread, 2, kFolder, "here").ok());
  }
}

TEST_CASE("files on another host are reported with that host, as a folder that is not shared") {
  fs::MemoryFileSystem elsewhere, here;
  const v1::Manifest manifest = SavedJob{kFolder}.Cut(elsewhere);
  const Read none = ReadAll(here, manifest, {});
  REQUIRE(none.unread.size() == 2);
  const absl::Status all = UnreadError(none.unread, 2, kFolder, "coordinator-host");
  CHECK(absl::IsInvalidArgument(all));
  CHECK(SaveErrorIsFinal(all));
  CHECK_THAT(std::string(all.message()), Contains("not shared") && Contains("coordinator-host") &&
                                             Contains("2 of 2") && Contains("host-a (1)") &&
                                             Contains("host-b (1)") &&
                                             Contains("checkpoint.directory"));

  const Read both = ReadAll(elsewhere, manifest, {});
  CHECK(both.unread.empty());
  REQUIRE(elsewhere.Remove(fs::JoinUri(kFolder, manifest.shards(1).file())).ok());
  const Read one = ReadAll(elsewhere, manifest, {});
  const absl::Status status = UnreadError(one.unread, 2, kFolder, "coordinator-host");
  CHECK_THAT(std::string(status.message()),
             Contains("1 of 2") && Contains("host-b (1)") && !Contains("host-a"));
}

// A network file system whose listing is out of date, so that it lacks new files.
class LateListing final : public fs::FileSystem {
 public:
  explicit LateListing(fs::FileSystem& files) : files_(files) {}
  absl::StatusOr<std::unique_ptr<fs::WritableFile>> Create(absl::string_view uri) override {
    return files_.Create(uri);
  }
  absl::StatusOr<std::unique_ptr<fs::ReadableFile>> Open(absl::string_view uri) override {
    return files_.Open(uri);
  }
  absl::StatusOr<std::vector<fs::ListedFile>> List(absl::string_view) override {
    return std::vector<fs::ListedFile>();
  }
  absl::Status Remove(absl::string_view uri) override { return files_.Remove(uri); }
  absl::StatusOr<bool> Exists(absl::string_view uri) override { return files_.Exists(uri); }
  absl::Status MakeFolders(absl::string_view uri) override { return files_.MakeFolders(uri); }

 private:
  fs::FileSystem& files_;
};

TEST_CASE("a file that can be opened exists, even if it is missing from the listing") {
  fs::MemoryFileSystem files;
  const v1::Manifest manifest = SavedJob{kFolder}.Cut(files);
  LateListing late(files);
  for (const bool whole : {false, true})
    CHECK(ReadAll(late, manifest, {whole, {}, 1 << 20}).unread.empty());
  REQUIRE(files.Remove(fs::JoinUri(kFolder, manifest.shards(1).file())).ok());
  const Read one = ReadAll(late, manifest, {});
  REQUIRE(one.unread.size() == 1);
  CHECK(absl::IsNotFound(one.unread[0].status));
}

TEST_CASE(
    "the last manifest's files are read whole, and a periodic one's by the ends of new files and "
    "all sizes") {
  fs::MemoryFileSystem files;
  const v1::Manifest manifest = SavedJob{kFolder}.Cut(files);
  const std::string first = fs::JoinUri(kFolder, manifest.shards(0).file());
  SECTION("a byte in the middle differs") {
    // The damaged byte is in the values. The header, the ledger and the footer of the file are
    // unchanged.
    std::optional<std::uint64_t> at;
    for (std::uint64_t offset = 0; offset < manifest.shards(0).bytes() && !at; offset += 16) {
      REQUIRE(files.Damage(first, offset, std::byte{1}).ok());
      if (snapshot::CheckShardOf(files, kFolder, manifest, 0, false).ok()) at = offset;
      if (!at) REQUIRE(files.Damage(first, offset, std::byte{1}).ok());
    }
    REQUIRE(at);
    CHECK(ReadAll(files, manifest, {}).unread.empty());
    const Read whole = ReadAll(files, manifest, {.whole = true});
    REQUIRE(whole.unread.size() == 1);
    CHECK(absl::IsDataLoss(whole.unread[0].status));
    const absl::Status status = UnreadError(whole.unread, 2, kFolder, "here");
    CHECK(absl::IsDataLoss(status));
    CHECK_THAT(std::string(status.message()),
               Contains("cannot read back 1 of 2") && Contains("host-a"));
  }
  SECTION("an end differs") {
    REQUIRE(files.Damage(first, 0, std::byte{1}).ok());
    CHECK(ReadAll(files, manifest, {}).unread.size() == 1);
    CHECK(ReadAll(files, manifest, {false, {manifest.shards(0).file()}}).unread.empty());
  }
  SECTION("the size differs") {
    REQUIRE(files.Truncate(first, 200).ok());
    const Read read = ReadAll(files, manifest, {false, {manifest.shards(0).file()}});
    REQUIRE(read.unread.size() == 1);
    CHECK_THAT(std::string(read.unread[0].status.message()), Contains("got=200"));
  }
}

}  // namespace
}  // namespace evergrad::coordinator
