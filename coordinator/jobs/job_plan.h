// The plan of a job and the description that it is built of (plan_builder.h). The journal keeps the
// description; after a restart the same plan is built of it again.
//
// Not thread-safe: the control executor's. No clock and no I/O.
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
  // The pointers outlive this object. A plan that is built is told to `shards` and `epochs`.
  JobPlan(const JobIdentity* id, const JobOptions* options, ShardTable* shards,
          EpochAccount* epochs)
      : id_(*id), options_(*options), shards_(*shards), epochs_(*epochs) {}

  explicit operator bool() const { return plan_.has_value(); }  // The job is described.
  const plan::Plan* operator->() const { return &*plan_; }
  const std::optional<plan::Plan>& plan() const { return plan_; }
  const v1::Plan& message() const { return message_; }
  const v1::DescribeResult& described() const { return described_; }
  // The memory that all variables need at the servers, with optimizer state.
  std::uint64_t server_bytes() const { return server_bytes_; }
  std::uint64_t ServerBytesMax() const;  // The limit for it; 0: none.

  void FillStatus(v1::JobStatus* status) const {
    status->set_server_bytes_max(ServerBytesMax());
    status->set_server_bytes(server_bytes_);
  }

  // The errors are those of BuildPlan.
  absl::Status Build(const v1::DescribeResult& described, const SectionLimit& limit);
  // ResourceExhausted: the variables need more memory than the limit.
  absl::Status CheckServerBytes() const;
  // Without a journal nothing is built of the description again.
  void ForgetVariables() { described_.clear_variables(); }

  // --- the journal. `begun`: the plan is in use. InvalidArgument: this version builds no plan, or
  // another one. For a job that has ended this is no error but a `refusal`, if there is none yet,
  // and the job has no plan then or one that is only shown.
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
  std::uint64_t partition_bytes_max_ = 0;  // With which the plan was built.
  std::uint64_t server_bytes_ = 0;
  v1::DescribeResult described_;
};

}  // namespace evergrad::coordinator
