// The store of the coordinator's durable state (LEDGER line "Coordinator, durable"). One commit is
// one transaction: after a crash the store has the whole commit or nothing of it, and it has no
// commit without all earlier commits.
//
// Commits are accepted at once and become durable in order, possibly later. No message that depends
// on a commit may leave the process before durable() has reached the value that accepted() had
// right after the commit. The caller holds messages back until then (service/durability_gate.h).
//
// Not thread-safe; the control executor owns it. After an error of Commit, Checkpoint, CommitTerm
// or Remove the change is not in the store and never will be. The caller's state is then ahead of
// the store, so the caller accepts no more work and sends nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "coordinator/closures/durable_state.h"

namespace evergrad::coordinator {

// The content of the store for one job.
struct StoredJob {
  DurableState state;
  // the job's own snapshot from the newest Checkpoint; "" before the first Checkpoint
  std::string snapshot;
  std::vector<std::string> notes;  // non-empty notes of the commits since that Checkpoint, in order
  friend bool operator==(const StoredJob&, const StoredJob&) = default;
};

// The newest removed jobs, at most `max`.
class RemovedJobs {
 public:
  explicit RemovedJobs(std::size_t max) : max_(max) {}
  // Adds a job. If the set had `max` jobs, drops the oldest job and returns it. A job that is in
  // the set already keeps its place.
  std::optional<JobUid> Add(JobUid job) {
    if (!jobs_.insert(job).second) return std::nullopt;
    order_.push_back(job);
    if (order_.size() <= max_) return std::nullopt;
    const JobUid oldest = order_.front();
    order_.pop_front();
    jobs_.erase(oldest);
    return oldest;
  }
  bool Contains(JobUid job) const { return jobs_.contains(job); }

 private:
  std::size_t max_;
  std::set<JobUid> jobs_;
  std::deque<JobUid> order_;
};

class StateStore {
 public:
  virtual ~StateStore() = default;

  // Commits the term of the coordinator's life in a separate record (LEDGER line 18). Returns
  // InvalidArgument unless `term` is above term().
  virtual absl::Status CommitTerm(Term term) = 0;
  virtual Term term() const = 0;  // the newest accepted term

  // Commits a record and a note. The store does not interpret the notes, and LoadJob returns them
  // in order. An unknown job begins with the empty DurableState. Returns ResourceExhausted if the
  // store holds jobs_max jobs, or if too many bytes wait to become durable.
  virtual absl::Status Commit(JobUid job, const Record& record, std::string note) = 0;
  absl::Status Commit(JobUid job, const Record& record) {
    return Commit(job, record, std::string());
  }
  // Replaces the whole content for the job: `state` and `snapshot` have the effect of all commits
  // so far. The job may be unknown.
  virtual absl::Status Checkpoint(JobUid job, const DurableState& state, std::string snapshot) = 0;
  // Removes an ended job. Removing an unknown job changes nothing and returns OK.
  virtual absl::Status Remove(JobUid job) = 0;
  // Returns whether `job` was in the store and was removed with Remove. A job that is neither in
  // the store nor removed was never in it, or the store has lost it (LEDGER line 18a). The newest
  // kRemovedMax removals are kept, as durable as any other change.
  virtual bool Removed(JobUid job) const = 0;
  static constexpr std::size_t kRemovedMax = 4096;

  // The functions below return the accepted state, as it will be after a restart. These functions
  // may block on the disk, so only start-up and tests call them. A job that was never committed or
  // was removed is NotFound.
  virtual absl::StatusOr<StoredJob> LoadJob(JobUid job) const = 0;
  absl::StatusOr<DurableState> Load(JobUid job) const {
    absl::StatusOr<StoredJob> stored = LoadJob(job);
    if (!stored.ok()) return stored.status();
    return std::move(stored->state);
  }
  virtual absl::StatusOr<std::vector<JobUid>> ListJobs()
      const = 0;                    // in order of their first commit
  virtual absl::Status Sync() = 0;  // waits until all accepted commits are durable

  // --- durability; these functions may be called from any thread
  virtual std::uint64_t accepted() const = 0;  // number of accepted commits
  virtual std::uint64_t durable() const = 0;   // number of commits that are on disk
  // Returns an error while no commit becomes durable. ResourceExhausted means that the disk is
  // full; the store continues by itself once there is space. Any other error is final. Reading
  // still works.
  virtual absl::Status health() const = 0;
  // Returns an error if the next start would not find the stored data, because its folder was
  // removed or replaced. Commits still become durable, but only in files that no longer have a path
  // and that this process has open. The store notices the loss at the latest when durable() reaches
  // the next commit. The result may become OK again.
  virtual absl::Status place() const { return absl::OkStatus(); }
  // Sets the function that the store calls, from any thread, whenever durable(), health() or
  // place() has changed. Call SetListener once, before the first commit. The listener outlives the
  // store's threads.
  virtual void SetListener(std::function<void()> listener) = 0;
  // Returns whether the data survive this process. If the data do not survive, jobs need not make
  // notes and snapshots.
  virtual bool persistent() const = 0;
};

// A store in memory. It outlives the coordinator objects of a process, but not the process. With
// `torn_max` > 0 the store keeps the newest `torn_max` commits in a separate list. TearTail removes
// commits from this list, as a power failure removes the torn tail of a journal. CommitTerm makes
// all earlier commits durable, so it empties the list.
class MemoryStateStore final : public StateStore {
 public:
  struct Options {
    std::size_t jobs_max = 1024;
    std::size_t torn_max = 0;
    bool persistent = false;  // for tests: jobs make notes and snapshots as for a store on disk
  };
  MemoryStateStore() : MemoryStateStore(Options()) {}
  explicit MemoryStateStore(Options options) : options_(options) {}

  using StateStore::Commit;
  absl::Status CommitTerm(Term term) override;
  Term term() const override { return term_; }
  absl::Status Commit(JobUid job, const Record& record, std::string note) override;
  absl::Status Checkpoint(JobUid job, const DurableState& state, std::string snapshot) override;
  absl::Status Remove(JobUid job) override;
  bool Removed(JobUid job) const override { return removed_.Contains(job); }
  absl::StatusOr<StoredJob> LoadJob(JobUid job) const override;
  absl::StatusOr<std::vector<JobUid>> ListJobs() const override { return order_; }
  absl::Status Sync() override { return absl::OkStatus(); }
  std::uint64_t accepted() const override { return accepted_; }
  std::uint64_t durable() const override { return accepted_; }
  absl::Status health() const override { return absl::OkStatus(); }
  void SetListener(std::function<void()>) override {}
  bool persistent() const override { return options_.persistent; }

  // Removes the newest `commits` commits, but at most the commits in the separate list. Returns the
  // number of removed commits.
  std::size_t TearTail(std::size_t commits);

 private:
  struct StoredCommit {
    JobUid job;
    Record record;
    std::string note;
    bool checkpoint = false;
    StoredJob whole;  // set for a checkpoint
  };
  static void Apply(const StoredCommit& entry, StoredJob* job);
  absl::Status Add(StoredCommit entry);

  const Options options_;
  Term term_;
  std::uint64_t accepted_ = 0;
  std::map<JobUid, StoredJob> settled_;
  std::vector<JobUid> order_;
  RemovedJobs removed_{kRemovedMax};
  std::vector<StoredCommit> tail_;  // the separate list of the newest commits, oldest first
};

}  // namespace evergrad::coordinator
