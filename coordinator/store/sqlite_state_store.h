// The StateStore on a local disk: one SQLite file, which a separate thread writes in groups
// (FORMAT.md).
//
//   control executor: Commit -> queue        journal thread: queue -> one transaction, synced ->
//   durable() rises -> listener
//
// A group waits at most `commit_every` for further commits. While the disk is full, the group is
// retried, and health() reports this. After any other error of the disk the store accepts nothing
// more, because the stored contents are unknown. If the folder is removed or replaced while the
// process runs, the process continues, and place() reports this.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/fault/failpoints.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/time/clock.h"
#include "coordinator/jobs/state_store.h"

namespace evergrad::coordinator {

struct SqliteStoreOptions {
  std::string folder;  // created if absent; must be on a local file system
  std::string holder;  // description of this process, for a second coordinator: "pid 12 on host h"
  // Longest time that a commit waits for other commits, which then share one sync with it. With 0 a
  // commit does not wait.
  std::chrono::milliseconds commit_every{5};
  std::chrono::milliseconds retry_every{200};  // interval of retries while the disk is full
  // Interval at which the place of the folder is checked while nothing is committed.
  std::chrono::milliseconds look_every{1000};
  // Limit of bytes that are accepted and not yet durable. At this limit Commit is refused.
  std::uint64_t queue_bytes_max = 64ull << 20;
  // Limit of the size of the journal's file. At this size the disk counts as full.
  std::uint64_t file_bytes_max = 4ull << 30;
  std::size_t jobs_max = 65536;
  // If true, an orphaned -wal file is renamed, and the journal starts empty
  bool forget_unknown_jobs = false;
};

class SqliteStateStore final : public StateStore {
 public:
  struct Parts {  // all outlive the store
    const Clock* clock = nullptr;
    log::Logger* logger = nullptr;
    metrics::Registry* registry = nullptr;
    fault::Failpoints* failpoints = nullptr;
  };
  // Opens the store. Returns FailedPrecondition (a user's error) for a network file system, for a
  // folder that another coordinator holds (the error names it), and for a newer schema. Returns
  // DataLoss with the remedy if the file is damaged, or if it is missing although its -wal file
  // exists. Returns other errors if the folder or file cannot be created.
  static absl::StatusOr<std::unique_ptr<SqliteStateStore>> Open(SqliteStoreOptions options,
                                                                Parts parts);
  // Commits the queue (one retry if the disk is full), closes the file, and releases the folder.
  ~SqliteStateStore() override;

  using StateStore::Commit;
  absl::Status CommitTerm(Term term) override;
  Term term() const override;
  absl::Status Commit(JobUid job, const Record& record, std::string note) override;
  absl::Status Checkpoint(JobUid job, const DurableState& state, std::string snapshot) override;
  absl::Status Remove(JobUid job) override;
  bool Removed(JobUid job) const override;
  absl::StatusOr<StoredJob> LoadJob(JobUid job) const override;
  absl::StatusOr<std::vector<JobUid>> ListJobs() const override;
  absl::Status Sync() override;
  std::uint64_t accepted() const override;
  std::uint64_t durable() const override;
  absl::Status health() const override;
  absl::Status place() const override;
  void SetListener(std::function<void()> listener) override;
  bool persistent() const override { return true; }

  std::string path() const;          // path of the database
  std::uint64_t torn_bytes() const;  // size of a torn tail that was dropped at the start
  static constexpr int kSchemaVersion = 1;

 private:
  struct Impl;
  explicit SqliteStateStore(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace evergrad::coordinator
