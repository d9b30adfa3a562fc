#include "coordinator/jobs/job_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/sharding/partitioner.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {

std::uint64_t JobPlan::ServerBytesMax() const {
  const std::uint64_t own = id_.spec.resources.server_memory_bytes_max,
                      all = options_.server_memory_bytes_max;
  return own == 0 || all == 0 ? std::max(own, all) : std::min(own, all);
}

absl::Status JobPlan::Build(const v1::DescribeResult& described, const SectionLimit& limit) {
  EG_ASSIGN_OR_RETURN(BuiltPlan built, BuildPlan(id_.spec, described, limit));
  Take(std::move(built));
  described_ = described;
  described_.clear_warnings();  // The warnings have been added as events.
  partition_bytes_max_ = std::min(limit.bytes, sharding::kPartitionBytesMax);
  return absl::OkStatus();
}

void JobPlan::Take(BuiltPlan built) {
  plan_ = built.plan;
  epochs_.SetPlan(&*plan_);
  message_ = std::move(built.message);
  shards_.Plan(built.shard_bytes);
  server_bytes_ = built.server_bytes;
}

absl::Status JobPlan::CheckServerBytes() const {
  const std::uint64_t max = ServerBytesMax();
  if (max == 0 || server_bytes_ <= max) return absl::OkStatus();
  const bool its_own = max == id_.spec.resources.server_memory_bytes_max;
  return absl::ResourceExhaustedError(absl::StrCat(
      "the job's variables need more server memory than the limit: bytes=", server_bytes_,
      its_own ? " spec.resources.server_memory_bytes_max="
              : " coordinator's --job-server-memory-bytes-max=",
      max, " shards=", shards_.size()));
}

void JobPlan::Fill(bool begun, v1::JobSnapshot* snapshot) const {
  *snapshot->mutable_described() = described_;
  snapshot->set_has_plan(begun);
  if (!begun) return;
  snapshot->set_plan_fingerprint(message_.fingerprint());
  snapshot->set_partition_bytes_max(partition_bytes_max_);
}

absl::Status JobPlan::Read(const v1::JobSnapshot& snapshot, bool ended, std::string* refusal) {
  described_ = snapshot.described();
  if (!snapshot.has_plan() || !refusal->empty()) return absl::OkStatus();
  partition_bytes_max_ = snapshot.partition_bytes_max() == 0 ? sharding::kPartitionBytesMax
                                                             : snapshot.partition_bytes_max();
  absl::StatusOr<BuiltPlan> built =
      BuildPlan(id_.spec, described_, SectionLimit{.bytes = partition_bytes_max_});
  if (!built.ok()) {
    *refusal = absl::StrCat("this version cannot build the job's plan: ", built.status().message());
    return ended ? absl::OkStatus() : absl::InvalidArgumentError(*refusal);
  }
  if (built->message.fingerprint() != snapshot.plan_fingerprint()) {
    if (!ended)
      return absl::InvalidArgumentError(
          absl::StrCat("this version builds a different plan for the job: fingerprint=",
                       built->message.fingerprint(), " want=", snapshot.plan_fingerprint()));
    built->message.set_fingerprint(snapshot.plan_fingerprint());
  }
  Take(*std::move(built));
  return absl::OkStatus();
}

}  // namespace evergrad::coordinator
