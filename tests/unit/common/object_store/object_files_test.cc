// Tests files over a bucket in memory. The suite of all file systems (tests/unit/common/fs) tests
// the behaviour that is common to all; these cases test requests, parts, ranges and listings.
#include "common/object_store/object_files.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <span>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/random/philox.h"
#include "common/runtime/executor.h"
#include "tests/support/memory_store/memory_store.h"

namespace evergrad::object_store {
namespace {

using Calls = std::vector<std::string>;
using fs::ListedFile;
using runtime::WaitableEvent;

ObjectFileOptions Small(int uploads = 1) {
  ObjectFileOptions options;
  options.part_bytes = 4;
  options.read_bytes = 4;
  options.uploads = uploads;
  return options;
}

struct Stage {
  fault::Failpoints failpoints;
  MemoryBucket bucket;
  std::unique_ptr<fs::FileSystem> files;
  explicit Stage(ObjectFileOptions options = Small(), MemoryBucket::Options bucket_options = {})
      : bucket(bucket_options) {
    options.failpoints = &failpoints;
    files = MakeObjectFileSystem(
        [this](fs::StoreKind, const std::string&) { return bucket.Open(); }, options);
  }
  absl::Status Write(const std::string& uri, absl::string_view bytes) {
    return fs::WriteWhole(*files, uri, bytes);
  }
  std::string Read(const std::string& uri) { return *fs::ReadWhole(*files, uri, 1u << 20); }
};

std::span<const std::byte> Bytes(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Returns `count` bytes that differ from their neighbours.
std::string Text(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += static_cast<char>('a' + i % 23);
  return text;
}

std::string At(fs::ReadableFile& file, std::uint64_t offset, std::size_t count) {
  std::string out(count, '?');
  const auto read = file.ReadAt(offset, std::as_writable_bytes(std::span(out.data(), out.size())));
  if (!read.ok()) return read.status().ToString();
  return out.substr(0, *read);
}

Calls Sorted(Calls calls) {
  std::sort(calls.begin(), calls.end());
  return calls;
}

TEST_CASE("a file of at most one part takes one request, and a larger one is uploaded in parts") {
  const struct {
    std::size_t bytes;
    Calls calls;
  } cases[] = {
      {0, {"Put a [0]"}},
      {3, {"Put a [3]"}},
      {4, {"Put a [4]"}},
      {5, {"BeginUpload a", "PutPart a 1 [4]", "PutPart a 2 [1]", "CompleteUpload a 2"}},
      {8, {"BeginUpload a", "PutPart a 1 [4]", "PutPart a 2 [4]", "CompleteUpload a 2"}},
      {9,
       {"BeginUpload a", "PutPart a 1 [4]", "PutPart a 2 [4]", "PutPart a 3 [1]",
        "CompleteUpload a 3"}},
  };
  for (const auto& c : cases) {
    for (const std::size_t step : {1, 3, 100}) {
      INFO(c.bytes << " bytes in steps of " << step);
      Stage stage;
      auto file = stage.files->Create("s3://bucket/a");
      REQUIRE(file.ok());
      CHECK(stage.bucket.TakeCalls() == Calls{"Head a", "List a/"});
      const std::string text = Text(c.bytes);
      for (std::size_t i = 0; i < text.size(); i += step)
        REQUIRE((*file)->Append(Bytes(absl::string_view(text).substr(i, step))).ok());
      REQUIRE((*file)->Commit().ok());
      CHECK(stage.bucket.TakeCalls() == c.calls);
      CHECK(stage.bucket.Contents("a") == text);
      file->reset();
      CHECK(stage.bucket.TakeCalls().empty());
      CHECK(stage.Read("s3://bucket/a") == text);
    }
  }
}

TEST_CASE(
    "the size of a part doubles after each 1,000 parts, and parts beyond 10,000 are refused") {
  ObjectFileOptions options = Small();
  options.part_bytes = 1;
  Stage stage(options);
  const std::string text = Text(3'500);
  REQUIRE(stage.Write("s3://bucket/a", text).ok());
  CHECK(stage.bucket.Contents("a") == text);
  std::map<std::string, int> sizes;
  for (const std::string& call : stage.bucket.TakeCalls())
    if (absl::StartsWith(call, "PutPart ")) ++sizes[call.substr(call.find('['))];
  CHECK(sizes == std::map<std::string, int>{{"[1]", 1000}, {"[2]", 1000}, {"[4]", 125}});

  const std::string largest = Text(1000 * 1023);
  REQUIRE(stage.Write("s3://bucket/largest", largest).ok());
  CHECK(stage.bucket.Contents("largest") == largest);
  const absl::Status larger = stage.Write("s3://bucket/larger", largest + "x");
  CHECK(absl::IsResourceExhausted(larger));
  CHECK(larger.message() == "the file would be too large: path=s3://bucket/larger parts_max=10000");
  CHECK_FALSE(stage.bucket.Contents("larger"));
  CHECK(stage.bucket.uploads() == 0);
}

TEST_CASE("parts that arrive in the reverse order make the same file") {
  Stage stage(Small(3));
  std::array<WaitableEvent, 5> begun, arrived;
  stage.bucket.before = [&](const StoreCall& call) {
    if (call.name != "PutPart") return absl::OkStatus();
    const auto part = static_cast<std::size_t>(call.part);
    begun[part].Set();
    if (part < 3) arrived[part + 1].Wait();
    if (part == 3) {
      begun[1].Wait();
      begun[2].Wait();
    }
    return absl::OkStatus();
  };
  stage.bucket.after = [&](const StoreCall& call) {
    if (call.name == "PutPart") arrived[static_cast<std::size_t>(call.part)].Set();
    return absl::OkStatus();
  };
  REQUIRE(stage.Write("s3://bucket/a", Text(13)).ok());
  CHECK(stage.bucket.Contents("a") == Text(13));
  CHECK(stage.bucket.parts_in_flight_max() == 3);
}

TEST_CASE("an append waits while all parts are in flight") {
  Stage stage(Small(2));
  WaitableEvent both, gate, done;
  std::atomic<int> begun = 0;
  stage.bucket.before = [&](const StoreCall& call) {
    if (call.name != "PutPart") return absl::OkStatus();
    if (++begun == 2) both.Set();
    gate.Wait();
    return absl::OkStatus();
  };
  auto file = stage.files->Create("s3://bucket/a");
  REQUIRE(file.ok());
  // The third part is full, and waits in memory.
  REQUIRE((*file)->Append(Bytes(Text(12))).ok());
  both.Wait();
  absl::Status appended;
  std::thread writer([&] {
    appended = (*file)->Append(Bytes("x"));
    done.Set();
  });
  CHECK_FALSE(done.WaitFor(std::chrono::milliseconds(20)));
  gate.Set();
  writer.join();
  CHECK(appended.ok());
  REQUIRE((*file)->Commit().ok());
  CHECK(stage.bucket.Contents("a") == Text(12) + "x");
  CHECK(stage.bucket.parts_in_flight_max() == 2);
}

TEST_CASE("the error of any part is returned once, and the upload is aborted") {
  for (const int uploads : {1, 2, 4}) {
    for (int failing = 1; failing <= 4; ++failing) {
      INFO("part " << failing << " with " << uploads << " uploads");
      Stage stage(Small(uploads));
      stage.bucket.before = [&](const StoreCall& call) {
        return call.name == "PutPart" && call.part == failing
                   ? absl::UnavailableError("the store is busy")
                   : absl::OkStatus();
      };
      auto file = stage.files->Create("s3://bucket/a");
      REQUIRE(file.ok());
      absl::Status status;
      for (int i = 0; i < 13 && status.ok(); ++i) status = (*file)->Append(Bytes("x"));
      if (status.ok()) status = (*file)->Commit();
      CHECK(absl::IsUnavailable(status));
      CHECK(status.message() == "cannot write file: path=s3://bucket/a: the store is busy");
      CHECK(absl::IsFailedPrecondition((*file)->Append(Bytes("x"))));
      CHECK(absl::IsFailedPrecondition((*file)->Commit()));
      CHECK(stage.bucket.uploads() == 1);
      file->reset();
      CHECK(stage.bucket.uploads() == 0);
      CHECK(stage.bucket.TakeCalls().back() == "AbortUpload a");
      CHECK(stage.bucket.Keys().empty());
      stage.bucket.before = nullptr;
      CHECK(stage.Write("s3://bucket/a", Text(13)).ok());
    }
  }
}

TEST_CASE("an error of any other request of a write is returned, and leaves nothing") {
  const struct {
    std::string call;
    std::size_t bytes;
  } cases[] = {{"Head", 0},        {"List", 0},           {"Put", 2},
               {"BeginUpload", 9}, {"CompleteUpload", 9}, {"AbortUpload", 9}};
  for (const auto& c : cases) {
    INFO(c.call);
    Stage stage;
    stage.bucket.before = [&](const StoreCall& call) {
      // A failed abort needs a failed write.
      const std::string failing = c.call == "AbortUpload" ? "CompleteUpload" : c.call;
      return call.name == c.call || call.name == failing
                 ? UserError(absl::PermissionDeniedError("no access"))
                 : absl::OkStatus();
    };
    const absl::Status status = stage.Write("s3://bucket/a", Text(c.bytes));
    CHECK(absl::IsPermissionDenied(status));
    CHECK(BlameOf(status) == Blame::kUser);
    CHECK_THAT(std::string(status.message()),
               Catch::Contains("path=s3://bucket/a") && Catch::EndsWith(": no access"));
    CHECK(stage.bucket.Keys().empty());
    CHECK(stage.bucket.uploads() == (c.call == "AbortUpload" ? 1 : 0));
  }
}

TEST_CASE(
    "a file that is destroyed without a commit aborts its upload after its parts have ended") {
  Stage stage(Small(2));
  WaitableEvent begun, gate, aborted;
  std::atomic<bool> ended = false, in_order = false;
  stage.bucket.before = [&](const StoreCall& call) {
    if (call.name == "PutPart") {
      begun.Set();
      gate.Wait();
    } else if (call.name == "AbortUpload") {
      in_order = ended.load();
      aborted.Set();
    }
    return absl::OkStatus();
  };
  stage.bucket.after = [&](const StoreCall& call) {
    if (call.name == "PutPart") ended = true;
    return absl::OkStatus();
  };
  auto file = stage.files->Create("s3://bucket/a");
  REQUIRE((*file)->Append(Bytes(Text(5))).ok());
  begun.Wait();
  std::thread destroyer([&] { file->reset(); });
  CHECK_FALSE(aborted.WaitFor(std::chrono::milliseconds(20)));
  gate.Set();
  destroyer.join();
  CHECK(in_order);
  CHECK(stage.bucket.uploads() == 0);
  CHECK(stage.bucket.Keys().empty());
}

TEST_CASE("each failpoint fails at its step, and leaves neither an object nor parts") {
  const struct {
    std::string failpoint;
    std::size_t bytes;
    Calls calls;  // after those of Create, without the first part
  } cases[] = {
      {"fs.write", 2, {}},
      {"fs.sync", 2, {}},
      {"fs.link", 2, {}},
      {"fs.sync_folder", 2, {"Put a [2]", "Delete a"}},
      {"fs.write", 5, {}},
      {"fs.sync", 5, {"BeginUpload a", "AbortUpload a"}},
      {"fs.link", 5, {"BeginUpload a", "PutPart a 2 [1]", "AbortUpload a"}},
      {"fs.sync_folder", 5, {"BeginUpload a", "PutPart a 2 [1]", "CompleteUpload a 2", "Delete a"}},
  };
  for (const auto& c : cases) {
    INFO(c.failpoint << " " << c.bytes);
    Stage stage;
    REQUIRE(stage.failpoints.Arm(c.failpoint + "=1*error", 1).ok());
    auto file = stage.files->Create("s3://bucket/a");
    stage.bucket.TakeCalls();
    absl::Status status = (*file)->Append(Bytes(Text(c.bytes)));
    if (status.ok()) status = (*file)->Commit();
    CHECK(absl::IsInternal(status));
    CHECK_THAT(std::string(status.message()), Catch::Contains(c.failpoint));
    file->reset();
    // The first part is sent by another thread. It may be dropped after the failure of fs.sync.
    Calls calls = stage.bucket.TakeCalls();
    std::erase(calls, "PutPart a 1 [4]");
    CHECK(calls == c.calls);
    CHECK(stage.bucket.Keys().empty());
    CHECK(stage.bucket.uploads() == 0);
  }
}

TEST_CASE("a replacement is not deleted when the failpoint after it fails") {
  for (const std::size_t bytes : {2, 9}) {
    Stage stage;
    stage.bucket.Write("a", "old");
    REQUIRE(stage.failpoints.Arm("fs.sync_folder=1*error", 1).ok());
    auto file = stage.files->Replace("s3://bucket/a");
    REQUIRE(file.ok());
    REQUIRE((*file)->Append(Bytes(Text(bytes))).ok());
    CHECK(absl::IsInternal((*file)->Commit()));
    CHECK(stage.bucket.Contents("a") == Text(bytes));
  }
}

TEST_CASE("of two writers of one name the second one fails, and the first one's bytes stay") {
  for (const std::size_t first : {2, 9}) {
    for (const std::size_t second : {3, 10}) {
      INFO(first << " " << second);
      Stage stage;
      auto slow = stage.files->Create("s3://bucket/a");
      REQUIRE((*slow)->Append(Bytes(Text(second))).ok());
      REQUIRE(stage.Write("s3://bucket/a", Text(first)).ok());
      const absl::Status late = (*slow)->Commit();
      CHECK(absl::IsAlreadyExists(late));
      CHECK_THAT(std::string(late.message()), Catch::Contains("path=s3://bucket/a"));
      slow->reset();
      CHECK(stage.bucket.Contents("a") == Text(first));
      CHECK(stage.bucket.uploads() == 0);
    }
  }
  // The other writer writes between the last check of this writer and its last request.
  Stage stage;
  stage.bucket.before = [&](const StoreCall& call) {
    if (call.name == "CompleteUpload") stage.bucket.Write("a", "other");
    return absl::OkStatus();
  };
  CHECK(absl::IsAlreadyExists(stage.Write("s3://bucket/a", Text(9))));
  CHECK(stage.bucket.Contents("a") == "other");
}

TEST_CASE("reads of any range return the bytes of the object") {
  const std::uint64_t seed = random::EntropyFromOs();
  INFO("seed " << seed);
  const std::uint64_t key = random::KeyOf(seed, "ranges");
  std::uint64_t drawn = 0;
  const auto draw = [&](std::uint64_t below) { return random::Bits64(key, drawn++) % below; };
  for (const int uploads : {1, 3}) {
    Stage stage(Small(uploads));
    for (const std::size_t size : {0, 1, 3, 4, 5, 40, 41}) {
      const std::string text = Text(size);
      stage.bucket.Write("a", text);
      const auto file = stage.files->Open("s3://bucket/a");
      REQUIRE(file.ok());
      CHECK((*file)->size() == size);
      for (int i = 0; i < 200; ++i) {
        const std::uint64_t offset = draw(size + 3), count = draw(size + 3);
        INFO("size " << size << " offset " << offset << " count " << count);
        CHECK(At(**file, offset, count) == (offset < size ? text.substr(offset, count) : ""));
      }
    }
  }
}

TEST_CASE(
    "a reader fetches more blocks at once while it reads on, and keeps its last two fetches") {
  Stage stage(Small(3));
  stage.bucket.Write("a", Text(100));
  const auto file = stage.files->Open("s3://bucket/a");
  const auto calls = [&](std::uint64_t offset, std::size_t count) {
    CHECK(At(**file, offset, count) == Text(100).substr(offset, count));
    return Sorted(stage.bucket.TakeCalls());
  };
  CHECK(stage.bucket.TakeCalls() == Calls{"Head a"});
  CHECK(calls(0, 2) == Calls{"Get a [0, 4)"});
  CHECK(calls(2, 2).empty());
  CHECK(calls(3, 2) == Calls{"Get a [4, 8)", "Get a [8, 12)"});
  CHECK(calls(9, 3).empty());
  CHECK(calls(12, 1) == Calls{"Get a [12, 16)", "Get a [16, 20)", "Get a [20, 24)"});
  CHECK(calls(24, 1) == Calls{"Get a [24, 28)", "Get a [28, 32)", "Get a [32, 36)"});
  // A read elsewhere fetches one block, and reads at two places alternate without requests.
  CHECK(calls(98, 3) == Calls{"Get a [96, 100)"});
  CHECK(calls(30, 1).empty());
  CHECK(calls(97, 1).empty());
  CHECK(calls(12, 1) == Calls{"Get a [12, 16)"});
  // Reads of at least one block use no cache.
  CHECK(calls(12, 4) == Calls{"Get a [12, 16)"});
  CHECK(calls(1, 9) == Calls{"Get a [1, 5)", "Get a [5, 9)", "Get a [9, 10)"});
  CHECK(calls(96, 40) == Calls{"Get a [96, 100)"});
  CHECK(calls(100, 40).empty());
}

TEST_CASE("a large read does not wait for threads that send parts") {
  Stage stage(Small(2));
  stage.bucket.Write("b", Text(40));
  WaitableEvent gate;
  stage.bucket.before = [&](const StoreCall& call) {
    if (call.name == "PutPart") gate.Wait();
    return absl::OkStatus();
  };
  auto writing = stage.files->Create("s3://bucket/a");
  REQUIRE((*writing)->Append(Bytes(Text(12))).ok());  // occupies both threads
  CHECK(stage.Read("s3://bucket/b") == Text(40));
  gate.Set();
  CHECK((*writing)->Commit().ok());
}

TEST_CASE("an object that was replaced or removed while it is open is not read on") {
  Stage stage;
  stage.bucket.Write("a", Text(12));
  const auto file = stage.files->Open("s3://bucket/a");
  CHECK(At(**file, 0, 2) == Text(2));
  const std::string version = (*file)->version();
  CHECK_FALSE(version.empty());
  stage.bucket.Write("a", std::string(12, 'z'));
  CHECK(At(**file, 1, 2) == Text(12).substr(1, 2));  // read before
  std::array<std::byte, 5> out{};
  for (const std::size_t count : {1, 5}) {
    const absl::Status changed = (*file)->ReadAt(6, std::span(out).first(count)).status();
    CHECK(absl::IsFailedPrecondition(changed));
    CHECK_THAT(std::string(changed.message()), Catch::Contains("path=s3://bucket/a"));
  }
  CHECK((*stage.files->Open("s3://bucket/a"))->version() != version);
  stage.bucket.Erase("a");
  CHECK(absl::IsNotFound((*file)->ReadAt(6, out).status()));
}

TEST_CASE("an error in any block of a large read is returned") {
  for (const int uploads : {1, 3}) {
    for (std::uint64_t failing = 0; failing < 20; failing += 4) {
      Stage stage(Small(uploads));
      stage.bucket.Write("a", Text(20));
      stage.bucket.before = [&](const StoreCall& call) {
        return call.name == "Get" && call.offset == failing ? absl::UnavailableError("busy")
                                                            : absl::OkStatus();
      };
      const absl::Status status = fs::ReadWhole(*stage.files, "s3://bucket/a", 100).status();
      CHECK(absl::IsUnavailable(status));
      CHECK(status.message() == "cannot read file: path=s3://bucket/a: busy");
      stage.bucket.before = nullptr;
      CHECK(stage.Read("s3://bucket/a") == Text(20));
    }
  }
}

TEST_CASE("a store that returns too few or too many bytes damages no memory") {
  for (const std::string& bytes : {std::string(), std::string("abc"), std::string(5'000, 'x')}) {
    Stage stage;
    stage.bucket.Write("a", Text(20));
    const auto file = stage.files->Open("s3://bucket/a");
    stage.bucket.change_bytes = [&](std::string* got) { *got = bytes; };
    std::array<std::byte, 8> out{};
    for (const std::size_t count : {2, 8}) {
      const absl::Status status = (*file)->ReadAt(0, std::span(out).first(count)).status();
      CHECK(absl::IsDataLoss(status));
      CHECK_THAT(std::string(status.message()), Catch::Contains("path=s3://bucket/a"));
    }
  }
}

TEST_CASE("a folder is listed from pages of any size, in the order of names") {
  for (const std::size_t page : {1, 2, 3, 1000}) {
    INFO(page);
    Stage stage(Small(), {"s3://bucket", page});
    for (const char* key : {"other", "runs", "runs-2/x", "runs/", "runs/b/1", "runs/b/2/3",
                            "runs/b-", "runs/b.txt", "runs/a", "runs/c/", "runs/d", "runs/d/x",
                            "runs2/x", "runs/.evergrad-probe-7", "runs/x.evergrad-part-1",
                            "runs/a.evergrad-probe-1/x", "runs//y", "runs/../z", "runs/e\n"})
      stage.bucket.Write(key, key);
    CHECK(*stage.files->List("s3://bucket/runs") ==
          std::vector<ListedFile>{{"a", 6, false},
                                  {"a.evergrad-probe-1", 0, true},
                                  {"b", 0, true},
                                  {"b-", 7, false},
                                  {"b.txt", 10, false},
                                  {"c", 0, true},
                                  {"d", 6, false},
                                  {"d", 0, true}});
    CHECK(stage.files->List("s3://bucket/runs/c/")->empty());
    CHECK(*stage.files->List("s3://bucket") == std::vector<ListedFile>{{"other", 5, false},
                                                                       {"runs", 4, false},
                                                                       {"runs", 0, true},
                                                                       {"runs-2", 0, true},
                                                                       {"runs2", 0, true}});
    CHECK(absl::IsNotFound(stage.files->List("s3://bucket/run").status()));
    CHECK(absl::IsFailedPrecondition(stage.files->List("s3://bucket/other").status()));
  }
}

TEST_CASE("a wrong listing of a store is an error, and an endless one ends") {
  const struct {
    std::string name;
    std::function<void(ListPage*)> change;
    absl::StatusCode code;
  } cases[] = {
      {"key elsewhere",
       [](ListPage* p) {
         p->objects = {{"other/a", 1}};
       },
       absl::StatusCode::kDataLoss},
      {"key below a child",
       [](ListPage* p) {
         p->objects = {{"runs/a/b", 1}};
       },
       absl::StatusCode::kDataLoss},
      {"prefix elsewhere", [](ListPage* p) { p->prefixes = {"other/a/"}; },
       absl::StatusCode::kDataLoss},
      {"prefix without slash", [](ListPage* p) { p->prefixes = {"runs/a"}; },
       absl::StatusCode::kDataLoss},
      {"prefix below a child", [](ListPage* p) { p->prefixes = {"runs/a/b/"}; },
       absl::StatusCode::kDataLoss},
      {"same page again", [](ListPage* p) { p->next = "again"; }, absl::StatusCode::kDataLoss},
      {"endless pages", [n = 0](ListPage* p) mutable { p->next = absl::StrCat("page ", ++n); },
       absl::StatusCode::kResourceExhausted},
      {"too many files",
       [](ListPage* p) {
         for (std::size_t i = 0; i <= fs::kListEntriesMax; ++i)
           p->objects.push_back({absl::StrCat("runs/", i), 1});
       },
       absl::StatusCode::kResourceExhausted},
  };
  for (const auto& c : cases) {
    INFO(c.name);
    Stage stage;
    stage.bucket.change_page = c.change;
    const absl::Status status = stage.files->List("s3://bucket/runs").status();
    CHECK(status.code() == c.code);
    CHECK_THAT(std::string(status.message()), Catch::Contains("path=s3://bucket/runs"));
  }
}

TEST_CASE("a folder is made by one empty object, and removed only when nothing else is in it") {
  for (const std::size_t page : {1, 1000}) {
    Stage stage(Small(), {"s3://bucket", page});
    REQUIRE(stage.files->MakeFolders("s3://bucket/a/b").ok());
    CHECK(stage.bucket.TakeCalls() == Calls{"Head a/b", "Head a/b/", "Put a/b/ [0]"});
    REQUIRE(stage.files->MakeFolders("s3://bucket/a/b").ok());
    CHECK(stage.bucket.TakeCalls() == Calls{"Head a/b", "Head a/b/"});
    CHECK(stage.bucket.Keys() == Calls{"a/b/"});
    CHECK(*stage.files->Exists("s3://bucket/a"));  // because of the object below it
    CHECK(*stage.files->Exists("s3://bucket/a/b"));
    CHECK_FALSE(*stage.files->Exists("s3://bucket/a/b/c"));

    stage.bucket.Write("a/b/c/d", "x");
    CHECK(absl::IsFailedPrecondition(stage.files->Remove("s3://bucket/a/b")));
    stage.bucket.Erase("a/b/c/d");
    stage.bucket.Write("a/b/.evergrad-probe-1", "x");
    CHECK(absl::IsFailedPrecondition(stage.files->Remove("s3://bucket/a/b")));
    stage.bucket.Erase("a/b/.evergrad-probe-1");
    CHECK(absl::IsFailedPrecondition(stage.files->Remove("s3://bucket/a")));
    REQUIRE(stage.files->Remove("s3://bucket/a/b").ok());
    CHECK(stage.bucket.Keys().empty());
    CHECK(absl::IsNotFound(stage.files->Remove("s3://bucket/a/b")));
    CHECK(absl::IsNotFound(stage.files->Remove("s3://bucket/a")));
  }
}

TEST_CASE("a removal deletes the file of a name before its folder, and failpoints apply to it") {
  Stage stage;
  for (const char* key : {"a", "a/", "b"}) stage.bucket.Write(key, "x");
  REQUIRE(stage.files->Remove("s3://bucket/a").ok());
  CHECK(stage.bucket.Keys() == Calls{"a/", "b"});
  REQUIRE(stage.failpoints.Arm("fs.remove=1*error;fs.sync_folder=1*error", 1).ok());
  CHECK(absl::IsInternal(stage.files->Remove("s3://bucket/b")));
  CHECK(stage.bucket.Contents("b") == "x");
  // As on a local disk, the file is removed before its folder is synced.
  CHECK(absl::IsInternal(stage.files->Remove("s3://bucket/b")));
  CHECK_FALSE(stage.bucket.Contents("b"));
}

TEST_CASE("a bucket is a folder that always exists") {
  Stage stage;
  CHECK(stage.files->MakeFolders("s3://bucket").ok());
  CHECK(absl::IsInvalidArgument(stage.files->Create("s3://bucket").status()));
  CHECK(absl::IsInvalidArgument(stage.files->Create("s3://bucket/").status()));
  CHECK(absl::IsFailedPrecondition(stage.files->Open("s3://bucket").status()));
  CHECK(absl::IsFailedPrecondition(stage.files->Remove("s3://bucket")));
  CHECK(stage.bucket.TakeCalls().empty());
  CHECK(*stage.files->Exists("s3://bucket"));
  CHECK(stage.files->List("s3://bucket")->empty());
}

TEST_CASE("names that are hidden or that end in a slash cannot be created") {
  Stage stage;
  for (const char* uri :
       {"s3://bucket/a/", "s3://bucket/.evergrad-probe-1", "s3://bucket/a/x.evergrad-part-"}) {
    const absl::Status status = stage.files->Create(uri).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(std::string(status.message()), Catch::Contains("path=s3://bucket/"));
  }
  CHECK(stage.bucket.TakeCalls().empty());
}

// Returns the errors of all operations for `uri`.
std::vector<absl::Status> AllErrors(fs::FileSystem& files, const std::string& uri) {
  return {files.Create(uri).status(), files.Open(uri).status(),   files.List(uri).status(),
          files.Remove(uri),          files.Exists(uri).status(), files.MakeFolders(uri)};
}

TEST_CASE("objects outside of the roots are refused before their store is opened") {
  const fs::Roots roots = fs::Roots::Only({"s3://bucket/in", "/tmp"}, "give --checkpoint-root");
  MemoryBucket bucket;
  int opened = 0;
  ObjectFileOptions options = Small();
  options.roots = &roots;
  const auto files = MakeObjectFileSystem(
      [&](fs::StoreKind, const std::string&) {
        ++opened;
        return bucket.Open();
      },
      options);
  for (const char* uri : {"s3://bucket", "s3://bucket/in2", "s3://other/in", "gs://bucket/in"}) {
    for (const absl::Status& status : AllErrors(*files, uri)) {
      CHECK(absl::IsPermissionDenied(status));
      CHECK(BlameOf(status) == Blame::kUser);
      CHECK_THAT(
          std::string(status.message()),
          Catch::StartsWith("a checkpoint's file lies outside of the allowed folders: path="));
    }
  }
  for (const absl::Status& status : AllErrors(*files, "s3://bucket/in/../x"))
    CHECK(absl::IsInvalidArgument(status));
  CHECK(opened == 0);
  REQUIRE(fs::WriteWhole(*files, "s3://bucket/in/a", "x").ok());
  CHECK(*fs::ReadWhole(*files, "s3://bucket/in/a", 9) == "x");
  CHECK(files->List("s3://bucket/in")->size() == 1);
}

TEST_CASE("each bucket is opened once, and a failed opening is repeated") {
  std::map<std::string, MemoryBucket> buckets;
  Calls opened;
  bool failing = true;
  const auto files = MakeObjectFileSystem(
      [&](fs::StoreKind kind,
          const std::string& bucket) -> absl::StatusOr<std::unique_ptr<ObjectStore>> {
        opened.push_back(absl::StrCat(kind == fs::StoreKind::kS3 ? "s3 " : "gs ", bucket));
        if (failing) return absl::NotFoundError("no credentials");
        return buckets[opened.back()].Open();
      },
      Small());
  for (const absl::Status& status : AllErrors(*files, "s3://bucket/a")) {
    CHECK(absl::IsNotFound(status));
    CHECK(status.message() == "no credentials");
  }
  CHECK(opened.size() == 6);
  opened.clear();
  failing = false;
  for (const char* uri : {"s3://bucket/a", "gs://bucket/a", "s3://second/a"}) {
    REQUIRE(fs::WriteWhole(*files, uri, uri).ok());
    CHECK(*fs::ReadWhole(*files, uri, 99) == uri);
  }
  CHECK(opened == Calls{"s3 bucket", "gs bucket", "s3 second"});
}

TEST_CASE("errors of the store keep their kinds, and name the path") {
  Stage stage;
  stage.bucket.before = [](const StoreCall&) {
    return absl::UnauthenticatedError("the store refuses the credentials");
  };
  for (const absl::Status& status : AllErrors(*stage.files, "s3://bucket/a")) {
    CHECK(absl::IsUnauthenticated(status));
    CHECK_THAT(std::string(status.message()),
               Catch::Contains("path=s3://bucket/a: the store refuses the credentials"));
  }
}

}  // namespace
}  // namespace evergrad::object_store
