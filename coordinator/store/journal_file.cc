#include "coordinator/store/journal_file.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/fs/file.h"
#include "common/fs/file_system.h"
#include "coordinator/store/orphaned_wal.h"
#include "coordinator/store/record_codec.h"
#include "coordinator/store/wal_damage.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr int kApplicationId = 0x65766a31;  // "evj1"
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kWalHeaderBytes = 32, kWalFrameHeaderBytes = 24;

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
  // With a null pointer zlib would return an initial checksum and discard `crc`.
  if (!b.empty())
    crc = ::crc32(crc, reinterpret_cast<const Bytef*>(b.data()), static_cast<uInt>(b.size()));
  return static_cast<std::int64_t>(crc);
}

std::int64_t Uid(JobUid job) { return static_cast<std::int64_t>(job.value()); }

std::uint64_t FileBytes(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

// Returns the number of bytes after the last complete frame. These bytes belong to a write that was
// interrupted by the end of the process or machine. SQLite drops them, and all frames with wrong
// checksums.
std::uint64_t TornBytes(const std::string& wal) {
  const std::uint64_t bytes = FileBytes(wal);
  if (bytes <= kWalHeaderBytes) return bytes % kWalHeaderBytes;
  return (bytes - kWalHeaderBytes) % (kWalFrameHeaderBytes + kPageBytes);
}

}  // namespace

std::string JournalFile::DbError(int code) const {
  return absl::StrCat(
      "sqlite=", ::sqlite3_errstr(code), " (", code, ")",
      db_.raw != nullptr ? absl::StrCat(" text=", ::sqlite3_errmsg(db_)) : std::string());
}
absl::Status JournalFile::Damaged(absl::string_view what) const {
  return absl::DataLossError(
      absl::StrCat("the coordinator's journal is damaged: restore the folder from a copy, or "
                   "move the folder to another place and start without the jobs in it (with "
                   "--forget-unknown-jobs if parameter servers still hold shards of them): file=",
                   path_, " reason=", what));
}
absl::Status JournalFile::OpenError(int code) const {
  const int primary = code & 0xff;
  if (primary == SQLITE_NOTADB || primary == SQLITE_CORRUPT) return Damaged(DbError(code));
  if (primary == SQLITE_BUSY) {
    return UserError(absl::FailedPreconditionError(
        absl::StrCat("another process has the journal open: file=", path_)));
  }
  return absl::InternalError(
      absl::StrCat("cannot open the journal: file=", path_, " ", DbError(code)));
}
absl::Status JournalFile::Exec(const char* sql) {
  const int code = ::sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : OpenError(code);
}
absl::StatusOr<std::int64_t> JournalFile::ReadInt(const char* sql) {
  Statement statement;
  int code = statement.Prepare(db_, sql);
  if (code != SQLITE_OK) return OpenError(code);
  code = statement.Step();
  if (code != SQLITE_ROW)
    return code == SQLITE_DONE ? Damaged(absl::StrCat("no result of: ", sql)) : OpenError(code);
  return statement.Int(0);
}

// Checks the two files before SQLite opens them. If the database is missing or empty, SQLite
// deletes the -wal file, which may be the only record of all jobs.
absl::Status JournalFile::CheckPair() {
  const std::uint64_t bytes = OrphanedWalBytes(path_);
  if (bytes == 0) return absl::OkStatus();
  if (!options_.forget_unknown_jobs) {
    return absl::DataLossError(
        absl::StrCat("the coordinator's journal is damaged: ", path_,
                     fs::Exists(path_) ? " is empty" : " is missing", ", but ", path_,
                     "-wal beside it holds ", bytes,
                     " bytes of changes, which may be the only record of the jobs that ran. "
                     "Nothing was changed. Restore both files from one copy of the folder; or, "
                     "to start without these jobs, use --forget-unknown-jobs, which keeps the "
                     "-wal file under another name"));
  }
  EG_ASSIGN_OR_RETURN(const std::string kept, SetWalAside(path_));
  parts_.logger->Warning(
      absl::StrCat("--forget-unknown-jobs: the journal starts empty, without the jobs of its "
                   "orphaned -wal file, which was kept: file=",
                   kept, " bytes=", bytes));
  return absl::OkStatus();
}

absl::Status JournalFile::TakeFolder() {
  EG_RETURN_IF_ERROR(fs::MakeDirectories(options_.folder));
  EG_RETURN_IF_ERROR(CheckLocalFileSystem(options_.folder));
  EG_ASSIGN_OR_RETURN(holder_, Holder::Take(options_.folder, options_.holder));
  EG_RETURN_IF_ERROR(CheckPair());
  if (const auto at = DamagedWalAt(path_ + "-wal")) {
    return Damaged(absl::StrCat(
        "a frame of its -wal file is corrupt, and later commits follow it: file=", path_,
        "-wal offset=", *at,
        *at == 0 ? ""
                 : "; truncated at this offset (truncate -s), the file keeps only the commits "
                   "before it"));
  }
  torn_bytes_ = TornBytes(path_ + "-wal");
  return absl::OkStatus();
}

absl::Status JournalFile::Connect() {
  int code =
      ::sqlite3_open_v2(path_.c_str(), &db_.raw,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  if (code != SQLITE_OK) return OpenError(code);
  ::sqlite3_extended_result_codes(db_, 1);
  // If the exclusive mode is set before the WAL mode, SQLite keeps the index of the WAL in memory
  // and creates no -shm file. Statements that change many rows keep the old pages in memory, and
  // not in a temporary file: a container with a read-only root has no folder for it. This memory is
  // at most the size of the old rows of one job.
  for (const char* pragma :
       {"PRAGMA page_size=4096", "PRAGMA locking_mode=EXCLUSIVE", "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL", "PRAGMA wal_autocheckpoint=1000", "PRAGMA auto_vacuum=NONE",
        "PRAGMA foreign_keys=OFF", "PRAGMA temp_store=MEMORY"}) {
    EG_RETURN_IF_ERROR(Exec(pragma));
  }
  // The journal holds the keys that prove grants (LEDGER line 34). A -wal file that is created
  // later gets the permissions of the database.
  for (const std::string& file : {path_, path_ + "-wal"}) {
    if (::chmod(file.c_str(), 0600) != 0 && errno != ENOENT)
      return fs::FileError(errno, "cannot restrict the permissions of the journal", file);
  }
  EG_RETURN_IF_ERROR(
      Exec(absl::StrCat("PRAGMA max_page_count=",
                        std::max<std::uint64_t>(options_.file_bytes_max / kPageBytes, 16))
               .c_str()));
  return absl::OkStatus();
}

absl::Status JournalFile::CheckSchema() {
  EG_ASSIGN_OR_RETURN(const std::int64_t version, ReadInt("PRAGMA user_version"));
  EG_ASSIGN_OR_RETURN(const std::int64_t tables, ReadInt("SELECT count(*) FROM sqlite_master"));
  if (version > SqliteStateStore::kSchemaVersion) {
    return UserError(absl::FailedPreconditionError(
        absl::StrCat("the journal was written by a newer version of the coordinator: file=", path_,
                     " schema=", version, " known=", SqliteStateStore::kSchemaVersion)));
  }
  if (version == 0 && tables == 0) {
    EG_RETURN_IF_ERROR(
        Exec(absl::StrCat("BEGIN EXCLUSIVE;", kSchema, "PRAGMA application_id=", kApplicationId,
                          ";PRAGMA user_version=", SqliteStateStore::kSchemaVersion, ";COMMIT")
                 .c_str()));
  } else {
    EG_ASSIGN_OR_RETURN(const std::int64_t application, ReadInt("PRAGMA application_id"));
    if (application != kApplicationId || version != SqliteStateStore::kSchemaVersion) {
      return UserError(absl::FailedPreconditionError(
          absl::StrCat("the file is not a journal of the coordinator: file=", path_,
                       " application_id=", application, " schema=", version)));
    }
    EG_RETURN_IF_ERROR(CheckWhole());
  }
  return absl::OkStatus();
}

absl::Status JournalFile::PrepareStatements() {
  for (const auto& [statement, sql] : std::vector<std::pair<Statement*, const char*>>{
           {&entry_put_, "INSERT INTO entry VALUES(?1,?2,?3,?4)"},
           {&entry_drop_, "DELETE FROM entry WHERE uid=?1"},
           {&job_put_, "INSERT OR REPLACE INTO job VALUES(?1,?2,?3,?4,?5)"},
           {&job_drop_, "DELETE FROM job WHERE uid=?1"},
           {&term_put_, "UPDATE meta SET value=?1 WHERE key='term'"},
           {&removed_put_, "INSERT OR IGNORE INTO meta VALUES('removed/' || ?1, ?2)"},
           {&removed_drop_, "DELETE FROM meta WHERE key='removed/' || ?1"},
           {&pages_used_,
            "SELECT page_count - freelist_count FROM pragma_page_count, "
            "pragma_freelist_count"}}) {
    if (const int code = statement->Prepare(db_, sql); code != SQLITE_OK) return OpenError(code);
  }
  return absl::OkStatus();
}

absl::StatusOr<JournalFile::Contents> JournalFile::Open() {
  Contents contents;
  EG_RETURN_IF_ERROR(TakeFolder());
  EG_RETURN_IF_ERROR(Connect());
  EG_RETURN_IF_ERROR(CheckSchema());
  EG_ASSIGN_OR_RETURN(const std::int64_t term, ReadInt("SELECT value FROM meta WHERE key='term'"));
  contents.term = Term(static_cast<std::uint64_t>(term));
  EG_RETURN_IF_ERROR(ReadNumbers(&contents));
  EG_RETURN_IF_ERROR(ReadRemoved(&contents));
  EG_RETURN_IF_ERROR(PrepareStatements());
  if (torn_bytes_ > 0) {
    parts_.logger->Warning(
        absl::StrCat("the journal's tail was torn; incomplete commits were dropped: file=", path_,
                     "-wal bytes=", torn_bytes_));
  }
  place_.Remember();
  return contents;
}

absl::Status JournalFile::CheckWhole() {
  Statement check;
  int code = check.Prepare(db_, "PRAGMA quick_check(1)");
  if (code == SQLITE_OK) code = check.Step();
  if (code != SQLITE_ROW) return OpenError(code == SQLITE_DONE ? SQLITE_CORRUPT : code);
  const std::string answer = check.Blob(0);
  return answer == "ok" ? absl::OkStatus() : Damaged(answer.substr(0, 300));
}

// Reads the numbers of the jobs in order, and the next number of an entry.
absl::Status JournalFile::ReadNumbers(Contents* contents) {
  Statement jobs;
  int code = jobs.Prepare(db_, "SELECT number, uid FROM job ORDER BY number");
  if (code != SQLITE_OK) return OpenError(code);
  while ((code = jobs.Step()) == SQLITE_ROW) {
    const JobUid uid(static_cast<std::uint64_t>(jobs.Int(1)));
    contents->order.push_back(uid);
    numbers_[uid] = jobs.Int(0);
    next_job_ = jobs.Int(0) + 1;
  }
  if (code != SQLITE_DONE) return OpenError(code);
  EG_ASSIGN_OR_RETURN(next_entry_, ReadInt("SELECT coalesce(max(number), 0) + 1 FROM entry"));
  return absl::OkStatus();
}

absl::Status JournalFile::ReadRemoved(Contents* contents) {
  Statement rows;
  int code = rows.Prepare(
      db_, "SELECT substr(key, 9), value FROM meta WHERE key LIKE 'removed/%' ORDER BY value");
  if (code != SQLITE_OK) return OpenError(code);
  while ((code = rows.Step()) == SQLITE_ROW) {
    std::uint64_t uid = 0;
    if (!absl::SimpleHexAtoi(rows.Blob(0), &uid))
      return Damaged(absl::StrCat("invalid name of a removed job: ", rows.Blob(0).substr(0, 100)));
    contents->removed.Add(JobUid(uid));
    next_removed_ = rows.Int(1) + 1;
  }
  return code == SQLITE_DONE ? absl::OkStatus() : OpenError(code);
}

// Copies all commits to the database file and empties the -wal file. After an error the -wal file
// stays, so no commit is lost.
void JournalFile::CheckpointWal() {
  ::sqlite3_wal_checkpoint_v2(db_, nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr, nullptr);
}

int JournalFile::Write(const std::vector<QueuedChange>& group) {
  if (parts_.failpoints->At("journal.full")) {
    failure_ = "failpoint";
    return SQLITE_FULL;
  }
  int code = ::sqlite3_exec(db_, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) failure_ = DbError(code);
  if (code != SQLITE_OK) return code;
  const auto numbers_before = numbers_;
  const std::int64_t next_job_before = next_job_, next_entry_before = next_entry_;
  code = WriteChanges(group);
  if (code == SQLITE_OK) {
    parts_.failpoints->At("journal.before_commit");
    code = ::sqlite3_exec(db_, "COMMIT", nullptr, nullptr, nullptr);
    if (code == SQLITE_OK) parts_.failpoints->At("journal.after_commit");
    if (code == SQLITE_OK && std::exchange(checkpoint_due_, false)) CheckpointWal();
  }
  if (code != SQLITE_OK) {
    failure_ = DbError(code);
    if (::sqlite3_get_autocommit(db_) == 0)
      ::sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr,
                     nullptr);  // a full disk may have ended the transaction already
    numbers_ = numbers_before;
    next_job_ = next_job_before;
    next_entry_ = next_entry_before;
  }
  return code;
}

int JournalFile::WriteChanges(const std::vector<QueuedChange>& group) {
  // All changes of one group to one job are stored as one row.
  std::map<JobUid, std::pair<Record, v1::JournalEntry>> open;
  const auto close = [&](JobUid job) -> int {
    auto node = open.extract(job);
    if (node.empty()) return SQLITE_OK;
    auto& [record, entry] = node.mapped();
    EncodeRecord(record, entry.mutable_record());
    const std::string body = entry.SerializeAsString();
    return entry_put_.Int(1, next_entry_++).Int(2, Uid(job)).Blob(3, body).Int(4, Crc(body)).Run();
  };
  for (const QueuedChange& queued : group) {
    int code = SQLITE_OK;
    if (const auto* begun = std::get_if<PutTerm>(&queued.change)) {
      parts_.failpoints->At("journal.term");
      code = term_put_.Int(1, static_cast<std::int64_t>(begun->term.value())).Run();
    } else if (const auto* put = std::get_if<PutEntry>(&queued.change)) {
      if (!numbers_.contains(put->job))
        code = PutJobRow(put->job, EncodeState(DurableState{}), std::string());
      auto& [record, entry] = open[put->job];
      AppendRecord(put->record, &record);
      if (!put->note.empty()) entry.add_notes(put->note);
    } else if (const auto* whole = std::get_if<PutJob>(&queued.change)) {
      parts_.failpoints->At("journal.checkpoint");
      open.erase(whole->job);
      code = entry_drop_.Int(1, Uid(whole->job)).Run();
      if (code == SQLITE_OK) code = PutJobRow(whole->job, whole->state, whole->snapshot);
    } else if (const auto* drop = std::get_if<DropJob>(&queued.change)) {
      open.erase(drop->job);
      numbers_.erase(drop->job);
      code = entry_drop_.Int(1, Uid(drop->job)).Run();
      if (code == SQLITE_OK) code = job_drop_.Int(1, Uid(drop->job)).Run();
      const std::string name = JobUidString(drop->job),
                        old = drop->forgotten ? JobUidString(*drop->forgotten) : std::string();
      if (code == SQLITE_OK) code = removed_put_.Text(1, name).Int(2, next_removed_++).Run();
      if (code == SQLITE_OK && drop->forgotten) code = removed_drop_.Text(1, old).Run();
    }
    if (code != SQLITE_OK) return code;
  }
  while (!open.empty()) {
    if (const int code = close(open.begin()->first); code != SQLITE_OK) return code;
  }
  return SQLITE_OK;
}

int JournalFile::PutJobRow(JobUid job, const std::string& state, const std::string& snapshot) {
  const auto [found, is_new] = numbers_.try_emplace(job, next_job_);
  if (is_new) ++next_job_;
  checkpoint_due_ |= is_new;
  return job_put_.Int(1, found->second)
      .Int(2, Uid(job))
      .Blob(3, state)
      .Blob(4, snapshot)
      .Int(5, Crc(state, snapshot))
      .Run();
}

absl::StatusOr<StoredJob> JournalFile::Read(JobUid job) {
  Statement row;
  int code = row.Prepare(db_, "SELECT state, snapshot, crc FROM job WHERE uid=?1");
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
    return Damaged(absl::StrCat("the checksum of a job's row is wrong: job=", JobUidString(job)));
  absl::StatusOr<DurableState> decoded = DecodeState(state);
  if (!decoded.ok()) return Damaged(decoded.status().message());
  stored.state = *std::move(decoded);
  Statement entries;
  code = entries.Prepare(db_, "SELECT number, body, crc FROM entry WHERE uid=?1 ORDER BY number");
  if (code != SQLITE_OK) return OpenError(code);
  entries.Int(1, Uid(job));
  while ((code = entries.Step()) == SQLITE_ROW) {
    const std::string body = entries.Blob(1);
    v1::JournalEntry entry;
    if (Crc(body) != entries.Int(2) || !entry.ParseFromString(body))
      return Damaged(absl::StrCat("the checksum of an entry is wrong: number=", entries.Int(0)));
    absl::StatusOr<Record> record = DecodeRecord(entry.record());
    if (!record.ok())
      return Damaged(absl::StrCat("entry ", entries.Int(0), ": ", record.status().message()));
    ApplyRecord(*record, &stored.state);
    for (std::string& note : *entry.mutable_notes()) stored.notes.push_back(std::move(note));
  }
  if (code != SQLITE_DONE) return OpenError(code);
  return stored;
}

void JournalFile::EmptyWal() {
  ::sqlite3_exec(db_, "PRAGMA wal_checkpoint(TRUNCATE)", nullptr, nullptr, nullptr);
  // SQLite deletes the -wal file by its name. If the folder was replaced, the file of this name
  // belongs to another store.
  if (int keep = 1; !place_.Look().ok())
    ::sqlite3_file_control(db_, "main", SQLITE_FCNTL_PERSIST_WAL, &keep);
}

std::uint64_t JournalFile::UsedBytes() {
  return static_cast<std::uint64_t>(pages_used_.Number()) * kPageBytes;
}

}  // namespace evergrad::coordinator
