#include "kubernetes/controller/job_list_view.h"

namespace evergrad::kubernetes {

void JobListView::Take(const v1::ListJobsResponse& list, const std::string& owner, MonoTime asked) {
  jobs_.clear();
  // The list is in order of submission, so the newest job of a request id stays.
  for (const v1::JobStatus& job : list.jobs())
    if (!job.request_id().empty() && job.owner() == owner) jobs_[job.request_id()] = job;
  asked_ = asked;
  error_ = absl::OkStatus();
}

void JobListView::Fail(const absl::Status& status, MonoTime now) {
  if (error_.ok() || failing_since_ == MonoTime(0)) failing_since_ = now;
  error_ = status;
}

const v1::JobStatus* JobListView::Find(const std::string& request_id) const {
  const auto found = jobs_.find(request_id);
  return found == jobs_.end() ? nullptr : &found->second;
}

std::string JobListView::Trouble(MonoTime now) const {
  if (error_.ok() || failing_since_ == MonoTime(0) || now - failing_since_ < kTroubleAfter)
    return "";
  return std::string(error_.message());
}

}  // namespace evergrad::kubernetes
