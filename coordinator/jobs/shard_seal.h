// The seal of a job that ends early (LEDGER line 20a): the owner of each shard must apply no more
// updates to it. A shard counts as sealed if the process of its owner is gone. If an owner does not
// answer by the deadline, its shards are unmapped: no server owns them, and later updates of these
// shards are void.
//
//   Begin ─▶ Seal to each owner ─▶ OnSealed, or the deadline ─▶ IsComplete
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host. The seal
// is not in the journal: a restarted coordinator seals every shard again.
#pragma once

#include <set>
#include <string>

#include "coordinator/jobs/job_host.h"

namespace evergrad::coordinator {

class ShardSeal : private JobPart {
 public:
  explicit ShardSeal(const JobPart& part) : JobPart(part) {}

  void Begin();
  void OnSealed(TaskId task, const v1::Sealed& sealed);
  void OnReady(const JobServer& server);  // Repeats Seals that the server may have missed.
  // Called when the shard has no server any more.
  void OnGone(ShardId shard) { unsealed_.erase(shard); }
  // Returns whether every shard is sealed. After the deadline it first unmaps the shards that are
  // not sealed, and returns false if the store fails.
  bool IsComplete();
  std::string WaitingFor() const;  // "" if all are sealed.

 private:
  void Send(ShardId shard);

  std::set<ShardId> unsealed_;
  MonoTime deadline_{0};
};

}  // namespace evergrad::coordinator
