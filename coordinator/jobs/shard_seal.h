// The seal of a job that ends early (LEDGER line 20a): the owner of each shard is told to apply
// nothing more to it. A shard whose process is gone counts as sealed, and a shard whose owner is
// silent until the deadline is unmapped, which voids whatever is applied to it from then on.
//
//   Begin ─▶ Seal to each owner ─▶ OnSealed, or the deadline ─▶ IsComplete
//
// Not thread-safe: the control executor's. No clock and no I/O but through the host. The journal
// says nothing of it: a restarted coordinator seals every shard again.
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
  void OnReady(const JobServer& server);                  // It may not have received its orders.
  void OnGone(ShardId shard) { unsealed_.erase(shard); }  // No server has the shard any more.
  // Returns whether every shard is sealed. Past the deadline the shards that are not sealed are
  // unmapped first; if the store fails then, the answer is false.
  bool IsComplete();
  std::string WaitingFor() const;  // "": for nothing.

 private:
  void Send(ShardId shard);

  std::set<ShardId> unsealed_;
  MonoTime deadline_{0};
};

}  // namespace evergrad::coordinator
