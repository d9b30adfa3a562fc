// Ends the waits of I/O threads when a daemon stops, so that a retry or a slow transfer does not
// delay the end of the process. Thread-safe.
#pragma once

#include <chrono>

#include "common/base/mutex.h"

namespace evergrad::http {

class Interruption {
 public:
  // Waits for `time`, but at most for a day. Returns false, at once, after Interrupt().
  virtual bool Wait(std::chrono::milliseconds time);
  // Ends all present and future waits.
  void Interrupt();
  bool interrupted() const;

  Interruption() = default;
  virtual ~Interruption() = default;  // a test overrides Wait to count the waits
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

 private:
  mutable Mutex mu_;
  CondVar changed_;
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace evergrad::http
