// Delays an action by a failpoint, without a timer: the caller asks Holds() each time before the
// action, and tries again later while it returns true. Not thread-safe: only the control executor
// calls it. The clock comes from the host.
#pragma once

#include <chrono>

#include "absl/strings/string_view.h"
#include "common/fault/failpoints.h"
#include "common/time/clock.h"
#include "coordinator/jobs/job_host.h"

namespace evergrad::coordinator {

class FailpointHold {
 public:
  explicit FailpointHold(absl::string_view name) : name_(name) {}  // `name` outlives this object.

  // Returns whether the action must wait. A hit with a delay blocks the action for that delay, any
  // other hit for 50 ms. Calls in the meantime do not count as hits.
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
