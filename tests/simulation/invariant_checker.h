// The checks during a walk: each commit of the coordinator, each push at a server and each state of
// a shard. The README of this room lists them. EndChecks has those at the end.
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
  // `walk` outlives the checker.
  explicit InvariantChecker(WalkContext& walk) : walk_(walk) {}

  // Another job begins. Epochs and lsns of two jobs cannot be compared.
  void BeginJob(JobUid job);
  // The state of a shard's ledger in the file from which the job resumes [I6].
  void ResumeShard(std::uint32_t p, const ps_server::Ledger& ledger);

  // --- the coordinator. A closure book begins with this state.
  void BeginBook(const DurableState& state);
  // Checks that the journal has returned the last durable state.
  void CheckReplayed(const DurableState& state);
  // Checks I4 and P2.
  void OnCommit(const DurableState& now);
  // All commits are durable.
  void OnDurable();
  // The state at the last commit.
  const DurableState& committed() const { return committed_; }
  // Checks that no life takes the term of another life.
  void OnTermTaken(Term term);
  void OnTermReported(std::uint64_t term) { newest_term_ = std::max(newest_term_, term); }
  // All lives have been lost with the cluster, except those that tasks report.
  void ForgetTerms() { newest_term_ = 0; }
  // The highest term that was ever used.
  std::uint64_t newest_term() const { return newest_term_; }
  // The user was told that the closure is cancelled, or that the job has ended early.
  void OnCancelTold(std::uint64_t c) { cancels_told_.Add(c); }
  bool CancelTold(std::uint64_t c) const { return cancels_told_.Contains(c); }
  void ForgetCancelsTold() { cancels_told_.Clear(); }
  void OnEndTold() { end_told_ = true; }

  // --- servers. Returns whether the server of this identity owns shard p of the job at `epoch`.
  bool IsOwner(const std::string& identity, JobUid job, std::uint32_t p, ShardEpoch epoch) const;
  // Records and checks the outcome of a push.
  void OnPush(const ServedPush& served);
  // Checks I2 and I3, with `replay` also from the log.
  void CheckState(const HeldState& state, std::uint32_t p, bool replay);
  // Checks I6, and I4 for the state of an owner.
  void CheckBounds(const HeldState& state, std::uint32_t p);

 private:
  void CheckOverBudget(const ServedPush& served);
  void CheckSealed(const ServedPush& served);
  void OnApplied(const ServedPush& served);
  void CheckOneProcess(const ServedPush& served);

  WalkContext& walk_;
  JobUid job_{1};
  DurableState committed_;  // at the last commit [I4]
  DurableState durable_;    // at the last durable commit
  std::uint64_t newest_term_ = 0;
  IntervalSet cancels_told_;
  bool end_told_ = false;
  // Intervals from the files of an earlier job [I6].
  std::array<std::size_t, kShards> resumed_open_{}, resumed_intervals_{};
  // The process that answered APPLIED at (p, epoch) [I5].
  std::array<std::vector<std::pair<ShardEpoch, int>>, kShards> answered_;
  std::array<std::pair<MapVersion, std::uint64_t>, kShards> lsn_{};  // of the owner, by start [I4]
};

}  // namespace evergrad::simulation
