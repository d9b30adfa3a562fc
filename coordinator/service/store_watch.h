// Whether the state store takes what it is given, and whether the next start would find it.
//
// The store calls from any thread; `on_change` then runs on the control executor, which owns this
// object. One call of it stands for all changes since the last. Nothing blocks.
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
  // All outlive the watch.
  StoreWatch(StateStore* store, runtime::Executor* control, log::Logger* logger);
  ~StoreWatch();
  // Once: from now on the watch is the store's listener, until it is destroyed.
  void Listen(std::function<void()> on_change);

  // OK, or why nothing new is accepted.
  const absl::Status& status() const { return status_; }
  // OK, or why no job is accepted or begun. That includes a store whose folder the next start would
  // not find: running jobs continue, but a new one would be lost with this process.
  const absl::Status& no_new_jobs() const { return status_.ok() ? place_ : status_; }
  const absl::Status& place() const { return place_; }
  // Unavailable for that reason, with the coordinator as its origin: the caller has reached it.
  absl::Status Refusal(absl::string_view what) const;

  // True: the store's folder has moved, or is where it was again.
  bool CheckPlace();
  // True: the store has capacity again, so new work is accepted.
  bool CheckHealth();
  // For good: nobody knows what the store holds, so no more work is accepted.
  void Fail(const absl::Status& status);

 private:
  struct Listener {
    Mutex mu;
    runtime::Executor* control ABSL_GUARDED_BY(mu) = nullptr;  // null: the watch has gone
    bool posted ABSL_GUARDED_BY(mu) = false;
  };
  StateStore* const store_;
  log::Logger* const logger_;
  const std::shared_ptr<Listener> listener_;  // with the store, which may call it late
  absl::Status status_, place_;
  bool broken_ = false;
};

}  // namespace evergrad::coordinator
