// Passes a failpoint on an executor. The continuation runs at once, after a delay, or with the
// error that a test requested.
#pragma once

#include <chrono>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/fault/failpoints.h"
#include "common/runtime/executor.h"

namespace evergrad::worker {

// Calls `then` exactly once, on `executor`, or directly inside this call if there is no delay. The
// action `drop` gives Aborted. The caller then skips its next action if it can, and otherwise
// handles Aborted as any other error. `failpoints` may be null.
inline void AtFailpoint(fault::Failpoints* failpoints, absl::string_view name,
                        runtime::Executor* executor, std::function<void(absl::Status)> then) {
  const fault::Hit hit = failpoints == nullptr ? fault::Hit{} : failpoints->At(name);
  switch (hit.action) {
    case fault::Action::kError: return then(absl::InternalError(absl::StrCat("failpoint: ", name)));
    case fault::Action::kUserError:
      return then(UserError(absl::InvalidArgumentError(absl::StrCat("failpoint: ", name))));
    case fault::Action::kDrop:
      return then(absl::AbortedError(absl::StrCat("failpoint drops: ", name)));
    case fault::Action::kDelay:
      executor->PostAfter(std::chrono::milliseconds(hit.delay_ms),
                          [then = std::move(then)] { then(absl::OkStatus()); });
      return;
    case fault::Action::kNone:
    case fault::Action::kOn: return then(absl::OkStatus());
  }
}

}  // namespace evergrad::worker
