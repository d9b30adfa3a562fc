#include "worker/runner/lack.h"

#include "absl/strings/cord.h"
#include "common/base/status.h"

namespace evergrad::worker {
namespace {
constexpr char kLackUrl[] = "evergrad.dev/lack";
}  // namespace

absl::Status WithLack(Lack lack, absl::Status status) {
  if (status.ok() || lack == Lack::kNone) return status;
  status.SetPayload(kLackUrl, absl::Cord(lack == Lack::kAbility ? "ability" : "input"));
  return UserError(std::move(status));
}

Lack LackOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kLackUrl);
  if (!payload) return Lack::kNone;
  return *payload == "ability" ? Lack::kAbility : Lack::kInput;
}

}  // namespace evergrad::worker
