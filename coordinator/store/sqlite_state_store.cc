#include "coordinator/store/sqlite_state_store.h"

#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/fs/file.h"
#include "common/fs/file_system.h"
#include "common/runtime/executor.h"
#include "coordinator/store/holder.h"
#include "coordinator/store/orphaned_wal.h"
#include "coordinator/store/record_codec.h"
#include "coordinator/store/wal_damage.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr int kApplicationId = 0x65766a31;  // "evj1"
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kWalHeaderBytes = 32, kWalFrameHeaderBytes = 24;
constexpr std::uint64_t kOverheadBytes = 256;  // approximate overhead of a queued commit

constexpr char kSchema[] =
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE job(number INTEGER PRIMARY KEY, uid INTEGER NOT NULL UNIQUE, state BLOB NOT "
    "NULL, snapshot BLOB NOT NULL, crc INTEGER NOT NULL);"
    "CREATE TABLE entry(number INTEGER PRIMARY KEY, uid INTEGER NOT NULL, body BLOB NOT NULL, crc "
    "INTEGER NOT NULL);"
    "CREATE INDEX entry_of_job ON entry(uid, number);"
    "INSERT INTO meta VALUES('term', 0);";

std::int64_t Crc(absl::string_view a, absl::string_view b = {}) {
  uLong crc = ::crc32(0, reinterpret_cast<const Bytef*>(a.data()), static_cast<uInt>(a.size()));
  // With 0 bytes zlib would restart the checksum.
  if (!b.empty())
    crc = ::crc32(crc, reinterpret_cast<const Bytef*>(b.data()), static_cast<uInt>(b.size()));
  return static_cast<std::int64_t>(crc);
}

class Statement {
 public:
  ~Statement() { ::sqlite3_finalize(raw_); }
  Statement() = default;
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  int Prepare(sqlite3* db, const char* sql) {
    return ::sqlite3_prepare_v2(db, sql, -1, &raw_, nullptr);
  }
  Statement& Int(int index, std::int64_t value) {
    ::sqlite3_bind_int64(raw_, index, value);
    return *this;
  }
  Statement& Blob(int index, absl::string_view bytes) {
    ::sqlite3_bind_blob64(raw_, index, bytes.empty() ? "" : bytes.data(), bytes.size(),
                          SQLITE_STATIC);
    return *this;
  }
  Statement& Text(int index, absl::string_view text) {
    ::sqlite3_bind_text64(raw_, index, text.data(), text.size(), SQLITE_STATIC, SQLITE_UTF8);
    return *this;
  }
  int Step() { return ::sqlite3_step(raw_); }
  // Runs a statement without rows and resets it for the next use.
  int Run() {
    const int code = ::sqlite3_step(raw_);
    ::sqlite3_reset(raw_);
    return code == SQLITE_DONE ? SQLITE_OK : code;
  }
  // Returns the number in the statement's only row, or 0, and resets the statement.
  std::int64_t Number() {
    const std::int64_t number = ::sqlite3_step(raw_) == SQLITE_ROW ? Int(0) : 0;
    ::sqlite3_reset(raw_);
    return number;
  }
  std::int64_t Int(int column) { return ::sqlite3_column_int64(raw_, column); }
  std::string Blob(int column) {
    const void* data = ::sqlite3_column_blob(raw_, column);
    return data == nullptr
               ? std::string()
               : std::string(static_cast<const char*>(data),
                             static_cast<std::size_t>(::sqlite3_column_bytes(raw_, column)));
  }

 private:
  sqlite3_stmt* raw_ = nullptr;
};

// The identity of the file at a path; nullopt if there is none.
using FileId = std::optional<std::pair<dev_t, ino_t>>;
FileId IdOf(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return std::pair(info.st_dev, info.st_ino);
}

std::uint64_t FileBytes(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

// Returns the size of the bytes after the last complete frame, a write that the end of the process
// or machine interrupted. SQLite drops them, and all frames with wrong checksums.
std::uint64_t TornBytes(const std::string& wal) {
  const std::uint64_t bytes = FileBytes(wal);
  if (bytes <= kWalHeaderBytes) return bytes % kWalHeaderBytes;
  return (bytes - kWalHeaderBytes) % (kWalFrameHeaderBytes + kPageBytes);
}

// The contents of one commit.
struct PutTerm {
  Term term;
};
struct PutEntry {
  JobUid job;
  Record record;
  std::string note;
};
struct PutJob {
  JobUid job;
  std::string state, snapshot;
};
struct DropJob {
  JobUid job;
  std::optional<JobUid> forgotten;  // an earlier removal whose record is dropped
};
using Change = std::variant<PutTerm, PutEntry, PutJob, DropJob>;

}  // namespace

struct SqliteStateStore::Impl {
  Impl(SqliteStoreOptions o, Parts p)
      : options(std::move(o)),
        parts(p),
        path(absl::StrCat(options.folder, "/journal.sqlite")),
        queue_limit(*p.registry, "evergrad_coordinator_journal_queue_bytes",
                    "bytes that the journal has accepted and not yet written to disk",
                    static_cast<double>(options.queue_bytes_max)),
        file_limit(
            *p.registry, "evergrad_coordinator_journal_file_bytes",
            "size of the journal without free pages, including its -wal file (--state-bytes-max)",
            static_cast<double>(options.file_bytes_max)),
        commits_total(p.registry->GetCounter("evergrad_coordinator_journal_commits_total",
                                             "group commits of the journal")),
        changes_total(p.registry->GetCounter("evergrad_coordinator_journal_changes_total",
                                             "changes committed to the journal")),
        failures_total(p.registry->GetCounter("evergrad_coordinator_journal_failures_total",
                                              "failed group commits, including retries")),
        seconds(p.registry->GetHistogram(
            "evergrad_coordinator_journal_commit_seconds",
            "duration of a group commit, its sync included",
            {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5})) {}
  ~Impl() {
    entry_put.reset();
    entry_drop.reset();
    job_put.reset();
    job_drop.reset();
    term_put.reset();
    pages_used.reset();
    removed_put.reset();
    removed_drop.reset();
    if (db != nullptr) ::sqlite3_close(db);
  }

  // Call it before the next call of the database, because a rollback replaces the text.
  std::string DbError(int code) const {
    return absl::StrCat(
        "sqlite=", ::sqlite3_errstr(code), " (", code, ")",
        db != nullptr ? absl::StrCat(" text=", ::sqlite3_errmsg(db)) : std::string());
  }
  absl::Status Damaged(absl::string_view what) const {
    return absl::DataLossError(
        absl::StrCat("the coordinator's journal is damaged: restore the folder from a copy, or "
                     "move the folder to another place and start without the jobs in it (with "
                     "--forget-unknown-jobs if parameter servers still hold shards of them): file=",
                     path, " reason=", what));
  }
  absl::Status OpenError(int code) const {
    const int primary = code & 0xff;
    if (primary == SQLITE_NOTADB || primary == SQLITE_CORRUPT) return Damaged(DbError(code));
    if (primary == SQLITE_BUSY) {
      return UserError(absl::FailedPreconditionError(
          absl::StrCat("another process has the journal open: file=", path)));
    }
    return absl::InternalError(
        absl::StrCat("cannot open the journal: file=", path, " ", DbError(code)));
  }
  absl::Status Exec(const char* sql) {
    const int code = ::sqlite3_exec(db, sql, nullptr, nullptr, nullptr);
    return code == SQLITE_OK ? absl::OkStatus() : OpenError(code);
  }
  absl::StatusOr<std::int64_t> ReadInt(const char* sql) {
    Statement statement;
    int code = statement.Prepare(db, sql);
    if (code != SQLITE_OK) return OpenError(code);
    code = statement.Step();
    if (code != SQLITE_ROW)
      return code == SQLITE_DONE ? Damaged(absl::StrCat("no result of: ", sql)) : OpenError(code);
    return statement.Int(0);
  }

  // Called before SQLite sees the files. SQLite would delete a -wal file whose database is missing
  // or empty, and this file may be the only record of all jobs.
  absl::Status CheckPair() {
    const std::uint64_t bytes = OrphanedWalBytes(path);
    if (bytes == 0) return absl::OkStatus();
    if (!options.forget_unknown_jobs) {
      return absl::DataLossError(
          absl::StrCat("the coordinator's journal is damaged: ", path,
                       fs::Exists(path) ? " is empty" : " is missing", ", but ", path,
                       "-wal beside it holds ", bytes,
                       " bytes of changes, which may be the only record of the jobs that ran. "
                       "Nothing was changed. Restore both files from one copy of the folder; or, "
                       "to start without these jobs, use --forget-unknown-jobs, which keeps the "
                       "-wal file under another name"));
    }
    EG_ASSIGN_OR_RETURN(const std::string kept, SetWalAside(path));
    parts.logger->Warning(
        absl::StrCat("--forget-unknown-jobs: the journal starts empty, without the jobs of its "
                     "orphaned -wal file, which was kept: file=",
                     kept, " bytes=", bytes));
    return absl::OkStatus();
  }

  // Runs on the opening thread, before the journal thread has work.
  absl::Status Open() {
    EG_RETURN_IF_ERROR(fs::MakeDirectories(options.folder));
    EG_RETURN_IF_ERROR(CheckLocalFileSystem(options.folder));
    EG_ASSIGN_OR_RETURN(holder, Holder::Take(options.folder, options.holder));
    EG_RETURN_IF_ERROR(CheckPair());
    if (const auto at = DamagedWalAt(path + "-wal")) {
      return Damaged(absl::StrCat(
          "a frame of its -wal file is corrupt, and later commits follow it: file=", path,
          "-wal offset=", *at,
          *at == 0 ? ""
                   : "; truncated at this offset (truncate -s), the file keeps only the commits "
                     "before it"));
    }
    torn_bytes = TornBytes(path + "-wal");
    int code = ::sqlite3_open_v2(path.c_str(), &db,
                                 SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                                 nullptr);
    if (code != SQLITE_OK) return OpenError(code);
    ::sqlite3_extended_result_codes(db, 1);
    // Exclusive mode, set before WAL, keeps the index of the WAL in memory, so no -shm file is
    // created.
    for (const char* pragma :
         {"PRAGMA page_size=4096", "PRAGMA locking_mode=EXCLUSIVE", "PRAGMA journal_mode=WAL",
          "PRAGMA synchronous=FULL", "PRAGMA wal_autocheckpoint=1000", "PRAGMA auto_vacuum=NONE",
          "PRAGMA foreign_keys=OFF"}) {
      EG_RETURN_IF_ERROR(Exec(pragma));
    }
    // The journal holds the keys that prove grants [34]. A -wal file that is created later gets the
    // permissions of the database.
    for (const std::string& file : {path, path + "-wal"}) {
      if (::chmod(file.c_str(), 0600) != 0 && errno != ENOENT)
        return fs::FileError(errno, "cannot restrict the permissions of the journal", file);
    }
    EG_RETURN_IF_ERROR(
        Exec(absl::StrCat("PRAGMA max_page_count=",
                          std::max<std::uint64_t>(options.file_bytes_max / kPageBytes, 16))
                 .c_str()));
    EG_ASSIGN_OR_RETURN(const std::int64_t version, ReadInt("PRAGMA user_version"));
    EG_ASSIGN_OR_RETURN(const std::int64_t tables, ReadInt("SELECT count(*) FROM sqlite_master"));
    if (version > kSchemaVersion) {
      return UserError(absl::FailedPreconditionError(
          absl::StrCat("the journal was written by a newer version of the coordinator: file=", path,
                       " schema=", version, " known=", kSchemaVersion)));
    }
    if (version == 0 && tables == 0) {
      EG_RETURN_IF_ERROR(
          Exec(absl::StrCat("BEGIN EXCLUSIVE;", kSchema, "PRAGMA application_id=", kApplicationId,
                            ";PRAGMA user_version=", kSchemaVersion, ";COMMIT")
                   .c_str()));
    } else {
      EG_ASSIGN_OR_RETURN(const std::int64_t application, ReadInt("PRAGMA application_id"));
      if (application != kApplicationId || version != kSchemaVersion) {
        return UserError(absl::FailedPreconditionError(
            absl::StrCat("the file is not a journal of the coordinator: file=", path,
                         " application_id=", application, " schema=", version)));
      }
      EG_RETURN_IF_ERROR(CheckWhole());
    }
    EG_ASSIGN_OR_RETURN(const std::int64_t stored_term,
                        ReadInt("SELECT value FROM meta WHERE key='term'"));
    term = Term(static_cast<std::uint64_t>(stored_term));
    EG_RETURN_IF_ERROR(ReadNumbers());
    EG_RETURN_IF_ERROR(ReadRemoved());
    entry_put = std::make_unique<Statement>();
    entry_drop = std::make_unique<Statement>();
    job_put = std::make_unique<Statement>();
    job_drop = std::make_unique<Statement>();
    term_put = std::make_unique<Statement>();
    pages_used = std::make_unique<Statement>();
    removed_put = std::make_unique<Statement>();
    removed_drop = std::make_unique<Statement>();
    for (const auto& [statement, sql] : std::vector<std::pair<Statement*, const char*>>{
             {entry_put.get(), "INSERT INTO entry VALUES(?1,?2,?3,?4)"},
             {entry_drop.get(), "DELETE FROM entry WHERE uid=?1"},
             {job_put.get(), "INSERT OR REPLACE INTO job VALUES(?1,?2,?3,?4,?5)"},
             {job_drop.get(), "DELETE FROM job WHERE uid=?1"},
             {term_put.get(), "UPDATE meta SET value=?1 WHERE key='term'"},
             {removed_put.get(), "INSERT OR IGNORE INTO meta VALUES('removed/' || ?1, ?2)"},
             {removed_drop.get(), "DELETE FROM meta WHERE key='removed/' || ?1"},
             {pages_used.get(),
              "SELECT page_count - freelist_count FROM pragma_page_count, "
              "pragma_freelist_count"}}) {
      code = statement->Prepare(db, sql);
      if (code != SQLITE_OK) return OpenError(code);
    }
    ShowSize();
    if (torn_bytes > 0) {
      parts.logger->Warning(
          absl::StrCat("the journal's tail was torn; incomplete commits were dropped: file=", path,
                       "-wal bytes=", torn_bytes));
    }
    database_id = IdOf(path);
    wal_id = IdOf(path + "-wal");
    journal = std::make_unique<runtime::ThreadExecutor>(
        runtime::ThreadExecutor::Options{.name = "journal"});
    LookLater();
    return absl::OkStatus();
  }

  // Returns OK if a start with this folder would find the journal of this process. If there was no
  // -wal file, SQLite creates it with its first commit; it keeps an existing one.
  absl::Status Look() {
    const FileId now = IdOf(path), wal = IdOf(path + "-wal");
    const bool here = now && now == database_id;
    if (here && !wal_id) wal_id = wal;
    if (here && wal == wal_id) return absl::OkStatus();
    const std::string which = here ? absl::StrCat(path, "-wal") : path;
    const std::string pid = absl::StrCat(::getpid());
    return absl::FailedPreconditionError(
        absl::StrCat("the state folder, or the journal in it, was removed or replaced while this "
                     "coordinator runs: file=",
                     which, (here ? wal : now) ? " is another file" : " is missing",
                     "; its jobs continue, and are lost when it ends. Move the folder back if it "
                     "was moved. Otherwise save the open files: pause the coordinator (kill -STOP ",
                     pid, "), copy what `ls -l /proc/", pid,
                     "/fd` shows as journal.sqlite and journal.sqlite-wal (cp /proc/", pid,
                     "/fd/N) to a new folder under these names, end it (kill -KILL ", pid,
                     ") and start it with --state-dir on that folder"));
  }

  void LookLater() {
    journal->PostAfter(options.look_every, [this] {
      absl::Status now = Look();
      std::function<void()> tell;
      {
        MutexLock lock(&mu);
        if (now.ok() != place.ok()) tell = listener;
        place = std::move(now);
      }
      if (tell) tell();
      LookLater();
    });
  }

  // Shows the size of the pages in use. The database file alone shows little, because SQLite
  // rewrites it only from time to time and uses the -wal file in between.
  void ShowSize() {
    file_limit.current.Set(static_cast<double>(pages_used->Number()) *
                           static_cast<double>(kPageBytes));
  }

  absl::Status CheckWhole() {
    Statement check;
    int code = check.Prepare(db, "PRAGMA quick_check(1)");
    if (code == SQLITE_OK) code = check.Step();
    if (code != SQLITE_ROW) return OpenError(code == SQLITE_DONE ? SQLITE_CORRUPT : code);
    const std::string answer = check.Blob(0);
    return answer == "ok" ? absl::OkStatus() : Damaged(answer.substr(0, 300));
  }

  // Reads the numbers of jobs in their order, and the next number of an entry.
  absl::Status ReadNumbers() {
    Statement jobs;
    int code = jobs.Prepare(db, "SELECT number, uid FROM job ORDER BY number");
    if (code != SQLITE_OK) return OpenError(code);
    while ((code = jobs.Step()) == SQLITE_ROW) {
      const JobUid uid(static_cast<std::uint64_t>(jobs.Int(1)));
      order.push_back(uid);
      numbers[uid] = jobs.Int(0);
      next_job = jobs.Int(0) + 1;
    }
    if (code != SQLITE_DONE) return OpenError(code);
    EG_ASSIGN_OR_RETURN(next_entry, ReadInt("SELECT coalesce(max(number), 0) + 1 FROM entry"));
    return absl::OkStatus();
  }

  absl::Status ReadRemoved() {
    Statement rows;
    int code = rows.Prepare(
        db, "SELECT substr(key, 9), value FROM meta WHERE key LIKE 'removed/%' ORDER BY value");
    if (code != SQLITE_OK) return OpenError(code);
    while ((code = rows.Step()) == SQLITE_ROW) {
      std::uint64_t uid = 0;
      if (!absl::SimpleHexAtoi(rows.Blob(0), &uid))
        return Damaged(
            absl::StrCat("invalid name of a removed job: ", rows.Blob(0).substr(0, 100)));
      removed.Add(JobUid(uid));
      next_removed = rows.Int(1) + 1;
    }
    return code == SQLITE_DONE ? absl::OkStatus() : OpenError(code);
  }

  // ---------------------------------------------------------------- the caller's side

  absl::Status Accept(Change change, std::uint64_t bytes) {
    bool post = false;
    {
      MutexLock lock(&mu);
      if (!broken.ok()) return broken;
      if (queue_bytes + bytes > options.queue_bytes_max) {
        queue_limit.refused.Add();
        broken = absl::ResourceExhaustedError(
            absl::StrCat("too many changes wait for the journal's disk: file=", path,
                         " bytes=", queue_bytes + bytes, " max=", options.queue_bytes_max));
        return broken;
      }
      queue_bytes += bytes;
      queue_limit.current.Set(static_cast<double>(queue_bytes));
      queue.push_back({std::move(change), bytes});
      ++accepted;
      post = !std::exchange(scheduled, true);
    }
    if (post) Schedule();
    return absl::OkStatus();
  }

  // Schedules a group. A commit soon after another one waits for further commits, so that a busy
  // coordinator syncs at most once per commit_every.
  void Schedule() {
    journal->Post([this] {
      const auto since = parts.clock->Now() - last_begun;
      if (since >= options.commit_every || options.commit_every.count() == 0) {
        CommitGroup();
      } else {
        journal->PostAfter(options.commit_every - since, [this] { CommitGroup(); });
      }
    });
  }

  // ---------------------------------------------------------------- the journal thread

  struct Queued {
    Change change;
    std::uint64_t bytes = 0;
  };

  void CommitGroup() {
    last_begun = parts.clock->Now();
    if (group.empty()) {
      MutexLock lock(&mu);
      group.swap(queue);
      if (group.empty()) {
        scheduled = false;
        return;
      }
    }
    const int code = Write();
    const double took = std::chrono::duration<double>(parts.clock->Now() - last_begun).count();
    absl::Status there = Look();
    std::function<void()> tell;
    bool more = false, again = false;
    {
      MutexLock lock(&mu);
      tell = listener;
      place = std::move(there);
      if (code == SQLITE_OK) {
        std::uint64_t bytes = 0;
        for (const Queued& queued : group) bytes += queued.bytes;
        queue_bytes -= bytes;
        queue_limit.current.Set(static_cast<double>(queue_bytes));
        durable += group.size();
        full = absl::OkStatus();
        more = !queue.empty();
        scheduled = more;
      } else if ((code & 0xff) == SQLITE_FULL) {
        again = true;
        if (full.ok()) {
          full = absl::ResourceExhaustedError(absl::StrCat(
              "no space for the coordinator's journal; it continues when there is space: file=",
              path, " reason=", failure));
        }
      } else if (broken.ok()) {
        broken = absl::DataLossError(
            absl::StrCat("the coordinator's journal cannot be written, and its contents are "
                         "unknown; restart the coordinator when the disk works again: file=",
                         path, " ", failure));
      }
      durable_changed.NotifyAll();
    }
    if (code == SQLITE_OK) {
      commits_total.Add();
      changes_total.Add(group.size());
      seconds.Observe(took);
      ShowSize();
      group.clear();
    } else {
      failures_total.Add();
    }
    if (tell) tell();
    if (again) journal->PostAfter(options.retry_every, [this] { CommitGroup(); });
    if (more) Schedule();
  }

  // Copies all commits to the database file and restarts the -wal file. After an error the -wal
  // file stays, so nothing is lost.
  void CheckpointWal() {
    ::sqlite3_wal_checkpoint_v2(db, nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr, nullptr);
  }

  // Runs one transaction. Any result except SQLITE_OK has changed nothing.
  int Write() {
    if (parts.failpoints->At("journal.full")) {
      failure = "failpoint";
      return SQLITE_FULL;
    }
    int code = ::sqlite3_exec(db, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr);
    if (code != SQLITE_OK) failure = DbError(code);
    if (code != SQLITE_OK) return code;
    const auto numbers_before = numbers;
    const std::int64_t next_job_before = next_job, next_entry_before = next_entry;
    code = WriteChanges();
    if (code == SQLITE_OK) {
      parts.failpoints->At("journal.before_commit");
      code = ::sqlite3_exec(db, "COMMIT", nullptr, nullptr, nullptr);
      if (code == SQLITE_OK) parts.failpoints->At("journal.after_commit");
      if (code == SQLITE_OK && std::exchange(checkpoint_due, false)) CheckpointWal();
    }
    if (code != SQLITE_OK) {
      failure = DbError(code);
      if (::sqlite3_get_autocommit(db) == 0)
        ::sqlite3_exec(db, "ROLLBACK", nullptr, nullptr,
                       nullptr);  // a full disk may have ended the transaction already
      numbers = numbers_before;
      next_job = next_job_before;
      next_entry = next_entry_before;
    }
    return code;
  }

  int WriteChanges() {
    // All changes of one group to one job form one row.
    std::map<JobUid, std::pair<Record, v1::JournalEntry>> open;
    const auto close = [&](JobUid job) -> int {
      auto node = open.extract(job);
      if (node.empty()) return SQLITE_OK;
      auto& [record, entry] = node.mapped();
      EncodeRecord(record, entry.mutable_record());
      const std::string body = entry.SerializeAsString();
      return entry_put->Int(1, next_entry++).Int(2, Uid(job)).Blob(3, body).Int(4, Crc(body)).Run();
    };
    for (const Queued& queued : group) {
      int code = SQLITE_OK;
      if (const auto* begun = std::get_if<PutTerm>(&queued.change)) {
        parts.failpoints->At("journal.term");
        code = term_put->Int(1, static_cast<std::int64_t>(begun->term.value())).Run();
      } else if (const auto* put = std::get_if<PutEntry>(&queued.change)) {
        if (!numbers.contains(put->job))
          code = PutJobRow(put->job, EncodeState(DurableState{}), std::string());
        auto& [record, entry] = open[put->job];
        AppendRecord(put->record, &record);
        if (!put->note.empty()) entry.add_notes(put->note);
      } else if (const auto* whole = std::get_if<PutJob>(&queued.change)) {
        parts.failpoints->At("journal.checkpoint");
        open.erase(whole->job);
        code = entry_drop->Int(1, Uid(whole->job)).Run();
        if (code == SQLITE_OK) code = PutJobRow(whole->job, whole->state, whole->snapshot);
      } else if (const auto* drop = std::get_if<DropJob>(&queued.change)) {
        open.erase(drop->job);
        numbers.erase(drop->job);
        code = entry_drop->Int(1, Uid(drop->job)).Run();
        if (code == SQLITE_OK) code = job_drop->Int(1, Uid(drop->job)).Run();
        const std::string name = JobUidString(drop->job),
                          old = drop->forgotten ? JobUidString(*drop->forgotten) : std::string();
        if (code == SQLITE_OK) code = removed_put->Text(1, name).Int(2, next_removed++).Run();
        if (code == SQLITE_OK && drop->forgotten) code = removed_drop->Text(1, old).Run();
      }
      if (code != SQLITE_OK) return code;
    }
    while (!open.empty()) {
      if (const int code = close(open.begin()->first); code != SQLITE_OK) return code;
    }
    return SQLITE_OK;
  }

  static std::int64_t Uid(JobUid job) { return static_cast<std::int64_t>(job.value()); }

  int PutJobRow(JobUid job, const std::string& state, const std::string& snapshot) {
    const auto [found, is_new] = numbers.try_emplace(job, next_job);
    if (is_new) ++next_job;
    checkpoint_due |= is_new;
    return job_put->Int(1, found->second)
        .Int(2, Uid(job))
        .Blob(3, state)
        .Blob(4, snapshot)
        .Int(5, Crc(state, snapshot))
        .Run();
  }

  absl::StatusOr<StoredJob> Read(JobUid job) {
    Statement row;
    int code = row.Prepare(db, "SELECT state, snapshot, crc FROM job WHERE uid=?1");
    if (code != SQLITE_OK) return OpenError(code);
    code = row.Int(1, Uid(job)).Step();
    if (code == SQLITE_DONE)
      return absl::NotFoundError(
          absl::StrCat("no such job in the state store: job=", JobUidString(job)));
    if (code != SQLITE_ROW) return OpenError(code);
    StoredJob stored;
    const std::string state = row.Blob(0);
    stored.snapshot = row.Blob(1);
    if (Crc(state, stored.snapshot) != row.Int(2))
      return Damaged(absl::StrCat("checksum of the job's row: job=", JobUidString(job)));
    absl::StatusOr<DurableState> decoded = DecodeState(state);
    if (!decoded.ok()) return Damaged(decoded.status().message());
    stored.state = *std::move(decoded);
    Statement entries;
    code = entries.Prepare(db, "SELECT number, body, crc FROM entry WHERE uid=?1 ORDER BY number");
    if (code != SQLITE_OK) return OpenError(code);
    entries.Int(1, Uid(job));
    while ((code = entries.Step()) == SQLITE_ROW) {
      const std::string body = entries.Blob(1);
      v1::JournalEntry entry;
      if (Crc(body) != entries.Int(2) || !entry.ParseFromString(body))
        return Damaged(absl::StrCat("checksum of an entry: number=", entries.Int(0)));
      absl::StatusOr<Record> record = DecodeRecord(entry.record());
      if (!record.ok())
        return Damaged(absl::StrCat("entry ", entries.Int(0), ": ", record.status().message()));
      ApplyRecord(*record, &stored.state);
      for (std::string& note : *entry.mutable_notes()) stored.notes.push_back(std::move(note));
    }
    if (code != SQLITE_DONE) return OpenError(code);
    return stored;
  }

  absl::Status WaitDurable() {
    MutexLock lock(&mu);
    while (durable < accepted) {
      if (!broken.ok()) return broken;
      if (!full.ok()) return full;
      durable_changed.Wait(&mu);
    }
    return broken;
  }

  const SqliteStoreOptions options;
  const Parts parts;
  const std::string path;
  std::uint64_t torn_bytes = 0;
  std::unique_ptr<Holder> holder;

  // The opening thread uses these first, then the journal thread.
  sqlite3* db = nullptr;
  std::unique_ptr<Statement> entry_put, entry_drop, job_put, job_drop, term_put, pages_used,
      removed_put, removed_drop;
  std::map<JobUid, std::int64_t> numbers;
  std::int64_t next_job = 1, next_entry = 1, next_removed = 1;
  // The contents of the -wal file must be copied to the database file, so that it does not depend
  // on the -wal file.
  bool checkpoint_due = true;
  std::vector<Queued> group;   // being written or retried
  std::string failure;         // message of the last failed Write()
  FileId database_id, wal_id;  // ids of the files that SQLite has open
  MonoTime last_begun{MonoTime::min() / 2};

  // The owner uses these.
  Term term;
  std::vector<JobUid> order;
  RemovedJobs removed{kRemovedMax};

  mutable Mutex mu;
  CondVar durable_changed;
  std::vector<Queued> queue ABSL_GUARDED_BY(mu);
  std::uint64_t queue_bytes ABSL_GUARDED_BY(mu) = 0;
  std::uint64_t accepted ABSL_GUARDED_BY(mu) = 0, durable ABSL_GUARDED_BY(mu) = 0;
  bool scheduled ABSL_GUARDED_BY(mu) = false;
  absl::Status full ABSL_GUARDED_BY(mu), broken ABSL_GUARDED_BY(mu), place ABSL_GUARDED_BY(mu);
  std::function<void()> listener ABSL_GUARDED_BY(mu);

  metrics::Limit queue_limit, file_limit;
  metrics::Counter &commits_total, &changes_total, &failures_total;
  metrics::Histogram& seconds;

  // Last, because its tasks use all members above.
  std::unique_ptr<runtime::ThreadExecutor> journal;
};

absl::StatusOr<std::unique_ptr<SqliteStateStore>> SqliteStateStore::Open(SqliteStoreOptions options,
                                                                         Parts parts) {
  auto impl = std::make_unique<Impl>(std::move(options), parts);
  EG_RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<SqliteStateStore>(new SqliteStateStore(std::move(impl)));
}

SqliteStateStore::SqliteStateStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

SqliteStateStore::~SqliteStateStore() {
  impl_->journal->Post([impl = impl_.get()] {
    impl->CommitGroup();
    // With this, the next start finds one file and replays nothing.
    ::sqlite3_exec(impl->db, "PRAGMA wal_checkpoint(TRUNCATE)", nullptr, nullptr, nullptr);
    // SQLite deletes the -wal file by its name. If the folder was replaced, the name belongs to
    // another store.
    if (int keep = 1; !impl->Look().ok())
      ::sqlite3_file_control(impl->db, "main", SQLITE_FCNTL_PERSIST_WAL, &keep);
  });
  impl_->journal->Shutdown();
}

absl::Status SqliteStateStore::CommitTerm(Term term) {
  if (term <= impl_->term) {
    return absl::InvalidArgumentError(
        absl::StrCat("term does not grow: have=", impl_->term.value(), " got=", term.value()));
  }
  EG_RETURN_IF_ERROR(impl_->Accept(PutTerm{term}, kOverheadBytes));
  impl_->term = term;
  return absl::OkStatus();
}

Term SqliteStateStore::term() const { return impl_->term; }

absl::Status SqliteStateStore::Commit(JobUid job, const Record& record, std::string note) {
  if (std::find(impl_->order.begin(), impl_->order.end(), job) == impl_->order.end()) {
    if (impl_->order.size() >= impl_->options.jobs_max) {
      return absl::ResourceExhaustedError(
          absl::StrCat("state store holds too many jobs: max=", impl_->options.jobs_max,
                       " job=", JobUidString(job)));
    }
    impl_->order.push_back(job);
  }
  const std::uint64_t bytes =
      kOverheadBytes + note.size() +
      64 * (record.map.size() + record.todo_add.size() + record.todo_remove.size());
  return impl_->Accept(PutEntry{job, record, std::move(note)}, bytes);
}

absl::Status SqliteStateStore::Checkpoint(JobUid job, const DurableState& state,
                                          std::string snapshot) {
  if (std::find(impl_->order.begin(), impl_->order.end(), job) == impl_->order.end()) {
    if (impl_->order.size() >= impl_->options.jobs_max) {
      return absl::ResourceExhaustedError(
          absl::StrCat("state store holds too many jobs: max=", impl_->options.jobs_max,
                       " job=", JobUidString(job)));
    }
    impl_->order.push_back(job);
  }
  std::string encoded = EncodeState(state);
  const std::uint64_t bytes = kOverheadBytes + encoded.size() + snapshot.size();
  return impl_->Accept(PutJob{job, std::move(encoded), std::move(snapshot)}, bytes);
}

absl::Status SqliteStateStore::Remove(JobUid job) {
  if (std::erase(impl_->order, job) == 0) return absl::OkStatus();
  return impl_->Accept(DropJob{job, impl_->removed.Add(job)}, kOverheadBytes);
}
bool SqliteStateStore::Removed(JobUid job) const { return impl_->removed.Contains(job); }

absl::StatusOr<StoredJob> SqliteStateStore::LoadJob(JobUid job) const {
  EG_RETURN_IF_ERROR(impl_->WaitDurable());
  absl::StatusOr<StoredJob> stored = absl::InternalError("not read");
  runtime::Event read;
  if (!impl_->journal->Post([&] {
        stored = impl_->Read(job);
        read.Set();
      })) {
    return absl::FailedPreconditionError("the journal is closed");
  }
  read.Wait();
  return stored;
}

absl::StatusOr<std::vector<JobUid>> SqliteStateStore::ListJobs() const { return impl_->order; }
absl::Status SqliteStateStore::Sync() { return impl_->WaitDurable(); }

std::uint64_t SqliteStateStore::accepted() const {
  MutexLock lock(&impl_->mu);
  return impl_->accepted;
}
std::uint64_t SqliteStateStore::durable() const {
  MutexLock lock(&impl_->mu);
  return impl_->durable;
}
absl::Status SqliteStateStore::health() const {
  MutexLock lock(&impl_->mu);
  return impl_->broken.ok() ? impl_->full : impl_->broken;
}
absl::Status SqliteStateStore::place() const {
  MutexLock lock(&impl_->mu);
  return impl_->place;
}
void SqliteStateStore::SetListener(std::function<void()> listener) {
  MutexLock lock(&impl_->mu);
  impl_->listener = std::move(listener);
}
std::string SqliteStateStore::path() const { return impl_->path; }
std::uint64_t SqliteStateStore::torn_bytes() const { return impl_->torn_bytes; }

}  // namespace evergrad::coordinator
