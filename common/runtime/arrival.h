// Passes one answer from an executor to a waiting thread.
//
// Only I/O threads may wait, because an executor never blocks. The answering side calls its
// function once. If the function is destroyed without a call (the executor was shut down, or the
// queue was dropped), the answer is Cancelled, so that no thread waits forever.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"

namespace evergrad::runtime {

// Thread-safe. The waiting side and the answering side share the object.
template <class T>
class Arrival {
 public:
  // Only the first answer counts.
  void Set(absl::StatusOr<T> value) {
    MutexLock lock(&mu_);
    if (!value_) value_ = std::move(value);
    arrived_.NotifyAll();
  }
  // Returns the answer. Wait is called once, because the answer is moved out.
  absl::StatusOr<T> Wait() {
    MutexLock lock(&mu_);
    while (!value_) arrived_.Wait(&mu_);
    return *std::move(value_);
  }
  // Returns the function for the answering side. `uncalled` is the message of the status Cancelled.
  static std::function<void(absl::StatusOr<T>)> Answerer(const std::shared_ptr<Arrival>& arrival,
                                                         absl::string_view uncalled) {
    struct Promise {
      std::shared_ptr<Arrival> arrival;
      std::string uncalled;
      Promise(std::shared_ptr<Arrival> a, absl::string_view text)
          : arrival(std::move(a)), uncalled(text) {}
      Promise(const Promise&) = delete;
      Promise& operator=(const Promise&) = delete;
      ~Promise() { arrival->Set(absl::CancelledError(uncalled)); }
    };
    return [promise = std::make_shared<Promise>(arrival, uncalled)](absl::StatusOr<T> value) {
      promise->arrival->Set(std::move(value));
    };
  }

 private:
  Mutex mu_;
  CondVar arrived_;
  std::optional<absl::StatusOr<T>> value_ ABSL_GUARDED_BY(mu_);
};

}  // namespace evergrad::runtime
