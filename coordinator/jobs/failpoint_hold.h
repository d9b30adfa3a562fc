// Holds back what a failpoint delays, without a timer: whoever would begin it asks again at its
// next turn. Not thread-safe: the control executor's. No clock but through the host.
#pragma once

#include <chrono>

#include "absl/strings/string_view.h"
#include "common/fault/failpoints.h"
#include "common/time/clock.h"
#include "coordinator/jobs/job_host.h"

namespace evergrad::coordinator {

class FailpointHold {
 public:
  explicit FailpointHold(absl::string_view name) : name_(name) {}  // Outlives this object.

  // Each hit holds back for its delay, another action for 50 ms. No hit is counted meanwhile.
  bool Holds(JobHost* host) {
    const MonoTime now = host->Now();
    if (now < until_) return true;
    const fault::Hit hit = host->failpoints().At(name_);
    if (!hit) return false;
    until_ =
        now + std::chrono::milliseconds(hit.action == fault::Action::kDelay ? hit.delay_ms : 50);
    return true;
  }

 private:
  const absl::string_view name_;
  MonoTime until_{0};
};

}  // namespace evergrad::coordinator
