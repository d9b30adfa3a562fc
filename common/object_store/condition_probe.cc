#include "common/object_store/condition_probe.h"

namespace evergrad::object_store {
namespace {

absl::Status StatusOf(const std::string& defect) {
  return defect.empty() ? absl::OkStatus() : absl::FailedPreconditionError(defect);
}

}  // namespace

absl::Status ConditionProbe::Require(const Probe& probe) {
  {
    MutexLock lock(&mu_);
    while (state_ == State::kRunning) changed_.Wait(&mu_);
    if (state_ == State::kKnown) return StatusOf(defect_);
    state_ = State::kRunning;
  }
  const absl::StatusOr<std::string> result = probe();
  MutexLock lock(&mu_);
  state_ = result.ok() ? State::kKnown : State::kUnknown;
  if (result.ok()) defect_ = *result;
  changed_.NotifyAll();
  return result.ok() ? StatusOf(defect_) : result.status();
}

}  // namespace evergrad::object_store
