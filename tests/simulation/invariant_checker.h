// The checks during a walk. They check each commit of the coordinator, each push at a server and
// each state of a shard. The README of this room lists them. EndChecks has the checks at the end.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/served_push.h"
#include "tests/simulation/walk_context.h"

namespace evergrad::simulation {

class InvariantChecker {
 public:
  // `walk` must outlive the checker.
  explicit InvariantChecker(WalkContext& walk) : walk_(walk) {}

  // Called when another job begins. Epochs and lsns of two jobs cannot be compared.
  void BeginJob(JobUid job);
  // Called when the job resumes. `ledger` is the ledger of shard p in the file from which the job
  // resumes [I6].
  void ResumeShard(std::uint32_t p, const ps_server::Ledger& ledger);

  // --- the coordinator. BeginBook is called when a closure book begins with this state.
  void BeginBook(const DurableState& state);
  // Checks that the state that was read from the journal is the last durable state.
  void CheckReplayed(const DurableState& state);
  // Checks the invariants I4 and P2 for this commit.
  void OnCommit(const DurableState& now);
  // Called when all commits are durable.
  void OnDurable();
  // Returns the state after the last commit.
  const DurableState& committed() const { return committed_; }
  // Checks that a life of the coordinator does not take a term that another life has used.
  void OnTermTaken(Term term);
  void OnTermReported(std::uint64_t term) { newest_term_ = std::max(newest_term_, term); }
  // Called when the cluster is lost. From then on, only the terms that tasks report are known.
  void ForgetTerms() { newest_term_ = 0; }
  // Returns the highest term that was ever used.
  std::uint64_t newest_term() const { return newest_term_; }
  // Called when the user was told that the closure is cancelled, or that the job has ended early.
  void OnCancelTold(std::uint64_t c) { cancels_told_.Add(c); }
  bool CancelTold(std::uint64_t c) const { return cancels_told_.Contains(c); }
  void ForgetCancelsTold() { cancels_told_.Clear(); }
  void OnEndTold() { end_told_ = true; }

  // --- servers. IsOwner returns whether the server of this identity owns shard p of the job at
  // `epoch`.
  bool IsOwner(const std::string& identity, JobUid job, std::uint32_t p, ShardEpoch epoch) const;
  // Records and checks the outcome of a push.
  void OnPush(const ServedPush& served);
  // Checks I2 and I3. With `replay`, also applies the log again and compares the result with the
  // state.
  void CheckState(const HeldState& state, std::uint32_t p, bool replay);
  // Checks I6. For the state of an owner, also checks I4.
  void CheckBounds(const HeldState& state, std::uint32_t p);

 private:
  void CheckOverBudget(const ServedPush& served);
  void CheckSealed(const ServedPush& served);
  void OnApplied(const ServedPush& served);
  void CheckOneProcess(const ServedPush& served);

  WalkContext& walk_;
  JobUid job_{1};
  DurableState committed_;  // after the last commit [I4]
  DurableState durable_;    // after the last durable commit
  std::uint64_t newest_term_ = 0;
  IntervalSet cancels_told_;
  bool end_told_ = false;
  // The numbers of open closures and of intervals that the ledgers already had in the files of an
  // earlier job [I6].
  std::array<std::size_t, kShards> resumed_open_{}, resumed_intervals_{};
  // The processes that have answered APPLIED for each shard, by epoch [I5].
  std::array<std::vector<std::pair<ShardEpoch, int>>, kShards> answered_;
  // (start, lsn) of the owner's state [I4]
  std::array<std::pair<MapVersion, std::uint64_t>, kShards> lsn_{};
};

}  // namespace evergrad::simulation
