// Tests what can happen only to a store on disk: another process opens it, records are torn, bytes
// are damaged, or the disk is full.
#include "coordinator/store/sqlite_state_store.h"

#include <sqlite3.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "common/base/status.h"
#include "common/fs/file.h"
#include "common/runtime/executor.h"
#include "coordinator/store/holder.h"
#include "store_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

Record Succeeded(std::uint64_t c) {
  Record record;
  record.succeeded_add.Add(c);
  return record;
}

// Copies the folder of an open store. The copy has the same files as if the process had been
// killed.
void CopyFolder(const std::string& from, const std::string& to) {
  std::filesystem::create_directories(to);
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    if (entry.path().filename() != "holder")
      std::filesystem::copy_file(entry.path(), to + "/" + entry.path().filename().string());
  }
}

TEST_CASE(
    "a second coordinator on one folder is refused with the holder's name, and the folder is free "
    "after the holder's end") {
  SqliteStage stage;
  auto first = stage.Open();
  REQUIRE(first.ok());
  stage.options.holder = "pid 2 on host there";
  const absl::Status second = stage.Open().status();
  CHECK(second.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(BlameOf(second) == Blame::kUser);
  CHECK_THAT(std::string(second.message()),
             Contains("another coordinator holds this state folder: holder=pid 1 on host here"));
  first->reset();
  CHECK_FALSE(fs::Exists(stage.options.folder + "/holder"));
  CHECK_FALSE(fs::Exists(stage.options.folder + "/journal.sqlite-wal"));
  CHECK(stage.Open().ok());
}

TEST_CASE("only its owner may read the journal, and permissions of other users are removed") {
  SqliteStage stage;
  namespace stdfs = std::filesystem;
  const auto others = [&](const char* file) {
    return stdfs::status(stage.options.folder + "/" + file).permissions() &
           (stdfs::perms::group_all | stdfs::perms::others_all);
  };
  auto store = stage.Open();
  REQUIRE(store.ok());
  REQUIRE((*store)->Commit(JobUid(1), Succeeded(0)).ok());
  CHECK(others("journal.sqlite") == stdfs::perms::none);
  CHECK(others("journal.sqlite-wal") == stdfs::perms::none);
  store->reset();
  stdfs::permissions(stage.options.folder + "/journal.sqlite", stdfs::perms::others_read,
                     stdfs::perm_options::add);
  store = stage.Open();
  REQUIRE(store.ok());
  CHECK(others("journal.sqlite") == stdfs::perms::none);
}

TEST_CASE("a torn tail is dropped whole and named, and earlier commits stay") {
  SqliteStage stage;
  stage.options.commit_every = std::chrono::milliseconds(0);
  auto store = stage.Open();
  REQUIRE(store.ok());
  // The store writes the first commit of a job into the database file at once.
  REQUIRE((*store)->Commit(JobUid(1), Record{}, "").ok());
  REQUIRE((*store)->Sync().ok());
  // Each of these commits is one transaction with two records. After damage either both records
  // must be there or none.
  std::vector<std::uint64_t> wal_bytes;
  for (std::uint64_t i = 0; i < 6; ++i) {
    Record record = Succeeded(i);
    record.todo_add[3].Add(i);
    REQUIRE((*store)->Commit(JobUid(1), record, "note " + std::to_string(i)).ok());
    REQUIRE((*store)->Sync().ok());
    wal_bytes.push_back(std::filesystem::file_size((*store)->path() + "-wal"));
  }
  for (const std::uint64_t cut : {1u, 100u, 4000u, 4120u, 5000u, 9000u}) {
    INFO("bytes cut: " << cut);
    SqliteStage after;
    CopyFolder(stage.options.folder, after.options.folder);
    const std::string wal = after.options.folder + "/journal.sqlite-wal";
    const std::uint64_t left = std::filesystem::file_size(wal) - cut;
    std::filesystem::resize_file(wal, left);
    const auto whole = static_cast<std::uint64_t>(std::count_if(
        wal_bytes.begin(), wal_bytes.end(), [&](std::uint64_t b) { return b <= left; }));
    auto again = after.Open();
    REQUIRE(again.ok());
    CHECK(((*again)->torn_bytes() > 0) == (cut % 4120 != 0));
    const StoredJob stored = *(*again)->LoadJob(JobUid(1));
    CHECK(stored.state.succeeded == IntervalSet::Range(0, whole));
    CHECK(stored.state.todo[3] == IntervalSet::Range(0, whole));
    CHECK(stored.notes.size() == whole);
    REQUIRE((*again)->Commit(JobUid(1), Succeeded(77)).ok());
    CHECK((*again)->Load(JobUid(1))->succeeded.Contains(77));
  }
}

TEST_CASE("a damaged file is refused with its name and a remedy") {
  SqliteStage stage;
  {
    auto store = stage.Open();
    REQUIRE(store.ok());
    for (std::uint64_t i = 0; i < 50; ++i) {
      REQUIRE((*store)
                  ->Commit(JobUid(i + 1), Succeeded(i),
                           std::string(2000, static_cast<char>('a' + i % 26)))
                  .ok());
    }
  }
  const std::string file = stage.options.folder + "/journal.sqlite";
  const auto patch = [&](std::uint64_t at, const std::string& bytes) {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(static_cast<std::streamoff>(at));
    out << bytes;
  };
  absl::Status status;
  SECTION("the file is no database") {
    patch(0, "garbage garbage garbage");
    status = stage.Open().status();
  }
  SECTION("pages were overwritten") {
    patch(8192, std::string(4096 * 4, '\xff'));
    status = stage.Open().status();
  }
  SECTION("a bit of a record was flipped") {
    // SQLite has no checksums of pages, so it does not detect this damage. The store's own checksum
    // detects it when the job is read.
    auto bytes = fs::ReadFile(file, 64u << 20);
    REQUIRE(bytes.ok());
    // Every copy of these bytes is damaged, because SQLite leaves the contents of released pages in
    // the file.
    REQUIRE(bytes->find("cccccccccccc") != std::string::npos);
    for (std::size_t at = 0; (at = bytes->find("cccccccccccc", at)) != std::string::npos; at += 12)
      patch(at, "C");
    auto store = stage.Open();
    INFO(store.status().ToString());
    REQUIRE(store.ok());
    for (std::uint64_t i = 0; i < 50; ++i) {
      if (const auto stored = (*store)->LoadJob(JobUid(i + 1)); !stored.ok())
        status = stored.status();
    }
  }
  CHECK(status.code() == absl::StatusCode::kDataLoss);
  CHECK_THAT(std::string(status.message()), Contains("journal is damaged") && Contains(file) &&
                                                Contains("move the folder to another place"));
}

TEST_CASE("a -wal file with damage before its last commits is refused, and no job is forgotten") {
  SqliteStage stage;
  stage.options.commit_every = std::chrono::milliseconds(0);
  auto store = stage.Open();
  REQUIRE(store.ok());
  REQUIRE((*store)->Commit(JobUid(1), Record{}, "").ok());
  REQUIRE((*store)->Sync().ok());
  std::vector<std::uint64_t> ends;  // the offset at which each transaction ends in the file
  constexpr std::uint64_t kCommits = 6;
  for (std::uint64_t i = 0; i < kCommits; ++i) {
    REQUIRE(
        (*store)->Commit(JobUid(1), Succeeded(i), std::string(i % 2 == 0 ? 10 : 9000, 'n')).ok());
    REQUIRE((*store)->Sync().ok());
    ends.push_back(std::filesystem::file_size((*store)->path() + "-wal"));
  }
  const auto refused = [&](std::uint64_t at) {
    SqliteStage after;
    CopyFolder(stage.options.folder, after.options.folder);
    const std::string wal = after.options.folder + "/journal.sqlite-wal";
    {
      std::fstream file(wal, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(at));
      const char byte = static_cast<char>(file.get() ^ 4);
      file.seekp(static_cast<std::streamoff>(at));
      file.put(byte);
    }
    auto again = after.Open();
    const bool was_refused = !again.ok();
    if (was_refused) {
      CHECK(again.status().code() == absl::StatusCode::kDataLoss);
      CHECK_THAT(std::string(again.status().message()),
                 Contains("journal is damaged") && Contains(wal) &&
                     Contains("move the folder to another place"));
      if (at < 32) return true;
      // The error names a way to repair the file, which must work.
      const std::uint64_t offset = 32 + (at - 32) / 4120 * 4120;
      CHECK_THAT(std::string(again.status().message()),
                 Contains("offset=" + std::to_string(offset) + ";"));
      std::filesystem::resize_file(wal, offset);
      again = after.Open();
    }
    INFO(again.status());
    REQUIRE(again.ok());
    CHECK((*again)->Load(JobUid(1))->succeeded.size() ==
          static_cast<std::size_t>(std::count_if(ends.begin(), ends.end(),
                                                 [&](std::uint64_t end) { return end <= at; })));
    return was_refused;
  };
  for (const std::uint64_t at : {0, 9, 13, 17, 25}) CHECK(refused(at));
  for (std::uint64_t frame = 32; frame < ends.back(); frame += 4120) {
    const auto before = static_cast<std::uint64_t>(
        std::count_if(ends.begin(), ends.end(), [&](std::uint64_t end) { return end <= frame; }));
    for (const std::uint64_t in : {1, 6, 10, 18, 23, 24, 1000, 4119}) {
      CAPTURE(frame, in, before);
      const bool was_refused = refused(frame + in);
      if (before + 3 < kCommits) CHECK(was_refused);
      // If only the last transaction is damaged, the store must open, because this transaction may
      // never have been complete.
      if (before + 1 == kCommits) CHECK_FALSE(was_refused);
    }
  }
}

// The files that a killed coordinator leaves. The database file has a job, and the -wal file has
// later changes of the job.
struct Killed {
  SqliteStage stage, after;
  std::string database, wal;
  Killed() {
    stage.options.commit_every = std::chrono::milliseconds(0);
    auto store = stage.Open();
    REQUIRE(store.ok());
    REQUIRE((*store)->Commit(JobUid(1), Succeeded(0), "submitted").ok());
    REQUIRE((*store)->Sync().ok());
    REQUIRE((*store)->Commit(JobUid(1), Succeeded(1), "later").ok());
    REQUIRE((*store)->Sync().ok());
    CopyFolder(stage.options.folder, after.options.folder);
    database = after.options.folder + "/journal.sqlite";
    wal = database + "-wal";
    REQUIRE(std::filesystem::file_size(wal) > 0);
  }
};

TEST_CASE(
    "a missing or empty journal beside a -wal file is refused as damaged, and both files stay "
    "unchanged") {
  Killed killed;
  const bool missing = GENERATE(true, false);
  const std::string before = *fs::ReadFile(killed.wal, 1u << 20);
  if (missing) {
    std::filesystem::remove(killed.database);
  } else {
    std::filesystem::resize_file(killed.database, 0);
  }
  const absl::Status status = killed.after.Open().status();
  CHECK(status.code() == absl::StatusCode::kDataLoss);
  CHECK_THAT(std::string(status.message()),
             Contains("journal is damaged") &&
                 Contains(killed.database + (missing ? " is missing" : " is empty")) &&
                 Contains("holds " + std::to_string(before.size()) + " bytes of changes") &&
                 Contains("--forget-unknown-jobs"));
  CHECK(*fs::ReadFile(killed.wal, 1u << 20) == before);
  CHECK(fs::Exists(killed.database) == !missing);
}

TEST_CASE(
    "an orphaned -wal file is kept under a new name each time an operator begins without its "
    "jobs") {
  Killed killed;
  const std::string before = *fs::ReadFile(killed.wal, 1u << 20);
  killed.after.options.forget_unknown_jobs = true;
  for (const char* kept : {".orphaned", ".orphaned-2"}) {
    std::filesystem::resize_file(killed.database, 0);
    {
      auto store = killed.after.Open();
      REQUIRE(store.ok());
      CHECK((*store)->ListJobs()->empty());
    }
    CHECK(*fs::ReadFile(killed.wal + kept, 1u << 20) == before);
    std::ofstream(killed.wal, std::ios::binary) << before;
  }
}

TEST_CASE("the first commit of a job is in the database file, not only in the -wal file") {
  Killed killed;
  std::filesystem::remove(killed.wal);
  auto store = killed.after.Open();
  REQUIRE(store.ok());
  CHECK((*store)->LoadJob(JobUid(1))->notes == std::vector<std::string>{"submitted"});
}

TEST_CASE("a file of a newer version or of another program is refused and unchanged") {
  SqliteStage stage;
  { REQUIRE(stage.Open().ok()); }
  const std::string file = stage.options.folder + "/journal.sqlite";
  std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
  SECTION("the file has a newer version") {
    out.seekp(60);  // user_version is at this offset, big-endian
    out.write("\0\0\0\x09", 4);
    out.close();
    CHECK_THAT(std::string(stage.Open().status().message()),
               Contains("newer version") && Contains("schema=9 known=1"));
  }
  SECTION("the file belongs to another program") {
    out.seekp(68);  // application_id is at this offset
    out.write("\x01\x02\x03\x04", 4);
    out.close();
    CHECK_THAT(std::string(stage.Open().status().message()),
               Contains("not a journal of the coordinator"));
  }
}

TEST_CASE("a full disk is reported, loses no commit, and ends once there is space") {
  SqliteStage stage;
  stage.options.commit_every = std::chrono::milliseconds(0);
  auto store = stage.Open();
  REQUIRE(store.ok());
  REQUIRE((*store)->Commit(JobUid(1), Succeeded(1)).ok());
  REQUIRE((*store)->Sync().ok());
  REQUIRE(stage.failpoints.Arm("journal.full=1*error,2*error,3*error", 1).ok());
  REQUIRE((*store)->Commit(JobUid(1), Succeeded(2), "kept").ok());
  REQUIRE((*store)->Commit(JobUid(1), Succeeded(3)).ok());
  for (int i = 0; i < 1000 && !(*store)->Sync().ok(); ++i) {
    CHECK((*store)->durable() < (*store)->accepted());
    CHECK((*store)->health().code() == absl::StatusCode::kResourceExhausted);
    runtime::WaitableEvent nobody;
    nobody.WaitFor(std::chrono::milliseconds(5));
  }
  CHECK((*store)->health().ok());
  CHECK((*store)->durable() == 3);
  CHECK((*store)->Load(JobUid(1))->succeeded == IntervalSet::Range(1, 4));
  CHECK(stage.registry
            .GetCounter("evergrad_coordinator_journal_failures_total",
                        "failed group commits, including retries")
            .value() == 3);
}

TEST_CASE("a file at its limit is a full disk, and a removal frees space") {
  SqliteStage stage;
  stage.options.file_bytes_max = 128 * 1024;
  auto store = stage.Open();
  REQUIRE(store.ok());
  REQUIRE((*store)->Commit(JobUid(1), Succeeded(1), std::string(60'000, 'a')).ok());
  REQUIRE((*store)->Sync().ok());
  REQUIRE((*store)->Commit(JobUid(2), Succeeded(1), std::string(90'000, 'b')).ok());
  absl::Status health;
  for (int i = 0; i < 1000 && health.ok(); ++i) {
    runtime::WaitableEvent nobody;
    nobody.WaitFor(std::chrono::milliseconds(2));
    health = (*store)->health();
  }
  CHECK(health.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(health.message()),
             Contains("out of space for the coordinator's journal") && Contains("journal.sqlite"));
  // The message must have the error of the failed write. The rollback after this write fails with
  // another error.
  CHECK_THAT(std::string(health.message()),
             EndsWith("reason=sqlite=database or disk is full (13) text=database or disk is full"));
}

TEST_CASE(
    "the metric of the journal's size follows its content, also before SQLite rewrites its file") {
  SqliteStage stage;
  stage.options.file_bytes_max = 64 << 20;
  auto store = stage.Open();
  REQUIRE(store.ok());
  metrics::Gauge& size = stage.registry.GetGauge(
      "evergrad_coordinator_journal_file_bytes_current",
      "size of the journal without free pages, including its -wal file (--state-bytes-max) (now)");
  CHECK((size.value() > 0 && size.value() < 100'000));
  REQUIRE((*store)->Checkpoint(JobUid(1), DurableState{}, std::string(1'000'000, 'a')).ok());
  REQUIRE((*store)->Sync().ok());
  const auto follows = [&](double low, double high) {
    for (int i = 0; i < 1000 && (size.value() < low || size.value() > high); ++i) {
      runtime::WaitableEvent nobody;
      nobody.WaitFor(std::chrono::milliseconds(2));
    }
    CAPTURE(size.value());
    CHECK((size.value() >= low && size.value() <= high));
  };
  follows(1'000'000, 1'100'000);
  REQUIRE((*store)->Remove(JobUid(1)).ok());
  REQUIRE((*store)->Sync().ok());
  follows(1, 100'000);
}

TEST_CASE(
    "pending writes are bounded, and a commit above the limit and all later ones are refused") {
  SqliteStage stage;
  stage.options.queue_bytes_max = 10'000;
  auto store = stage.Open();
  REQUIRE(store.ok());
  REQUIRE(stage.failpoints.Arm("journal.full=error", 1).ok());
  CHECK((*store)->Commit(JobUid(1), Succeeded(1), std::string(5000, 'a')).ok());
  CHECK((*store)->Commit(JobUid(1), Succeeded(2), std::string(5000, 'a')).code() ==
        absl::StatusCode::kResourceExhausted);
  CHECK_FALSE((*store)->Commit(JobUid(1), Succeeded(3)).ok());
  CHECK((*store)->health().code() == absl::StatusCode::kResourceExhausted);
}

TEST_CASE(
    "the removal of the state folder is reported, with or without a commit, and commits continue") {
  SqliteStage stage;
  stage.options.commit_every = std::chrono::milliseconds(0);
  const bool idle = GENERATE(false, true);
  CAPTURE(idle);
  stage.options.look_every = idle ? std::chrono::milliseconds(2) : std::chrono::hours(1);
  auto store = stage.Open();
  REQUIRE(store.ok());
  runtime::WaitableEvent heard;
  REQUIRE((*store)->Commit(JobUid(1), Succeeded(1)).ok());
  REQUIRE((*store)->Sync().ok());
  CHECK((*store)->place().ok());
  std::filesystem::remove_all(stage.options.folder);
  if (idle) {
    (*store)->SetListener([&] { heard.Set(); });
    CHECK(heard.WaitFor(std::chrono::seconds(10)));
  } else {
    REQUIRE((*store)->Commit(JobUid(1), Succeeded(2)).ok());
    REQUIRE((*store)->Sync().ok());
    CHECK((*store)->Load(JobUid(1))->succeeded == IntervalSet::Range(1, 3));
  }
  const absl::Status place = (*store)->place();
  CHECK(place.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(place.message()),
             Contains("was removed or replaced while this coordinator runs: file=" +
                      stage.options.folder + "/journal.sqlite is missing") &&
                 Contains("/proc/" + std::to_string(::getpid()) + "/fd"));
  CHECK((*store)->health().ok());
  (*store)->SetListener({});
}

TEST_CASE("the open files of a store in a removed folder can be saved from /proc and used again") {
  SqliteStage stage;
  auto store = stage.Open();
  REQUIRE(store.ok());
  std::filesystem::remove_all(stage.options.folder);
  REQUIRE((*store)->Commit(JobUid(1), Succeeded(1), "kept").ok());
  REQUIRE((*store)->Sync().ok());
  const std::string saved = stage.folder / "saved";
  std::filesystem::create_directories(saved);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    for (const char* name : {"journal.sqlite", "journal.sqlite-wal"}) {
      if (target == stage.options.folder + "/" + name + " (deleted)")
        std::filesystem::copy_file(entry.path(), saved + "/" + name);
    }
  }
  stage.options.folder = saved;
  auto next = stage.Open();
  INFO(next.status());
  REQUIRE(next.ok());
  CHECK((*next)->LoadJob(JobUid(1))->notes == std::vector<std::string>{"kept"});
}

TEST_CASE(
    "a restored state folder is used again, and a store whose folder was replaced leaves the new "
    "folder alone") {
  SqliteStage stage;
  stage.options.look_every = std::chrono::hours(1);
  auto store = stage.Open();
  REQUIRE(store.ok());
  const std::string folder = stage.options.folder, aside = stage.folder / "aside";
  std::uint64_t closure = 0;
  const auto place = [&] {
    REQUIRE((*store)->Commit(JobUid(1), Succeeded(++closure)).ok());
    REQUIRE((*store)->Sync().ok());
    return (*store)->place();
  };
  std::filesystem::rename(folder, aside);
  CHECK_FALSE(place().ok());
  std::filesystem::rename(aside, folder);
  CHECK(place().ok());
  std::filesystem::rename(folder + "/journal.sqlite-wal", folder + "/else");
  CHECK_THAT(std::string(place().message()), Contains("journal.sqlite-wal is missing"));
  std::filesystem::rename(folder + "/else", folder + "/journal.sqlite-wal");
  CHECK(place().ok());

  std::filesystem::rename(folder, aside);
  auto other = stage.Open();
  REQUIRE(other.ok());
  REQUIRE((*other)->Commit(JobUid(2), Succeeded(1)).ok());
  REQUIRE((*other)->Sync().ok());
  CHECK_THAT(std::string(place().message()), Contains("journal.sqlite is another file"));
  store->reset();
  CHECK(fs::Exists(folder + "/journal.sqlite-wal"));
  REQUIRE((*other)->Commit(JobUid(2), Succeeded(2)).ok());
  REQUIRE((*other)->Sync().ok());
  CHECK((*other)->place().ok());
}

TEST_CASE("the listener is told of durable commits") {
  SqliteStage stage;
  auto store = stage.Open();
  REQUIRE(store.ok());
  runtime::WaitableEvent heard;
  (*store)->SetListener([&] { heard.Set(); });
  REQUIRE((*store)->Commit(JobUid(1), Succeeded(1)).ok());
  CHECK(heard.WaitFor(std::chrono::seconds(10)));
  REQUIRE((*store)->Sync().ok());
  (*store)->SetListener({});
}

// While an object of this class exists, SQLite finds no folder for temporary files, as in a
// container whose root is read-only. The class counts the attempts of SQLite to find one.
class NoTemporaryFiles {
 public:
  NoTemporaryFiles() {
    attempts = 0;
    system_ = ::sqlite3_vfs_find(nullptr);
    without_ = *system_;
    without_.zName = "without temporary files";
    without_.xOpen = [](sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out) {
      if (name != nullptr) return system_->xOpen(system_, name, file, flags, out);
      ++attempts;
      file->pMethods = nullptr;
      return SQLITE_IOERR_GETTEMPPATH;
    };
    ::sqlite3_vfs_register(&without_, 1);
  }
  ~NoTemporaryFiles() {
    ::sqlite3_vfs_unregister(&without_);
    ::sqlite3_vfs_register(system_, 1);
  }
  static inline std::atomic<int> attempts = 0;

 private:
  static inline sqlite3_vfs* system_ = nullptr;
  sqlite3_vfs without_;
};

TEST_CASE("the journal of a large job needs no folder for temporary files") {
  const NoTemporaryFiles none;
  SqliteStage stage;
  auto store = stage.Open();
  REQUIRE(store.ok());
  for (std::uint64_t round = 0; round < 20; ++round) {
    for (std::uint64_t c = 0; c < 50; ++c)
      REQUIRE((*store)->Commit(JobUid(1 + c % 3), Succeeded(2 * (50 * round + c)), "step").ok());
    const auto state = (*store)->Load(JobUid(1));
    REQUIRE(state.ok());
    REQUIRE((*store)->Checkpoint(JobUid(1), *state, std::string(400'000 + round, 'a')).ok());
    REQUIRE((*store)->Sync().ok());
  }
  CHECK((*store)->health().ok());
  CHECK(NoTemporaryFiles::attempts == 0);
}

TEST_CASE("network file systems are refused by name") {
  CHECK(NetworkFileSystemName(0x6969) == "nfs");
  CHECK(NetworkFileSystemName(static_cast<long>(0xff534d42)) == "cifs");
  CHECK(NetworkFileSystemName(static_cast<long>(static_cast<int>(0xfe534d42))) == "smb2");
  CHECK(NetworkFileSystemName(0x65735546) == "fuse");
  CHECK(NetworkFileSystemName(0xef53).empty());      // ext4
  CHECK(NetworkFileSystemName(0x01021994).empty());  // tmpfs
  test::TempFolder folder;
  CHECK(CheckLocalFileSystem(folder / "").ok());
}

}  // namespace
}  // namespace evergrad::coordinator
