// Where the coordinator's durable state lives (LEDGER line "Coordinator, durable"). One commit is
// one transaction: after a crash it is there whole or not at all, and the order of commits is kept.
//
// Commits are accepted at once and become durable in order, possibly later: nothing that depends on
// a commit may leave the process before durable() has reached what accepted() was right after it.
// The caller keeps messages back until then (ControlPlane's gate).
//
// Not thread-safe; the coordinator's executor owns it. An error of Commit, Checkpoint, CommitTerm
// or Remove means that the change is not in the store and never will be: the caller's state is
// ahead of it, so it accepts no more work and sends nothing.
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

// What the store holds of one job.
struct StoredJob {
  DurableState state;
  std::string snapshot;  // the job's own part as of the last Checkpoint; "" before the first
  std::vector<std::string> notes;  // of the commits since, in order; empty ones are not kept
  friend bool operator==(const StoredJob&, const StoredJob&) = default;
};

// The newest removals, oldest first.
class RemovedJobs {
 public:
  explicit RemovedJobs(std::size_t max) : max_(max) {}
  // The job that is forgotten for it, if there were `max`. One that is in it stays where it is.
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

  // Line 18: the coordinator's life number, in a record of its own. InvalidArgument unless above
  // term().
  virtual absl::Status CommitTerm(Term term) = 0;
  virtual Term term() const = 0;  // with those accepted

  // `note` is the job's own: opaque here, given back in order. An unknown job begins with the empty
  // DurableState. ResourceExhausted: jobs_max are held, or too much waits to become durable.
  virtual absl::Status Commit(JobUid job, const Record& record, std::string note) = 0;
  absl::Status Commit(JobUid job, const Record& record) {
    return Commit(job, record, std::string());
  }
  // Replaces everything that is held of the job: `state` and `snapshot` say what the commits so far
  // made. An unknown job begins here.
  virtual absl::Status Checkpoint(JobUid job, const DurableState& state, std::string snapshot) = 0;
  // Forgets an ended job. Removing an unknown one changes nothing and is OK.
  virtual absl::Status Remove(JobUid job) = 0;
  // Whether it has held `job` and was told to remove it: a job that is neither held nor removed was
  // never this store's, or this store has lost it (line 18a). The newest kRemovedMax removals are
  // remembered, as durable as any other change.
  virtual bool Removed(JobUid job) const = 0;
  static constexpr std::size_t kRemovedMax = 4096;

  // What has been accepted, as it will be after a restart. These may block on the disk: for
  // start-up and tests. NotFound: never committed, or removed.
  virtual absl::StatusOr<StoredJob> LoadJob(JobUid job) const = 0;
  absl::StatusOr<DurableState> Load(JobUid job) const {
    absl::StatusOr<StoredJob> stored = LoadJob(job);
    if (!stored.ok()) return stored.status();
    return std::move(stored->state);
  }
  virtual absl::StatusOr<std::vector<JobUid>> ListJobs()
      const = 0;                    // in order of their first commit
  virtual absl::Status Sync() = 0;  // returns once all that was accepted is durable, or why not

  // --- durability. Any thread.
  virtual std::uint64_t accepted() const = 0;  // commits so far
  virtual std::uint64_t durable() const = 0;   // of these, in order, on disk
  // Not OK: nothing becomes durable now. ResourceExhausted: the disk is full, and it goes on by
  // itself once there is room; anything else is final. Reads go on.
  virtual absl::Status health() const = 0;
  // Not OK: the next start would not find what is stored, because its folder was removed or
  // replaced. Commits go on becoming durable, but only in files that this process alone has open.
  // Known at the latest when durable() has reached the next commit; it may become OK again.
  virtual absl::Status place() const { return absl::OkStatus(); }
  // Called from any thread whenever durable(), health() or place() has changed. Once, before the
  // first commit; outlives the store's threads.
  virtual void SetListener(std::function<void()> listener) = 0;
  // Whether anything survives this process: if not, nobody needs to make notes and snapshots.
  virtual bool persistent() const = 0;
};

// The in-memory twin: survives the coordinator objects of one process, not the process. `torn_max`
// > 0 keeps that many of the last commits apart, so that a test can lose them as a torn journal
// tail does; a term is synced, and all before it with it.
class MemoryStateStore final : public StateStore {
 public:
  struct Options {
    std::size_t jobs_max = 1024;
    std::size_t torn_max = 0;
    bool persistent = false;  // tests: the jobs make notes and snapshots for it, as for a disk
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

  // Loses the last `commits` commits (at most those still kept apart); returns how many.
  std::size_t TearTail(std::size_t commits);

 private:
  struct StoredCommit {
    JobUid job;
    Record record;
    std::string note;
    bool checkpoint = false;
    StoredJob whole;  // of a checkpoint
  };
  static void Apply(const StoredCommit& entry, StoredJob* job);
  absl::Status Add(StoredCommit entry);

  const Options options_;
  Term term_;
  std::uint64_t accepted_ = 0;
  std::map<JobUid, StoredJob> settled_;
  std::vector<JobUid> order_;
  RemovedJobs removed_{kRemovedMax};
  std::vector<StoredCommit> tail_;  // not yet settled, oldest first
};

}  // namespace evergrad::coordinator
