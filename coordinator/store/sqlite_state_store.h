// The StateStore on a local disk: one SQLite file, written by a thread of its own in groups
// (FORMAT.md).
//
//   control executor: Commit -> queue        journal thread: queue -> one transaction, synced ->
//   durable() rises -> listener
//
// A group waits at most `commit_every` for company. A full disk is waited out: the group is tried
// again until there is room, and health() says so meanwhile. Any other error of the disk is final:
// it is not known what was stored. A folder that was removed under us, or in whose place there is
// another one, ends nothing: place() says so.
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
  std::string folder;  // made when absent; on a local file system
  std::string holder;  // who we are, for a second coordinator: "pid 12 on host h"
  std::chrono::milliseconds commit_every{
      5};  // a commit waits at most so long for others to share its sync; 0: it does not wait
  std::chrono::milliseconds retry_every{200};  // when the disk is full
  std::chrono::milliseconds look_every{
      1000};  // whether the folder is where it was, while nothing is committed
  std::uint64_t queue_bytes_max =
      64ull << 20;  // accepted and not yet durable; beyond it Commit is refused
  std::uint64_t file_bytes_max = 4ull
                                 << 30;  // of the journal's file; at it the disk counts as full
  std::size_t jobs_max = 65536;
  bool forget_unknown_jobs =
      false;  // an orphaned -wal file is set aside, and the journal begins anew
};

class SqliteStateStore final : public StateStore {
 public:
  struct Parts {  // all outlive the store
    const Clock* clock = nullptr;
    log::Logger* logger = nullptr;
    metrics::Registry* registry = nullptr;
    fault::Failpoints* failpoints = nullptr;
  };
  // FailedPrecondition (a user's): a network file system; another coordinator holds the folder
  // (named); a newer schema. DataLoss: the file is damaged, or missing beside a -wal file that is
  // not; the message names it and says what to do. Others: the folder or file cannot be made.
  static absl::StatusOr<std::unique_ptr<SqliteStateStore>> Open(SqliteStoreOptions options,
                                                                Parts parts);
  ~SqliteStateStore()
      override;  // commits what is queued (once more if the disk is full), closes, frees the folder

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

  std::string path() const;          // of the database
  std::uint64_t torn_bytes() const;  // of a torn tail that was dropped at the start
  static constexpr int kSchemaVersion = 1;

 private:
  struct Impl;
  explicit SqliteStateStore(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace evergrad::coordinator
