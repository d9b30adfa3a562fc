// Remembers whether a store honours the condition of a write with PutMode::kIfAbsent. Thread-safe.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"

namespace evergrad::object_store {

class ConditionProbe {
 public:
  // Returns the defect of the store as a text, or "" if the store honours the condition.
  using Probe = std::function<absl::StatusOr<std::string>()>;
  // Returns OK if the store honours the condition, and FailedPrecondition with the defect if not.
  // The first call runs `probe`, and calls of other threads wait for its end. An error of the probe
  // is returned and not remembered, so the next call probes again.
  absl::Status Require(const Probe& probe);

 private:
  enum class State { kUnknown, kRunning, kKnown };
  Mutex mu_;
  CondVar changed_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kUnknown;
  std::string defect_ ABSL_GUARDED_BY(mu_);
};

}  // namespace evergrad::object_store
