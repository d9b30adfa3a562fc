// The plan of a job and the description from which it is built (plan_builder.h). The journal keeps
// the description; after a restart the same plan is built from it again.
//
// Not thread-safe: only the control executor calls it. No clock and no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/plan/plan.h"
#include "coordinator/jobs/epoch_account.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/plan_builder.h"
#include "coordinator/jobs/shard_table.h"
#include "evergrad/v1/api.pb.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::v1 {
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

class JobPlan {
 public:
  // All arguments outlive this object. A plan that is built is passed to `shards` and `epochs`.
  JobPlan(const JobIdentity* id, const JobOptions* options, ShardTable* shards,
          EpochAccount* epochs)
      : id_(*id), options_(*options), shards_(*shards), epochs_(*epochs) {}

  explicit operator bool() const { return plan_.has_value(); }  // True once the job is described.
  const plan::Plan* operator->() const { return &*plan_; }
  const std::optional<plan::Plan>& plan() const { return plan_; }
  const v1::Plan& message() const { return message_; }
  const v1::DescribeResult& described() const { return described_; }
  // Returns the memory that all variables with optimizer state need at the servers.
  std::uint64_t server_bytes() const { return server_bytes_; }
  std::uint64_t ServerBytesMax() const;  // The limit for server_bytes(); 0 for none.

  void FillStatus(v1::JobStatus* status) const {
    status->set_server_bytes_max(ServerBytesMax());
    status->set_server_bytes(server_bytes_);
  }

  // Builds the plan, and returns the errors of BuildPlan.
  absl::Status Build(const v1::DescribeResult& described, const SectionLimit& limit);
  // Returns ResourceExhausted if the variables need more memory than the limit.
  absl::Status CheckServerBytes() const;
  // Frees the variables of the description. Without a journal the plan is never built from the
  // description again.
  void ForgetVariables() { described_.clear_variables(); }

  // --- the journal. `begun` is true once the plan is in use. Read returns InvalidArgument if this
  // version cannot build the plan or builds a different plan. For a job that has ended, Read
  // returns OK instead. If the plan cannot be built, Read sets `refusal`, and the job has no plan.
  // A different plan is kept, but is only shown. If `refusal` is already set, no plan is built.
  void Fill(bool begun, v1::JobSnapshot* snapshot) const;
  absl::Status Read(const v1::JobSnapshot& snapshot, bool ended, std::string* refusal);

 private:
  void Take(BuiltPlan built);

  const JobIdentity& id_;
  const JobOptions& options_;
  ShardTable& shards_;
  EpochAccount& epochs_;
  std::optional<plan::Plan> plan_;
  v1::Plan message_;
  std::uint64_t partition_bytes_max_ = 0;  // The limit with which the plan was built.
  std::uint64_t server_bytes_ = 0;
  v1::DescribeResult described_;
};

}  // namespace evergrad::coordinator
