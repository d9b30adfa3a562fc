#include "worker/runner/shortfall.h"

#include "absl/strings/cord.h"
#include "common/base/status.h"

namespace evergrad::worker {
namespace {
constexpr char kShortfallUrl[] = "evergrad.dev/lack";
}  // namespace

absl::Status WithShortfall(Shortfall shortfall, absl::Status status) {
  if (status.ok() || shortfall == Shortfall::kNone) return status;
  status.SetPayload(kShortfallUrl,
                    absl::Cord(shortfall == Shortfall::kAbility ? "ability" : "input"));
  return UserError(std::move(status));
}

Shortfall ShortfallOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kShortfallUrl);
  if (!payload) return Shortfall::kNone;
  return *payload == "ability" ? Shortfall::kAbility : Shortfall::kInput;
}

}  // namespace evergrad::worker
