// Descriptions of answers that are of no use, and the time until the next attempt. Pure.
#pragma once

#include <chrono>
#include <string>

#include "common/preemption/clouds/cloud_watch.h"

namespace evergrad::preemption {

// Describes an answer that the watch does not expect, on one line and with at most 60 characters of
// its body.
std::string Unexpected(const Answer& answer);

// The time to wait after a failure: 1 s, 2 s, then 5 s. A notice may be only 30 s long, so the
// times stay short.
class Retries {
 public:
  std::chrono::milliseconds Next();
  void Reset() { failures_ = 0; }

 private:
  int failures_ = 0;
};

}  // namespace evergrad::preemption
