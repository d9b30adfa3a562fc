// Checks claims of workers before the job relies on them (LEDGER lines 34 to 38). The claims are
// proofs that a grant was made, claims that a later attempt exists although none was granted, and
// the number of updates that the shards hold when the job ends.
//
// Not thread-safe: only the control executor calls it. No clock and no I/O.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "coordinator/checkpoints/checkpoints.h"
#include "coordinator/closures/update_account.h"
#include "coordinator/jobs/epoch_account.h"
#include "coordinator/jobs/job_host.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::v1 {
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

class WorkerClaims : private JobPart {
 public:
  // `epochs` outlives this object.
  WorkerClaims(const JobPart& part, const EpochAccount* epochs) : JobPart(part), epochs_(epochs) {}

  // --- proofs (LEDGER lines 34 and 35). A job of an older build has no key and thus no proofs.
  std::string ProofOf(const std::string& worker, ClosureId closure, Attempt attempt) const;
  bool IsProved(const v1::HeldAttempt& held, Attempt attempt) const;

  // Called when a shard has answered the newest attempt at the closure with the claim that a later
  // attempt exists (LEDGER line 37). Returns false if this answer ends the job.
  bool OnSuperseded(ClosureId closure, ShardId shard, const std::string& worker);
  void OnEnded(ClosureId closure) { superseded_.erase(closure.value()); }

  // --- the number of updates of the closures of a plan (LEDGER line 38).
  // Returns InvalidArgument if the report of touched shards is malformed. Check must have returned
  // OK before Count is called.
  absl::Status Check(const v1::Done& done) const;
  // Counts the first success of a closure. `said` is null if the worker did not report touched
  // shards.
  void Count(ClosureId closure, const v1::TouchedLess* said);
  void TakeOver(const ResumePoint& point, bool same_plan);
  // Compares the reports of all shards with the plan and with the counted updates. `by_plan`
  // returns whether every update of every closure touches the shard.
  UpdateAccount::Finding Compare(const std::vector<v1::ShardState>& shards,
                                 const std::function<bool(const v1::ShardSpec&)>& by_plan) const;
  // Returns false if the job ends because of the finding.
  bool Accept(const UpdateAccount::Finding& finding);
  bool updates_exact() const { return updates_exact_; }  // True if the newest finding was exact.

  // --- the journal
  void Fill(v1::JobSnapshot* snapshot) const;
  void Read(const v1::JobSnapshot& snapshot);

 private:
  const EpochAccount* const epochs_;
  // Number of answers that claim a later attempt, by open closure.
  std::map<std::uint64_t, std::uint32_t> superseded_;
  UpdateAccount account_;
  bool updates_exact_ = false;
};

}  // namespace evergrad::coordinator
