// The SQLite file of the coordinator's journal (FORMAT.md): opens and checks it, writes groups of
// changes, and reads jobs. Private to this room.
//
// Only one thread uses the file at a time: first the thread that opens the journal, and then the
// journal thread.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/store/holder.h"
#include "coordinator/store/journal_place.h"
#include "coordinator/store/sqlite_state_store.h"

namespace evergrad::coordinator {

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
  std::optional<JobUid> forgotten;  // an earlier removed job, which the journal no longer lists
};
using Change = std::variant<PutTerm, PutEntry, PutJob, DropJob>;
struct QueuedChange {
  Change change;
  std::uint64_t bytes = 0;
};

// A prepared statement of SQLite. Prepare, Step and Run return result codes of SQLite.
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
  // Runs a statement that returns no rows, and resets it for the next use.
  int Run() {
    const int code = ::sqlite3_step(raw_);
    ::sqlite3_reset(raw_);
    return code == SQLITE_DONE ? SQLITE_OK : code;
  }
  // Returns the number in the statement's only row, or 0, and resets the statement for the next
  // use.
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

class JournalFile {
 public:
  struct Contents {
    Term term;
    std::vector<JobUid> order;  // jobs, in the order of their first commit
    RemovedJobs removed{StateStore::kRemovedMax};
  };
  // `options` and `parts` outlive this object.
  JournalFile(const SqliteStoreOptions& options, const SqliteStateStore::Parts& parts)
      : options_(options), parts_(parts), path_(options.folder + "/journal.sqlite") {}

  // Opens and checks the file. Returns the errors of SqliteStateStore::Open.
  absl::StatusOr<Contents> Open();
  // Runs one transaction. With any result except SQLITE_OK nothing was changed, and failure() has
  // the reason.
  int Write(const std::vector<QueuedChange>& group);
  // the reason for which the newest failed Write has failed
  const std::string& failure() const { return failure_; }
  absl::StatusOr<StoredJob> Read(JobUid job);
  absl::Status Look() { return place_.Look(); }
  // Empties the -wal file before the journal is closed. The next start then finds one file and
  // replays nothing.
  void EmptyWal();
  // Returns the bytes in use, without free pages. The size of the database file would not show this
  // number, because SQLite writes to the -wal file and copies it to the database file only from
  // time to time.
  std::uint64_t UsedBytes();
  const std::string& path() const { return path_; }
  std::uint64_t torn_bytes() const { return torn_bytes_; }

 private:
  struct Connection {
    ~Connection() { ::sqlite3_close(raw); }
    operator sqlite3*() const { return raw; }  // NOLINT(google-explicit-constructor)
    sqlite3* raw = nullptr;
  };
  // Returns the text of the last error. Call it before the next call of SQLite, because a rollback
  // replaces the text.
  std::string DbError(int code) const;
  absl::Status Damaged(absl::string_view what) const;
  absl::Status OpenError(int code) const;
  absl::Status Exec(const char* sql);
  absl::StatusOr<std::int64_t> ReadInt(const char* sql);
  // The steps of Open.
  absl::Status TakeFolder();
  absl::Status CheckPair();
  absl::Status Connect();
  absl::Status CheckSchema();
  absl::Status CheckWhole();
  absl::Status ReadNumbers(Contents* contents);
  absl::Status ReadRemoved(Contents* contents);
  absl::Status PrepareStatements();

  int WriteChanges(const std::vector<QueuedChange>& group);
  int PutJobRow(JobUid job, const std::string& state, const std::string& snapshot);
  void CheckpointWal();

  const SqliteStoreOptions& options_;
  const SqliteStateStore::Parts& parts_;
  const std::string path_;
  std::unique_ptr<Holder> holder_;
  std::uint64_t torn_bytes_ = 0;
  Connection db_;
  Statement entry_put_, entry_drop_, job_put_, job_drop_, term_put_, pages_used_, removed_put_,
      removed_drop_;
  std::map<JobUid, std::int64_t> numbers_;  // numbers of the jobs' rows
  std::int64_t next_job_ = 1, next_entry_ = 1, next_removed_ = 1;
  // True if the contents of the -wal file are to be copied to the database file.
  bool checkpoint_due_ = true;
  std::string failure_;
  JournalPlace place_{path_};
};

}  // namespace evergrad::coordinator
