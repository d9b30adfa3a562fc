// Begins queued jobs, introduces tasks to them, and removes jobs that have ended.
//
// Not thread-safe: the control executor owns it.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "coordinator/service/service_parts.h"

namespace evergrad::coordinator {

class JobSupervisor {
 public:
  // `on_change` answers the calls that wait for a change of a job.
  JobSupervisor(ServiceParts parts, std::function<void()> on_change)
      : parts_(parts), on_change_(std::move(on_change)) {}

  // Restores the jobs of the store (see ControlPlane::Recover).
  absl::Status Recover(JobHost* host, const JobOptions& options);
  // Begins queued jobs, as many as may run now.
  void StartNext();
  // Records that a job has changed. A job calls this in the middle of its own work, so the reaction
  // is posted and runs later.
  void JobChanged();
  // Introduces a registered task to a job that it does not serve yet.
  void Introduce(Job& job, TaskId task);
  // Tells the jobs if the store's folder has moved, or has returned to its place.
  void CheckStorePlace();

 private:
  void AfterChange();
  void IntroduceTasks(Job& job);
  void ForgetOldJobs();

  const ServiceParts parts_;
  const std::function<void()> on_change_;
  bool change_posted_ = false;
};

}  // namespace evergrad::coordinator
