// Tests which files may be read below allowed folders (roots). The file to which a path leads
// decides, however the path is spelled, and even if its links change during the call.
#include "common/fs/roots.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>

#include "common/base/status.h"
#include "common/fs/file_system.h"
#include "tests/support/temp_folder.h"

namespace evergrad::fs {
namespace {

namespace stdfs = std::filesystem;
using test::TempFolder;

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}
std::string Text(const Descriptor& file) {
  char text[64];
  const ssize_t got = ::read(file.get(), text, sizeof(text));
  return got < 0 ? "error" : std::string(text, static_cast<std::size_t>(got));
}

// A folder "in" with a file is a root. The files outside of it must stay unreadable.
struct Place {
  TempFolder folder;
  Roots roots;
  Place() {
    stdfs::create_directories(folder / "in/sub");
    stdfs::create_directory(folder / "inside");  // its name begins with the root's name
    Write(folder / "in/a", "mine");
    Write(folder / "in/sub/b", "mine, too");
    Write(folder / "secret", "not mine");
    Write(folder / "inside/c", "not mine");
    roots = Roots::Only({folder / "in"}, "give --data-root");
  }
  // Returns the file's text, or the reason why it was not opened.
  std::string Open(const std::string& path) const {
    const Descriptor file = roots.Open(path, O_RDONLY | O_NONBLOCK);
    if (file.get() < 0)
      return errno == EXDEV ? "outside" : errno == ENOENT ? "missing" : std::to_string(errno);
    return Text(file);
  }
};

TEST_CASE(
    "a path that leaves the roots is refused, with dots or links of any kind, whether or not it "
    "exists") {
  const Place place;
  const TempFolder& f = place.folder;
  stdfs::create_symlink(f / "secret", f / "in/link");
  stdfs::create_symlink("../secret", f / "in/relative");
  stdfs::create_directory_symlink(f / "", f / "in/up");
  stdfs::create_symlink(f / "nowhere", f / "in/dangling");
  stdfs::create_symlink("a", f / "in/alias");
  stdfs::create_directory_symlink(f / "in/sub", f / "in/other");
  stdfs::create_directory_symlink(f / "in", f / "door");

  CHECK(place.Open(f / "in/a") == "mine");
  CHECK(place.Open(f / "in/sub/../a") == "mine");
  CHECK(place.Open(f / "in/alias") == "mine");
  CHECK(place.Open(f / "in/other/b") == "mine, too");
  CHECK(place.Open(f / "in/absent") == "missing");
  CHECK(place.Open(f / "in/sub/absent/x") == "missing");
  for (const char* name :
       {"secret", "inside/c", "in/../secret", "in/sub/../../secret", "in/link", "in/relative",
        "in/up/secret", "in/up/absent", "absent", "in/../absent", "door/a", ""}) {
    INFO(name);
    CHECK(place.Open(f / name) == "outside");
  }
  // The path is relative to the working directory of this process.
  CHECK(place.Open("in/a") == "outside");
  CHECK(place.Open("/etc/passwd") == "outside");
  // A link is followed. If the target of a link does not exist, the error says only that it is
  // missing.
  CHECK(place.Open(f / "in/dangling") == "missing");

  const absl::Status refusal = place.roots.Refusal("the data file", "/etc/passwd");
  CHECK(absl::IsPermissionDenied(refusal));
  CHECK_THAT(std::string(refusal.message()),
             Catch::Contains("the data file lies outside of the allowed folders (after following "
                             "links): path=/etc/passwd") &&
                 Catch::Contains(f / "in") && Catch::Contains("(give --data-root)"));
}

TEST_CASE("a root may be a link, and its files may be named by both of its names") {
  TempFolder f;
  stdfs::create_directories(f / "disk/data");
  Write(f / "disk/data/a", "mine");
  stdfs::create_directory_symlink(f / "disk/data", f / "data");
  const Roots roots = Roots::Only({f / "data/"}, "");
  CHECK(Text(roots.Open(f / "data/a", O_RDONLY)) == "mine");
  CHECK(Text(roots.Open(f / "disk/data/a", O_RDONLY)) == "mine");
  // The worker's owner lets the link of a root lead to another folder. From then on that folder is
  // the root.
  stdfs::create_directory(f / "disk/new");
  Write(f / "disk/new/a", "new");
  stdfs::remove(f / "data");
  stdfs::create_directory_symlink(f / "disk/new", f / "data");
  CHECK(Text(roots.Open(f / "data/a", O_RDONLY)) == "new");
  CHECK(roots.Open(f / "disk/data/a", O_RDONLY).get() < 0);
}

TEST_CASE(
    "several roots may link to each other, an empty list allows nothing, and the default allows "
    "everything") {
  TempFolder f;
  for (const char* name : {"one", "two", "three"}) stdfs::create_directory(f / name);
  Write(f / "two/a", "mine");
  Write(f / "three/a", "not mine");
  stdfs::create_symlink(f / "two/a", f / "one/a");
  stdfs::create_symlink(f / "three/a", f / "one/b");
  const Roots both = Roots::Only({f / "one", f / "two"}, "");
  CHECK(Text(both.Open(f / "one/a", O_RDONLY)) == "mine");
  CHECK(both.Open(f / "one/b", O_RDONLY).get() < 0);
  const Roots none = Roots::Only({}, "start it with --data-root FOLDER");
  CHECK_FALSE(none.Names(f / "one/a"));
  CHECK(none.Open(f / "one/a", O_RDONLY).get() < 0);
  CHECK(errno == EXDEV);
  CHECK(none.Refusal("the data file", "/x").message() ==
        "the data file is not allowed: path=/x (start it with --data-root FOLDER)");
  CHECK(Text(Roots().Open(f / "three/a", O_RDONLY)) == "not mine");
  CHECK(Roots::Only({"/"}, "").Names("/etc/passwd"));
}

TEST_CASE("a link that is exchanged during the open never opens a file outside of the roots") {
  const Place place;
  const TempFolder& f = place.folder;
  stdfs::create_symlink(f / "in/a", f / "in/now");
  stdfs::create_symlink(f / "in/a", f / "good");
  stdfs::create_symlink(f / "secret", f / "bad");
  std::atomic<bool> stop = false;
  std::thread exchanger([&] {
    // Both names are on one file system, so each rename is atomic.
    for (int i = 0; !stop; ++i) {
      const std::string next = f / ("next" + std::to_string(i % 2));
      stdfs::remove(next);
      stdfs::create_symlink(i % 2 == 0 ? f / "secret" : f / "in/a", next);
      ::rename(next.c_str(), (f / "in/now").c_str());
    }
  });
  int opened = 0, refused = 0;
  for (int i = 0; i < 20000 && (opened < 200 || refused < 200); ++i) {
    const std::string got = place.Open(f / "in/now");
    if (got == "mine")
      ++opened;
    else if (got == "outside")
      ++refused;
    else
      FAIL_CHECK(got);
  }
  stop = true;
  exchanger.join();
  CHECK(opened > 0);
  CHECK(refused > 0);
}

TEST_CASE("a named pipe, a folder or a device in a root does not block the open") {
  const Place place;
  REQUIRE(::mkfifo((place.folder / "in/pipe").c_str(), 0600) == 0);
  CHECK(place.roots.Open(place.folder / "in/pipe", O_RDONLY | O_NONBLOCK).get() >= 0);
  CHECK(place.roots.Open(place.folder / "in", O_RDONLY | O_DIRECTORY).get() >= 0);
  CHECK(place.roots.Open(place.folder / "in/a", O_RDONLY | O_DIRECTORY).get() < 0);
  CHECK(errno == ENOTDIR);
}

TEST_CASE(
    "the folders of a flag become absolute paths, and a missing folder is named with its flag") {
  TempFolder f;
  stdfs::create_directory(f / "data");
  std::vector<std::string> folders{f / "data/../data"};
  REQUIRE(MakeRootsAbsolute("--data-root", &folders).ok());
  CHECK(folders[0] == f / "data");
  Write(f / "file", "");
  for (const std::string& bad : {f / "absent", f / "file", std::string()}) {
    folders = {bad};
    const absl::Status status = MakeRootsAbsolute("--data-root", &folders);
    CHECK(status.message() == "--data-root: no such folder: got=`" + bad + "`");
  }
}

TEST_CASE("a root may be a bucket or a folder in it, and then contains objects by whole segments") {
  const TempFolder f;
  const Roots roots =
      Roots::Only({f / "", "s3://bucket/runs/", "gs://whole-bucket"}, "give --checkpoint-root");
  const struct {
    std::string path;
    bool inside;
  } cases[] = {
      {"s3://bucket/runs", true},
      {"s3://bucket/runs/", true},
      {"s3://bucket/runs/7/shard", true},
      {"s3://bucket/runs2", false},
      {"s3://bucket/run", false},
      {"s3://bucket", false},
      {"s3://bucket/other/runs/7", false},
      {"s3://bucket/runs/../secret", false},
      {"s3://bucket/runs/./7", false},
      {"s3://bucket/runs//7", false},
      {"s3://bucket2/runs/7", false},
      {"gs://bucket/runs/7", false},
      {"gs://whole-bucket", true},
      {"gs://whole-bucket/any/key", true},
      {"gs://whole-bucket2", false},
      {"s3://whole-bucket/key", false},
      {"S3://bucket/runs/7", false},
      {"hdfs://bucket/runs/7", false},
      {f / "file", true},
      {f / "s3://bucket/runs/7", true},  // a local path with an odd name
      {"bucket/runs/7", false},
      {"/bucket/runs/7", false},
      {"s3:/bucket/runs/7", false},
  };
  for (const auto& c : cases) {
    INFO(c.path);
    CHECK(roots.Names(c.path) == c.inside);
  }
  CHECK(Roots().Names("s3://bucket/x"));
  CHECK_FALSE(Roots::Only({"/"}, "").Names("s3://bucket/x"));
  CHECK_FALSE(Roots::Only({}, "").Names("s3://bucket/x"));
  // A wrong URI as a root contains nothing.
  for (const char* root : {"s3://", "s3://b", "s3://Bucket", "s3://bucket/..", "s3:"})
    CHECK_FALSE(Roots::Only({root}, "").Names("s3://bucket/x"));

  const absl::Status refusal = roots.Refusal("a checkpoint's file", "s3://other/x");
  CHECK(absl::IsPermissionDenied(refusal));
  CHECK(refusal.message() ==
        "a checkpoint's file lies outside of the allowed folders: path=s3://other/x folders=" +
            f.path() + ",s3://bucket/runs,gs://whole-bucket (give --checkpoint-root)");
}

TEST_CASE("the URI of an object is never opened as a local path") {
  // A relative path can have the spelling of the URI, because repeated slashes count as one.
  TempFolder f;
  stdfs::create_directories(f / "s3:/bucket");
  Write(f / "s3:/bucket/a", "local");
  const stdfs::path before = stdfs::current_path();
  stdfs::current_path(f.path());
  const Descriptor object = Roots::Only({"s3://bucket"}, "").Open("s3://bucket/a", O_RDONLY);
  const int error = errno;
  const Descriptor local = Roots::Only({"s3://bucket"}, "").Open(f / "s3:/bucket/a", O_RDONLY);
  const Descriptor in_local = Roots::Only({f.path()}, "").Open("s3://bucket/a", O_RDONLY);
  const bool named = Roots::Only({"s3://bucket"}, "").Names(f / "s3:/bucket/a");
  stdfs::current_path(before);
  CHECK(object.get() < 0);
  CHECK(error == EXDEV);
  CHECK(local.get() < 0);
  CHECK(in_local.get() < 0);
  CHECK_FALSE(named);
}

TEST_CASE("the URIs of a flag are normalized without a request, and a wrong one is refused") {
  TempFolder f;
  std::vector<std::string> folders{f.path(), "s3://bucket/a/", "gs://my_bucket"};
  REQUIRE(MakeRootsAbsolute("--checkpoint-root", &folders).ok());
  CHECK(folders == std::vector<std::string>{f.path(), "s3://bucket/a", "gs://my_bucket"});
  for (const char* bad : {"s3://", "s3://my_bucket", "s3://bucket/a/../b", "hdfs://host/x"}) {
    INFO(bad);
    folders = {bad};
    const absl::Status status = MakeRootsAbsolute("--checkpoint-root", &folders);
    CHECK(absl::IsInvalidArgument(status));
    CHECK(BlameOf(status) == Blame::kUser);
    CHECK_THAT(std::string(status.message()),
               Catch::StartsWith("--checkpoint-root: ") && Catch::Contains(bad));
  }
}

TEST_CASE(
    "a file system with roots writes, reads, lists, creates and removes nothing outside of them") {
  const Place place;
  const TempFolder& f = place.folder;
  const bool unnamed = GENERATE(true, false);
  const auto files = MakeLocalFileSystem({.unnamed = unnamed, .roots = &place.roots});
  stdfs::create_directory_symlink(f / "inside", f / "in/out");

  REQUIRE(files->MakeFolders(f / "in/deep/er").ok());
  REQUIRE(WriteWhole(*files, "file://" + (f / "in/deep/er/x"), "text").ok());
  CHECK(*ReadWhole(*files, f / "in/deep/er/x", 100) == "text");
  CHECK(files->List(f / "in/deep")->size() == 1);
  CHECK(*files->Exists(f / "in/deep/er/x"));
  CHECK_FALSE(*files->Exists(f / "in/deep/er/y"));
  CHECK(files->Remove(f / "in/deep/er/x").ok());

  for (const std::string& out :
       {f / "inside", f / "in/out", f / "in/../inside", f / "in/deep/../../inside"}) {
    INFO(out);
    const auto denied = [](const absl::Status& status) {
      return absl::IsPermissionDenied(status) &&
             std::string(status.message())
                     .find("a checkpoint's file lies outside of the allowed folders") == 0;
    };
    CHECK(denied(files->MakeFolders(out + "/new")));
    CHECK(denied(WriteWhole(*files, out + "/d", "text")));
    CHECK(denied(ReadWhole(*files, out + "/c", 100).status()));
    CHECK(denied(files->List(out).status()));
    CHECK(denied(files->Exists(out + "/c").status()));
    CHECK(denied(files->Remove(out + "/c")));
    CHECK(stdfs::exists(f / "inside/c"));
    CHECK_FALSE(stdfs::exists(f / "inside/new"));
    CHECK_FALSE(stdfs::exists(f / "inside/d"));
  }
}

}  // namespace
}  // namespace evergrad::fs
