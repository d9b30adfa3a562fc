// The journal of the coordinator, with its faults: commits become durable late or are lost, and an
// older journal may be restored.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "coordinator/jobs/state_store.h"
#include "tests/simulation/messages.h"
#include "tests/simulation/walk_context.h"

namespace evergrad::simulation {

class SimulatedJournal {
 public:
  // `walk` must outlive the journal.
  explicit SimulatedJournal(WalkContext& walk);

  coordinator::MemoryStateStore& store() { return *store_; }
  // `all_durable` returns whether every accepted commit is durable, and `undurable` the number of
  // commits that are not.
  bool all_durable() const { return undurable() == 0; }
  std::uint64_t undurable() const { return store_->accepted() - durable_; }
  void MakeDurable() { durable_ = store_->accepted(); }

  // Called when the coordinator dies. Commits that are not durable are lost.
  void LoseUndurable();
  // Called when a coordinator starts. It may find a journal that lacks the last records, or an
  // older journal. `knows_newest_life` says whether a living task knows the newest life. If none
  // does, no older journal is restored, because its numbers would be used a second time. Line 18
  // assumes that this does not happen.
  void Recover(bool knows_newest_life);
  // [18] Takes the term of a new life. The term is above the journal's own term and above
  // `reported`, which is the highest term that tasks have reported.
  Term TakeTerm(std::uint64_t reported);
  // Called when the cluster is lost with its journal.
  void LoseAll();

  // [18a] Returns whether a coordinator with this journal must end, because a server has a shard of
  // this job.
  bool HasLost(JobUid job) const { return HasLost(*store_, job); }
  static bool HasLost(const coordinator::MemoryStateStore& journal, JobUid job);
  // [18a] Returns whether the journal may lack jobs that it once had.
  bool may_lack_jobs() const { return lost_ || backup_used_; }

  // [22] A walk can make the journal forget a move: the record of the move is lost before its
  // source gets the Drop. By chance alone this would happen once in five thousand walks.
  // BeginForgetting keeps the journal as it was before the move. The coordinator dies some events
  // later, and its next life begins with that journal. Until then the process `source` is
  // disconnected. In half of the cases the process `next`, which gets the shard, is also
  // disconnected, until the start-up window of the next life has closed.
  bool forgets_a_move() const { return forgotten_.has_value(); }
  std::unique_ptr<coordinator::MemoryStateStore> Copy() const;
  void BeginForgetting(std::unique_ptr<coordinator::MemoryStateStore> before, int source, int next);
  // Returns whether the coordinator must die now, so that the move is forgotten.
  bool ForgetsNow() const;
  bool KeepsDisconnected(int process) const;
  void OnWindowClosed();

 private:
  struct ForgottenMove {
    // The journal before the move. It is null once the next life has begun with it.
    std::unique_ptr<coordinator::MemoryStateStore> journal;
    int at = 0;  // the event at which the coordinator dies
    int source = 0, next = 0;
  };

  WalkContext& walk_;
  std::unique_ptr<coordinator::MemoryStateStore> store_, backup_;
  // The store before this life took its term. Only a mutant goes back to it.
  std::unique_ptr<coordinator::MemoryStateStore> unsynced_;
  std::optional<ForgottenMove> forgotten_;
  std::uint64_t durable_ = 0;  // number of durable commits
  bool lost_ = false, backup_used_ = false;
};

}  // namespace evergrad::simulation
