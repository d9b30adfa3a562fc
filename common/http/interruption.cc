#include "common/http/interruption.h"

#include <algorithm>

namespace evergrad::http {
namespace {

// A longer time could overflow the clock.
constexpr std::chrono::milliseconds kWaitMax = std::chrono::hours(24);

}  // namespace

bool Interruption::Wait(std::chrono::milliseconds time) {
  MutexLock lock(&mu_);
  while (!interrupted_) {
    // A spurious wake-up begins the wait again. Nobody relies on the wait to be exact.
    if (!changed_.WaitFor(&mu_, std::min(time, kWaitMax))) return !interrupted_;
  }
  return false;
}

void Interruption::Interrupt() {
  MutexLock lock(&mu_);
  interrupted_ = true;
  changed_.NotifyAll();
}

bool Interruption::interrupted() const {
  MutexLock lock(&mu_);
  return interrupted_;
}

}  // namespace evergrad::http
