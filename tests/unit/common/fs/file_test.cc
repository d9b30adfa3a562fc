#include "common/fs/file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include <catch2/catch.hpp>
#include <filesystem>

#include "common/fs/host.h"
#include "tests/support/temp_folder.h"

namespace evergrad::fs {
namespace {

// A new folder that is removed at the end of the test.
class Folder : public test::TempFolder {
 public:
  std::size_t entries() const {
    std::size_t n = 0;
    for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(path())) ++n;
    return n;
  }
};

TEST_CASE("an atomic write of any bytes can be read back, also over an older file") {
  Folder folder;
  const std::string path = folder / "a file";
  std::string bytes(300000, 'x');
  bytes[5] = '\0';
  REQUIRE(WriteFileAtomic(path, "old").ok());
  REQUIRE(WriteFileAtomic(path, bytes).ok());
  CHECK(*ReadFile(path, 1 << 20) == bytes);
  CHECK(folder.entries() == 1);  // No other file is left in the folder.
  struct stat info;
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0400) != 0);
}

TEST_CASE("errors of files name the path and have a status code of their own") {
  Folder folder;
  const auto missing = ReadFile(folder / "missing", 10);
  CHECK(missing.status().code() == absl::StatusCode::kNotFound);
  CHECK_THAT(std::string(missing.status().message()),
             Catch::Contains("path=") && Catch::Contains("missing"));
  REQUIRE(WriteFileAtomic(folder / "large", "12345678901").ok());
  CHECK(ReadFile(folder / "large", 10).status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(ReadFile(folder / "large", 11).ok());
  CHECK(ReadFile(folder / ".", 10).status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(WriteFileAtomic(folder / "no/such/folder", "x").code() == absl::StatusCode::kNotFound);
  CHECK_FALSE(MakeDirectories(folder / "large").ok());
  CHECK_FALSE(MakeDirectories(folder / "large/below").ok());
}

TEST_CASE("a file that reports size 0 is read to its end, up to the limit") {
  CHECK(!ReadFile("/proc/self/status", 1 << 20)->empty());
  CHECK(ReadFile("/dev/zero", 100000).status().code() == absl::StatusCode::kResourceExhausted);
}

TEST_CASE("a failed rename leaves no file beside the target") {
  Folder folder;
  REQUIRE(MakeDirectories(folder / "target/inside").ok());
  CHECK_FALSE(WriteFileAtomic(folder / "target", "x").ok());
  CHECK(folder.entries() == 1);
}

TEST_CASE("lines are appended, and folders are made with their parents, repeatedly") {
  Folder folder;
  REQUIRE(MakeDirectories(folder / "a/b/c").ok());
  REQUIRE(MakeDirectories(folder / "a/b/c").ok());
  CHECK(Exists(folder / "a/b/c"));
  CHECK_FALSE(Exists(folder / "a/b/d"));
  REQUIRE(AppendLine(folder / "a/log", "one").ok());
  REQUIRE(AppendLine(folder / "a/log", "two").ok());
  CHECK(SyncFile(folder / "a/log").ok());
  CHECK(absl::IsNotFound(SyncFile(folder / "a/none")));
  CHECK(*ReadFile(folder / "a/log", 100) == "one\ntwo\n");
}

// While an object of this class exists, no file of this process can become larger than `bytes`. The
// first write that is too large is accepted in part, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const struct rlimit now { bytes, before_.rlim_max };
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &now) == 0);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  struct rlimit before_;
  void (*const handler_)(int);
};

TEST_CASE("a line that fits only partly on the disk leaves nothing in the file") {
  Folder folder;
  const std::string path = folder / "log";
  REQUIRE(AppendLine(path, "whole").ok());
  absl::Status full, still_full;
  {
    FullDisk disk(10);
    full = AppendLine(path, "too long for it");
    still_full = RestoreEnd(path, 6, "ab\ntoo long for it\n");
  }
  CHECK_FALSE(full.ok());
  CHECK_THAT(std::string(full.message()), Catch::Contains("path=" + path));
  CHECK_FALSE(still_full.ok());
  CHECK(*ReadFile(path, 100) == "whole\n");
  REQUIRE(AppendLine(path, "next").ok());
  CHECK(*ReadFile(path, 100) == "whole\nnext\n");
}

TEST_CASE(
    "restoring the end of a file on a full disk keeps whole lines, and completes once there is "
    "space") {
  Folder folder;
  const std::string path = folder / "log", tail = "two\nthree\nfour\n";
  for (std::size_t written = 0; written <= tail.size(); ++written) {
    INFO("written " << written);
    const std::string there = "one\n" + tail.substr(0, written);
    REQUIRE(WriteFileAtomic(path, there).ok());
    {
      FullDisk disk(there.size() + 1);
      CHECK(RestoreEnd(path, 4, tail).ok() == (written + 1 >= tail.size()));
    }
    const std::string kept = *ReadFile(path, 100);
    CHECK(kept.back() == '\n');
    CHECK(("one\n" + tail).substr(0, kept.size()) == kept);
    CHECK(RestoreEnd(path, 4, tail).ok());
    CHECK(*ReadFile(path, 100) == "one\n" + tail);
  }
}

TEST_CASE(
    "the end of a file is restored wherever its writer stopped, bytes beyond it are removed, and a "
    "gap is reported") {
  Folder folder;
  const std::string path = folder / "lines";
  for (std::size_t written = 0; written <= 12; ++written) {
    INFO("written " << written);
    REQUIRE(WriteFileAtomic(path, std::string("one\ntwo\nthree\n!!").substr(0, 2 + written)).ok());
    const absl::Status status = RestoreEnd(path, 4, "two\nTHREE\n");
    const bool gap = 2 + written < 4;
    CHECK(status.code() == (gap ? absl::StatusCode::kDataLoss : absl::StatusCode::kOk));
    const std::string kept = std::string("one\ntwo\nthree\n").substr(0, 2 + written);
    if (gap) {
      CHECK(*ReadFile(path, 100) == kept + "two\nTHREE\n");
    } else {
      CHECK(*ReadFile(path, 100) == kept + std::string("one\ntwo\nTHREE\n").substr(kept.size()));
    }
  }
  REQUIRE(WriteFileAtomic(path, "one\ntwo\nthree\n!!").ok());
  CHECK(RestoreEnd(path, 4, "two\n").ok());
  CHECK(*ReadFile(path, 100) == "one\ntwo\n");
  CHECK(RestoreEnd(folder / "new", 0, "x\n").ok());
  CHECK(*ReadFile(folder / "new", 100) == "x\n");
}

TEST_CASE("only local paths are supported as files, and other schemes are refused by name") {
  CHECK(*LocalPath("/x/y") == "/x/y");
  CHECK(*LocalPath("relative/y") == "relative/y");
  CHECK(*LocalPath("file:///x/y") == "/x/y");
  CHECK(LocalPath("file://host/x").status().code() == absl::StatusCode::kInvalidArgument);
  const auto s3 = LocalPath("s3://bucket/x");
  CHECK(s3.status().code() == absl::StatusCode::kUnimplemented);
  CHECK_THAT(std::string(s3.status().message()),
             Catch::Contains("scheme=s3") && Catch::Contains("(a local path is needed here)"));
  const auto hdfs = LocalPath("hdfs://host/x");
  CHECK(hdfs.status().code() == absl::StatusCode::kUnimplemented);
  CHECK(hdfs.status().message() ==
        "unsupported URI scheme: scheme=hdfs uri=hdfs://host/x supported=file");
}

TEST_CASE("a host has a constant id and a name") {
  CHECK(HostId() == HostId());
  CHECK_THAT(HostId(), Catch::Contains("/net:"));
  CHECK(!HostName().empty());
}

}  // namespace
}  // namespace evergrad::fs
