#include "worker/data/object_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/status.h"
#include "tests/support/temp_folder.h"
#include "worker/data/data_file.h"

namespace evergrad::worker {
namespace {

struct Object {
  std::string bytes, version;
  absl::Status read_error = absl::OkStatus();
};

class OpenObject final : public fs::ReadableFile {
 public:
  explicit OpenObject(Object object) : object_(std::move(object)) {}
  std::uint64_t size() const override { return object_.bytes.size(); }
  std::string version() const override { return object_.version; }
  absl::StatusOr<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> out) override {
    EG_RETURN_IF_ERROR(object_.read_error);
    const std::size_t n = std::min<std::size_t>(out.size(), object_.bytes.size() - offset);
    std::memcpy(out.data(), object_.bytes.data() + offset, n);
    return n;
  }

 private:
  const Object object_;
};

// Local files, and the objects of a map.
class Files final : public fs::FileSystem {
 public:
  std::map<std::string, Object> objects;
  int downloads = 0;

  absl::StatusOr<std::unique_ptr<fs::WritableFile>> Create(absl::string_view uri) override {
    ++downloads;
    return local_->Create(uri);
  }
  absl::StatusOr<std::unique_ptr<fs::ReadableFile>> Open(absl::string_view uri) override {
    if (!absl::StartsWith(uri, "s3://")) return local_->Open(uri);
    const auto found = objects.find(std::string(uri));
    if (found == objects.end()) return absl::NotFoundError("no such object");
    return std::unique_ptr<fs::ReadableFile>(std::make_unique<OpenObject>(found->second));
  }
  absl::StatusOr<std::vector<fs::ListedFile>> List(absl::string_view uri) override {
    return local_->List(uri);
  }
  absl::Status Remove(absl::string_view uri) override { return local_->Remove(uri); }
  absl::StatusOr<bool> Exists(absl::string_view uri) override { return local_->Exists(uri); }
  absl::Status MakeFolders(absl::string_view uri) override { return local_->MakeFolders(uri); }

 private:
  const std::unique_ptr<fs::FileSystem> local_ = fs::MakeLocalFileSystem();
};

struct Stage {
  test::TempFolder folder;
  Files files;
  http::Interruption interruption;
  ObjectCache cache{{.folder = folder / "cache",
                     .bytes_max = 1000,
                     .files = &files,
                     .interruption = &interruption}};
  std::string Read(const std::string& uri) {
    const auto copy = cache.Open(uri);
    if (!copy.ok()) return std::string(copy.status().message());
    char text[2000];
    const ssize_t n = ::read(copy->file.get(), text, sizeof(text));
    return std::string(text, static_cast<std::size_t>(n));
  }
  // Makes all present copies older than the next one, because the times of files are coarse.
  void Age() {
    for (const auto& entry : std::filesystem::directory_iterator(folder / "cache"))
      std::filesystem::last_write_time(
          entry.path(), std::filesystem::last_write_time(entry.path()) - std::chrono::seconds(10));
  }
  std::size_t Copies() {
    std::size_t n = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "cache"))
      n += entry.path().filename() == ".lock" ? 0 : 1;
    return n;
  }
};

TEST_CASE("an object is downloaded once for each of its versions") {
  Stage stage;
  stage.files.objects["s3://data/a.csv"] = {"first", "\"1\""};
  CHECK(stage.Read("s3://data/a.csv") == "first");
  CHECK(stage.Read("s3://data/a.csv") == "first");
  CHECK(stage.files.downloads == 1);
  stage.files.objects["s3://data/a.csv"] = {"second", "\"2\""};
  CHECK(stage.Read("s3://data/a.csv") == "second");
  CHECK(stage.files.downloads == 2);
  // Another worker of the host finds the copy.
  ObjectCache other({.folder = stage.folder / "cache",
                     .files = &stage.files,
                     .interruption = &stage.interruption});
  CHECK(other.Open("s3://data/a.csv")->version == "\"2\"");
  CHECK(stage.files.downloads == 2);
}

TEST_CASE("a damaged copy is replaced") {
  Stage stage;
  stage.files.objects["s3://data/a"] = {"0123456789", "v"};
  CHECK(stage.Read("s3://data/a") == "0123456789");
  for (const auto& entry : std::filesystem::directory_iterator(stage.folder / "cache"))
    if (entry.path().filename() != ".lock") std::filesystem::resize_file(entry.path(), 4);
  CHECK(stage.Read("s3://data/a") == "0123456789");
  CHECK(stage.files.downloads == 2);
}

TEST_CASE("the copies that were not used for the longest time are removed first") {
  Stage stage;
  const std::string big(400, 'x');
  for (const char* name : {"a", "b", "c"})
    stage.files.objects[std::string("s3://data/") + name] = {big, name};
  for (const char* name : {"a", "b", "a"}) {  // then b has the oldest use
    stage.Read(std::string("s3://data/") + name);
    stage.Age();
  }
  stage.Read("s3://data/c");
  CHECK(stage.Copies() == 2);
  CHECK(stage.files.downloads == 3);
  stage.Read("s3://data/a");
  CHECK(stage.files.downloads == 3);
  stage.Read("s3://data/b");
  CHECK(stage.files.downloads == 4);
}

TEST_CASE("errors name the object, and leave no copy") {
  Stage stage;
  stage.files.objects["s3://data/large"] = {std::string(1001, 'x'), "v"};
  stage.files.objects["s3://data/cut"] = {"bytes", "v", absl::UnavailableError("store is down")};
  const struct {
    const char* uri;
    absl::StatusCode code;
    const char* says;
  } cases[] = {
      {"s3://data/none", absl::StatusCode::kNotFound, "no such object"},
      {"s3://data/large", absl::StatusCode::kResourceExhausted, "--data-cache-bytes-max"},
      {"s3://data/cut", absl::StatusCode::kUnavailable, "store is down"},
  };
  for (const auto& c : cases) {
    const absl::Status status = stage.cache.Open(c.uri).status();
    INFO(status);
    CHECK(status.code() == c.code);
    CHECK(BlameOf(status) == Blame::kUser);
    CHECK(absl::StrContains(status.message(), c.uri));
    CHECK(absl::StrContains(status.message(), c.says));
  }
  CHECK(stage.Copies() == 0);
}

// The error failed the whole job, although other workers had their data.
TEST_CASE("an object that is replaced during its download can be downloaded again") {
  Stage stage;
  stage.files.objects["s3://data/a"] = {"old", "1", absl::FailedPreconditionError("has changed")};
  const absl::Status status = stage.cache.Open("s3://data/a").status();
  CHECK(absl::IsUnavailable(status));
  CHECK(BlameOf(status) == Blame::kUser);
  CHECK(absl::StrContains(status.message(), "file=s3://data/a error=has changed"));
  CHECK(stage.Copies() == 0);
  stage.files.objects["s3://data/a"] = {"new", "2"};
  CHECK(stage.Read("s3://data/a") == "new");
}

TEST_CASE("the wait for the download of another process ends with the interruption") {
  Stage stage;
  stage.files.objects["s3://data/a"] = {"bytes", "v"};
  REQUIRE(::mkdir((stage.folder / "cache").c_str(), 0700) == 0);
  const fs::Descriptor other(
      ::open((stage.folder / "cache/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(::flock(other.get(), LOCK_EX) == 0);
  stage.interruption.Interrupt();
  CHECK(absl::StrContains(stage.Read("s3://data/a"), "this process stops"));
  REQUIRE(::flock(other.get(), LOCK_UN) == 0);
  CHECK(stage.Read("s3://data/a") == "bytes");
}

TEST_CASE("a folder that others can write to is no cache") {
  Stage stage;
  stage.files.objects["s3://data/a"] = {"bytes", "v"};
  REQUIRE(::mkdir((stage.folder / "cache").c_str(), 0700) == 0);
  REQUIRE(::chmod((stage.folder / "cache").c_str(), 0777) == 0);
  CHECK(absl::StrContains(stage.Read("s3://data/a"), "--data-cache FOLDER"));
  CHECK(stage.files.downloads == 0);
}

TEST_CASE("a data file of a store is read inside of the roots only, and has a fingerprint") {
  Stage stage;
  stage.files.objects["s3://data/in/a.csv"] = {"1,2\n", "v"};
  stage.files.objects["s3://data/out.csv"] = {"3,4\n", "v"};
  const DataOptions options{.roots = fs::Roots::Only({"s3://data/in"}, "--data-root"),
                            .cache = &stage.cache};
  auto file = DataFile::Open("s3://data/in/a.csv", options, "a csv file");
  REQUIRE(file.ok());
  char text[8];
  CHECK(*(*file)->Read(text, sizeof(text)) == 4);
  std::filesystem::create_directories(stage.folder / "plain");
  REQUIRE(fs::WriteWhole(stage.files, stage.folder / "plain/a.csv", "1,2\n").ok());
  auto plain = DataFile::Open(stage.folder / "plain/a.csv", {}, "a csv file");
  CHECK(*(*file)->Fingerprint() == *(*plain)->Fingerprint());

  const absl::Status outside = DataFile::Open("s3://data/out.csv", options, "a csv file").status();
  CHECK(absl::IsPermissionDenied(outside));
  CHECK(absl::StrContains(outside.message(), "--data-root"));
  CHECK(absl::IsUnimplemented(
      DataFile::Open("s3://data/in/a.csv", {.roots = {}}, "a csv file").status()));
}

}  // namespace
}  // namespace evergrad::worker
