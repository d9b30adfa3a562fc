// Watches whether the state store accepts changes, and whether the next start of the coordinator
// would find the store.
//
// The store calls the watch on any thread; `on_change` then runs on the control executor, which
// owns the watch. One call of `on_change` covers all changes since its previous call. Nothing
// blocks.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/log/log.h"
#include "common/runtime/executor.h"
#include "coordinator/jobs/state_store.h"

namespace evergrad::coordinator {

class StoreWatch {
 public:
  // All arguments outlive the watch.
  StoreWatch(StateStore* store, runtime::Executor* control, log::Logger* logger);
  ~StoreWatch();
  // Makes the watch the store's listener until the watch is destroyed. Listen must be called once.
  void Listen(std::function<void()> on_change);

  // Returns OK, or the reason why new work is refused.
  const absl::Status& status() const { return status_; }
  // Returns OK, or the reason why no job is accepted or started. One reason is that the next start
  // would not find the store's folder: running jobs continue, but a new job would be lost with this
  // process.
  const absl::Status& no_new_jobs() const { return status_.ok() ? place_ : status_; }
  const absl::Status& place() const { return place_; }
  // Returns Unavailable with the reason of no_new_jobs(). The error names the coordinator as its
  // origin, because the caller has reached the coordinator.
  absl::Status Refusal(absl::string_view what) const;

  // Returns true if the store's folder was moved away or has returned since the previous call.
  bool CheckPlace();
  // Returns true if the store has capacity again. New work is then accepted.
  bool CheckHealth();
  // Ends the acceptance of work permanently, because the contents of the store are unknown.
  void Fail(const absl::Status& status);

 private:
  struct Listener {
    Mutex mu;
    // Null if the watch has been destroyed.
    runtime::Executor* control ABSL_GUARDED_BY(mu) = nullptr;
    bool posted ABSL_GUARDED_BY(mu) = false;
  };
  StateStore* const store_;
  log::Logger* const logger_;
  // Shared with the store, which may call it after the watch is destroyed.
  const std::shared_ptr<Listener> listener_;
  absl::Status status_, place_;
  bool broken_ = false;
};

}  // namespace evergrad::coordinator
