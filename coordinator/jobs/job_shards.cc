// The plan of a job, and its shards.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/sharding/partitioner.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_error.h"
#include "coordinator/jobs/plan_builder.h"
#include "coordinator/scheduler/placement.h"

namespace evergrad::coordinator {
namespace {

constexpr int kDescribeWarningsMax = 16;

}  // namespace

void Job::OnDescribed(const v1::DescribeResult& described) {
  const SectionLimit limit = placer_.ServersLimit();
  absl::StatusOr<BuiltPlan> built = BuildPlan(id_.spec, described, limit);
  if (!built.ok()) {
    const bool user = BlameOf(built.status()) == Blame::kUser;
    Fail(MakeError(built.status(), user ? "user" : "internal", "coordinator"), user);
    return;
  }
  plan_ = std::move(built->plan);
  epochs_.SetPlan(&*plan_);
  plan_message_ = std::move(built->message);
  shards_.Plan(built->shard_bytes);
  described_ = described;
  partition_bytes_max_ = std::min(limit.bytes, sharding::kPartitionBytesMax);
  described_.clear_warnings();  // they are events from here on
  for (int i = 0; i < std::min(described.warnings_size(), kDescribeWarningsMax); ++i)
    Event("warning", described.warnings(i));
  const std::uint64_t bytes = server_bytes_ = built->server_bytes;
  if (const std::uint64_t max = ServerBytesMax(); max != 0 && bytes > max) {
    const bool its_own = max == id_.spec.resources.server_memory_bytes_max;
    Fail(
        MakeError(
            absl::ResourceExhaustedError(absl::StrCat(
                "the job's variables need more memory of the servers than the limit: bytes=", bytes,
                its_own ? " spec.resources.server_memory_bytes_max="
                        : " coordinator's --job-server-memory-bytes-max=",
                max, " shards=", shards_.size())),
            "user", "coordinator"),
        true);
    return;
  }
  if (!journals())
    described_.clear_variables();  // else the plan is made of them again after a restart
  if (rounds_.on() && id_.spec.checkpoint.resume) return resume_.Look();
  BeginPlan();
}

ClosureBook::Options Job::BookOptions() const {
  ClosureBook::Options options;
  options.closures = plan_->closures();
  options.shards = shards_.size();
  options.open_max = options_.closures_open_max;
  return options;
}

std::uint64_t Job::ServerBytesMax() const {
  const std::uint64_t own = id_.spec.resources.server_memory_bytes_max,
                      all = options_.server_memory_bytes_max;
  return own == 0 || all == 0 ? std::max(own, all) : std::min(own, all);
}

void Job::BeginPlan() {
  book_ = std::make_unique<ClosureBook>(BookOptions(), DurableState{});
  Record begun = book_->BeginLife(host_->term());
  book_->CloseWindow();
  epochs_.BeginPlan();
  resume_.Apply(&begun);
  source_->UpdateNewLimit();
  Event("state", source_->ReadyText(described_));
  journal_.Add(begun);
  Apply(PhaseEvent::kPlanned);
}

}  // namespace evergrad::coordinator
