#include "common/transport/session/liveness.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/transport/frames/outbox.h"

namespace evergrad::transport {

absl::Status Liveness::Tick(MonoTime now, Outbox* outbox) {
  switch (Tick(now)) {
    case Step::kNothing: break;
    case Step::kSendPing: outbox->AddControl({.kind = wire::MessageKind::kPing}); break;
    case Step::kDead:
      return absl::UnavailableError(
          absl::StrCat("peer makes no progress: progress_timeout_ms=",
                       std::chrono::duration_cast<std::chrono::milliseconds>(limit_).count()));
  }
  return absl::OkStatus();
}

}  // namespace evergrad::transport
