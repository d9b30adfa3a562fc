// Tests every file system with one contract suite: the local one with and without unnamed files,
// the in-memory one, and the one over an object store, which writes each file in one request or in
// parts. Where object stores differ by design (object_files.h), a case states both results.
// Additional tests run over the in-memory file system alone, and show what remains after a loss of
// power.
#include "common/fs/file_system.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "common/object_store/object_files.h"
#include "tests/support/memory_files/memory_file_system.h"
#include "tests/support/memory_store/memory_store.h"
#include "tests/support/temp_folder.h"

namespace evergrad::fs {
namespace {

struct Stage {
  test::TempFolder folder;
  fault::Failpoints failpoints;
  object_store::MemoryBucket bucket;
  std::unique_ptr<FileSystem> files;
  std::string root;
  std::string operator/(const std::string& name) const { return JoinUri(root, name); }
};

const std::vector<std::string> kKinds = {"local, unnamed files", "local, temporary names", "memory",
                                         "objects, one request", "objects, parts"};
bool IsLocal(const std::string& kind) { return kind.substr(0, 5) == "local"; }
bool HasObjects(const std::string& kind) { return kind.substr(0, 7) == "objects"; }

std::unique_ptr<Stage> Make(const std::string& kind) {
  auto stage = std::make_unique<Stage>();
  if (kind == "memory") {
    stage->files =
        std::make_unique<MemoryFileSystem>(MemoryFileSystem::Options{&stage->failpoints});
    stage->root = "file:///store";
    REQUIRE(stage->files->MakeFolders(stage->root).ok());
  } else if (HasObjects(kind)) {
    object_store::ObjectFileOptions options;
    options.failpoints = &stage->failpoints;
    if (kind == "objects, parts") {
      options.part_bytes = 3;
      options.read_bytes = 3;
    }
    stage->files = object_store::MakeObjectFileSystem(
        [bucket = &stage->bucket](StoreKind, const std::string&) { return bucket->Open(); },
        options);
    stage->root = "s3://bucket/store";
    REQUIRE(stage->files->MakeFolders(stage->root).ok());
  } else {
    stage->files = MakeLocalFileSystem({&stage->failpoints, kind == "local, unnamed files"});
    stage->root = "file://" + (stage->folder / "").substr(0, (stage->folder / "").size() - 1);
  }
  return stage;
}

std::span<const std::byte> Bytes(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST_CASE("a file is visible and whole after its commit, and invisible before") {
  for (const std::string& kind : kKinds) {
    INFO(kind);
    const auto stage = Make(kind);
    auto file = stage->files->Create(*stage / "a");
    REQUIRE(file.ok());
    REQUIRE((*file)->Append(Bytes("hello ")).ok());
    REQUIRE((*file)->Append(Bytes("")).ok());
    REQUIRE((*file)->Append(Bytes("world")).ok());
    CHECK_FALSE(*stage->files->Exists(*stage / "a"));
    CHECK(stage->files->List(stage->root)->empty());
    REQUIRE((*file)->Commit().ok());
    CHECK(*ReadWhole(*stage->files, *stage / "a", 100) == "hello world");
    CHECK(*stage->files->List(stage->root) == std::vector<ListedFile>{{"a", 11, false}});
    CHECK((*file)->Commit().code() == absl::StatusCode::kFailedPrecondition);
    CHECK((*file)->Append(Bytes("!")).code() == absl::StatusCode::kFailedPrecondition);
  }
}

TEST_CASE("a file without a commit leaves nothing") {
  for (const std::string& kind : kKinds) {
    INFO(kind);
    const auto stage = Make(kind);
    {
      auto file = stage->files->Create(*stage / "a");
      REQUIRE((*file)->Append(Bytes("half")).ok());
    }
    CHECK(stage->files->List(stage->root)->empty());
    CHECK_FALSE(*stage->files->Exists(*stage / "a"));
    if (IsLocal(kind)) CHECK(std::filesystem::is_empty(stage->folder / ""));
    if (HasObjects(kind)) {
      CHECK(stage->bucket.Keys() == std::vector<std::string>{"store/"});
      CHECK(stage->bucket.uploads() == 0);
    }
    CHECK(WriteWhole(*stage->files, *stage / "a", "whole").ok());
  }
}

TEST_CASE("Replace takes the place of an existing file when it is whole, and of no folder") {
  for (const std::string& kind : kKinds) {
    INFO(kind);
    const auto stage = Make(kind);
    for (const char* text : {"first", "second, longer"}) {
      auto file = stage->files->Replace(*stage / "a");
      REQUIRE(file.ok());
      REQUIRE((*file)->Append(Bytes(text)).ok());
      const bool existed = *stage->files->Exists(*stage / "a");
      if (existed) CHECK(*ReadWhole(*stage->files, *stage / "a", 100) == "first");
      REQUIRE((*file)->Commit().ok());
      CHECK(*ReadWhole(*stage->files, *stage / "a", 100) == text);
    }
    {
      auto dropped = stage->files->Replace(*stage / "a");
      REQUIRE((*dropped)->Append(Bytes("dropped")).ok());
    }
    for (const char* failpoint : {"fs.write", "fs.sync", "fs.link"}) {
      REQUIRE(stage->failpoints.Arm(std::string(failpoint) + "=1*error", 1).ok());
      auto failing = stage->files->Replace(*stage / "a");
      REQUIRE(failing.ok());
      const absl::Status written = (*failing)->Append(Bytes("failed"));
      CHECK_FALSE((written.ok() && (*failing)->Commit().ok()));
    }
    CHECK(*ReadWhole(*stage->files, *stage / "a", 100) == "second, longer");
    CHECK(stage->files->List(stage->root)->size() == 1);
    REQUIRE(stage->files->MakeFolders(*stage / "folder").ok());
    CHECK(stage->files->Replace(*stage / "folder").status().code() ==
          absl::StatusCode::kFailedPrecondition);
  }
}

TEST_CASE("no existing file is overwritten") {
  for (const std::string& kind : kKinds) {
    INFO(kind);
    const auto stage = Make(kind);
    auto slow = stage->files->Create(*stage / "a");
    REQUIRE(slow.ok());
    REQUIRE((*slow)->Append(Bytes("slow")).ok());
    REQUIRE(WriteWhole(*stage->files, *stage / "a", "quick").ok());
    const absl::Status late = (*slow)->Commit();
    CHECK(late.code() == absl::StatusCode::kAlreadyExists);
    CHECK(late.message().find("path=") != std::string::npos);
    CHECK(stage->files->Create(*stage / "a").status().code() == absl::StatusCode::kAlreadyExists);
    CHECK(*ReadWhole(*stage->files, *stage / "a", 100) == "quick");
    slow->reset();
    CHECK(stage->files->List(stage->root)->size() == 1);
  }
}

TEST_CASE(
    "reads at an offset end at the end of the file, and continue after its removal, except in an "
    "object store") {
  for (const std::string& kind : kKinds) {
    INFO(kind);
    const auto stage = Make(kind);
    REQUIRE(WriteWhole(*stage->files, *stage / "a", "0123456789").ok());
    auto file = stage->files->Open(*stage / "a");
    REQUIRE(file.ok());
    CHECK((*file)->size() == 10);
    REQUIRE(stage->files->Remove(*stage / "a").ok());
    CHECK_FALSE(*stage->files->Exists(*stage / "a"));
    std::array<std::byte, 4> out{};
    if (HasObjects(kind)) {
      const absl::Status removed = (*file)->ReadAt(3, out).status();
      CHECK(absl::IsNotFound(removed));
      CHECK(removed.message().find("path=") != std::string::npos);
      REQUIRE(WriteWhole(*stage->files, *stage / "a", "0123456789").ok());
      file = stage->files->Open(*stage / "a");
    }
    CHECK(*(*file)->ReadAt(3, out) == 4);
    CHECK(std::to_integer<char>(out[0]) == '3');
    CHECK(*(*file)->ReadAt(8, out) == 2);
    CHECK(*(*file)->ReadAt(10, out) == 0);
    CHECK(*(*file)->ReadAt(11, out) == 0);
  }
}

TEST_CASE("folders are made with their parents, listed by name, and removed when empty") {
  for (const std::string& kind : kKinds) {
    INFO(kind);
    const auto stage = Make(kind);
    REQUIRE(stage->files->MakeFolders(*stage / "job/deep/").ok());
    REQUIRE(stage->files->MakeFolders(*stage / "job/deep").ok());
    REQUIRE(WriteWhole(*stage->files, *stage / "job/b", "bb").ok());
    REQUIRE(WriteWhole(*stage->files, *stage / "job/a", "a").ok());
    CHECK(*stage->files->List(*stage / "job") ==
          std::vector<ListedFile>{{"a", 1, false}, {"b", 2, false}, {"deep", 0, true}});
    CHECK(stage->files->Remove(*stage / "job").code() == absl::StatusCode::kFailedPrecondition);
    REQUIRE(stage->files->Remove(*stage / "job/deep").ok());
    CHECK_FALSE(*stage->files->Exists(*stage / "job/deep"));
  }
}

TEST_CASE("each error has its kind and names the path") {
  for (const std::string& kind : kKinds) {
    INFO(kind);
    const auto stage = Make(kind);
    REQUIRE(WriteWhole(*stage->files, *stage / "file", "x").ok());
    REQUIRE(stage->files->MakeFolders(*stage / "folder").ok());
    struct Case {
      absl::Status status;
      absl::StatusCode code;
    };
    std::vector<Case> cases = {
        {stage->files->Open(*stage / "none").status(), absl::StatusCode::kNotFound},
        {stage->files->Open(*stage / "folder").status(), absl::StatusCode::kFailedPrecondition},
        {stage->files->Create(*stage / "folder").status(), absl::StatusCode::kAlreadyExists},
        {stage->files->Create(*stage / "").status(), absl::StatusCode::kInvalidArgument},
        {stage->files->List(*stage / "none").status(), absl::StatusCode::kNotFound},
        {stage->files->List(*stage / "file").status(), absl::StatusCode::kFailedPrecondition},
        {stage->files->Remove(*stage / "none"), absl::StatusCode::kNotFound},
        {stage->files->MakeFolders(*stage / "file"), absl::StatusCode::kFailedPrecondition},
        {ReadWhole(*stage->files, *stage / "file", 0).status(),
         absl::StatusCode::kResourceExhausted},
    };
    if (HasObjects(kind)) {
      // An object needs no folder, and its key may be a prefix of other keys.
      CHECK(stage->files->Create(*stage / "none/x").ok());
      CHECK(stage->files->Create(*stage / "file/x").ok());
      CHECK(stage->files->MakeFolders(*stage / "file/x").ok());
    } else {
      cases.push_back(
          {stage->files->Create(*stage / "none/x").status(), absl::StatusCode::kNotFound});
      cases.push_back({stage->files->Create(*stage / "file/x").status(),
                       absl::StatusCode::kFailedPrecondition});
      cases.push_back(
          {stage->files->MakeFolders(*stage / "file/x"), absl::StatusCode::kFailedPrecondition});
    }
    for (const Case& c : cases) {
      INFO(c.status.ToString());
      CHECK(c.status.code() == c.code);
      CHECK(c.status.message().find("path=") != std::string::npos);
    }
  }
}

TEST_CASE("other URI schemes are refused by name") {
  for (const std::string& kind : kKinds) {
    INFO(kind);
    const auto stage = Make(kind);
    const std::vector<std::pair<const char*, std::string>> refused =
        HasObjects(kind)
            ? std::vector<std::pair<const char*, std::string>>{{"/x", "file"},
                                                               {"file:///x", "file"},
                                                               {"hdfs://host/x", "hdfs"}}
            : std::vector<std::pair<const char*, std::string>>{
                  {"s3://bucket/x", "s3"}, {"gs://b-2/x", "gs"}, {"hdfs://h/x", "hdfs"}};
    for (const auto& [uri, scheme] : refused) {
      INFO(uri);
      const absl::Status status = stage->files->Create(uri).status();
      CHECK(status.code() == absl::StatusCode::kUnimplemented);
      CHECK(status.message().find("scheme=" + scheme) != std::string::npos);
      CHECK(stage->files->Open(uri).status().code() == absl::StatusCode::kUnimplemented);
      CHECK(stage->files->List(uri).status().code() == absl::StatusCode::kUnimplemented);
      CHECK(stage->files->MakeFolders(uri).code() == absl::StatusCode::kUnimplemented);
      CHECK(stage->files->Remove(uri).code() == absl::StatusCode::kUnimplemented);
      CHECK(stage->files->Exists(uri).status().code() == absl::StatusCode::kUnimplemented);
    }
    const char* wrong = HasObjects(kind) ? "s3://Bucket/x" : "file://host/x";
    CHECK(stage->files->Create(wrong).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("a commit that fails at any step leaves the name free, and the next commit succeeds") {
  for (const std::string& kind : kKinds) {
    for (const char* failpoint : {"fs.write", "fs.sync", "fs.link", "fs.sync_folder"}) {
      INFO(kind << " " << failpoint);
      const auto stage = Make(kind);
      REQUIRE(stage->failpoints.Arm(std::string(failpoint) + "=1*error", 1).ok());
      const absl::Status status = WriteWhole(*stage->files, *stage / "a", "four");
      CHECK(status.code() == absl::StatusCode::kInternal);
      CHECK(status.message().find(failpoint) != std::string::npos);
      CHECK_FALSE(*stage->files->Exists(*stage / "a"));
      CHECK(stage->files->List(stage->root)->empty());
      CHECK(stage->bucket.uploads() == 0);
      CHECK(WriteWhole(*stage->files, *stage / "a", "y").ok());
      CHECK(*ReadWhole(*stage->files, *stage / "a", 9) == "y");
    }
    const auto stage = Make(kind);
    REQUIRE(WriteWhole(*stage->files, *stage / "a", "x").ok());
    REQUIRE(stage->failpoints.Arm("fs.remove=1*error", 1).ok());
    CHECK_FALSE(stage->files->Remove(*stage / "a").ok());
    CHECK(*stage->files->Exists(*stage / "a"));
  }
}

TEST_CASE(
    "temporary files of a dead writer are removed by the next writer, and those of a living writer "
    "stay") {
  const auto stage = Make("local, temporary names");
  auto living = stage->files->Create(*stage / "a");
  REQUIRE((*living)->Append(Bytes("a")).ok());
  std::ofstream(stage->folder / ".evergrad-tmp-1-1") << "of a dead writer";
  REQUIRE(WriteWhole(*stage->files, *stage / "b", "b").ok());
  CHECK_FALSE(std::filesystem::exists(stage->folder / ".evergrad-tmp-1-1"));
  REQUIRE((*living)->Commit().ok());
  CHECK(*ReadWhole(*stage->files, *stage / "a", 9) == "a");
  CHECK(stage->files->Create(*stage / ".evergrad-tmp-1").status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a folder without write permission is refused with a typed error") {
  if (::geteuid() == 0) {
    // Root may write everywhere, except where the file system itself refuses to be written.
    const auto files = MakeLocalFileSystem();
    const absl::Status status = files->Create("/proc/evergrad").status();
    CHECK_FALSE(status.ok());
    CHECK(status.message().find("path=/proc/evergrad") != std::string::npos);
    return;
  }
  const auto stage = Make("local, unnamed files");
  REQUIRE(stage->files->MakeFolders(*stage / "shut").ok());
  REQUIRE(::chmod((stage->folder / "shut").c_str(), 0500) == 0);
  CHECK(stage->files->Create(*stage / "shut/a").status().code() ==
        absl::StatusCode::kPermissionDenied);
}

TEST_CASE("a full disk is ResourceExhausted, and the message names the remedy") {
  MemoryFileSystem files({nullptr, 10});
  auto file = files.Create("/a");
  REQUIRE((*file)->Append(Bytes("12345678")).ok());
  const absl::Status status = (*file)->Append(Bytes("901"));
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(status.message().find("free some space") != std::string::npos);
  CHECK((*file)->Commit().code() == absl::StatusCode::kFailedPrecondition);
  file->reset();
  CHECK(WriteWhole(files, "/a", "1234567890").ok());
  // A write has this error on a device that is always full.
  CHECK(FileError(ENOSPC, "cannot write file", "/x").code() ==
        absl::StatusCode::kResourceExhausted);
  // A network disk that cannot be reached has these errors. The caller should then try again.
  for (const int error : {ESTALE, ETIMEDOUT, EBUSY, ENOTCONN, EHOSTDOWN})
    CHECK(absl::IsUnavailable(FileError(error, "cannot open file", "/x")));
}

TEST_CASE("a loss of power keeps committed files whole and loses all others") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    INFO(seed);
    MemoryFileSystem files;
    REQUIRE(WriteWhole(files, "/kept", "kept").ok());
    REQUIRE(WriteWhole(files, "/gone", "gone").ok());
    REQUIRE(files.Remove("/gone").ok());
    auto open = files.Create("/open");
    REQUIRE((*open)->Append(Bytes("half")).ok());
    auto reader = files.Open("/kept");
    files.Crash(seed);
    CHECK(*ReadWhole(files, "/kept", 9) == "kept");
    CHECK(files.List("/")->size() == 1);
    CHECK_FALSE((*open)->Commit().ok());
    std::array<std::byte, 1> out{};
    CHECK_FALSE((*reader)->ReadAt(0, out).ok());
    CHECK(files.bytes() == 4);
  }
}

TEST_CASE("a loss of power reveals an omitted sync") {
  for (const bool files_synced : {true, false}) {
    CAPTURE(files_synced);
    int damaged = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      MemoryFileSystem files({.syncs_files = files_synced, .syncs_folders = !files_synced});
      REQUIRE(WriteWhole(files, "/a", "precious").ok());
      CHECK(*ReadWhole(files, "/a", 9) == "precious");
      files.Crash(seed);
      const auto left = ReadWhole(files, "/a", 9);
      if (!left.ok() || *left != "precious") ++damaged;
    }
    CHECK(damaged >= 5);
  }
}

TEST_CASE("a URI is split into its parts") {
  const struct {
    const char *uri, *folder, *name;
  } cases[] = {{"file:///a/b", "file:///a", "b"},
               {"file:///b", "file:///", "b"},
               {"/b", "/", "b"},
               {"b", ".", "b"},
               {"a/b", "a", "b"},
               {"s3://bucket/a/b", "s3://bucket/a", "b"},
               {"s3://bucket/a", "s3://bucket", "a"}};
  for (const auto& c : cases) {
    CHECK(FolderOf(c.uri) == c.folder);
    CHECK(NameOf(c.uri) == c.name);
    if (std::string(c.folder) != ".") CHECK(JoinUri(c.folder, c.name) == c.uri);
  }
}

}  // namespace
}  // namespace evergrad::fs
