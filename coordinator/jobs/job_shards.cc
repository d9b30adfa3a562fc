// The plan of a job, and its shards.
#include <algorithm>

#include "common/base/status.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_error.h"

namespace evergrad::coordinator {
namespace {

constexpr int kDescribeWarningsMax = 16;

}  // namespace

void Job::OnDescribed(const v1::DescribeResult& described) {
  if (const absl::Status built = plan_.Build(described, placer_.ServersLimit()); !built.ok()) {
    const bool user = BlameOf(built) == Blame::kUser;
    return Fail(MakeError(built, user ? "user" : "internal", "coordinator"), user);
  }
  for (int i = 0; i < std::min(described.warnings_size(), kDescribeWarningsMax); ++i)
    Event("warning", described.warnings(i));
  if (const absl::Status fits = plan_.CheckServerBytes(); !fits.ok())
    return Fail(MakeError(fits, "user", "coordinator"), true);
  if (!journal_.on()) plan_.ForgetVariables();
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

void Job::BeginPlan() {
  book_ = std::make_unique<ClosureBook>(BookOptions(), DurableState{});
  Record begun = book_->BeginLife(host_->term());
  book_->CloseWindow();
  epochs_.BeginPlan();
  resume_.Apply(&begun);
  source_->UpdateNewLimit();
  Event("state", source_->ReadyText(plan_.described()));
  journal_.writer().Add(begun);
  Apply(PhaseEvent::kPlanned);
}

}  // namespace evergrad::coordinator
