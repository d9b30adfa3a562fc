#include "common/transport/not_connected.h"

#include "absl/strings/cord.h"

namespace evergrad::transport {
namespace {
constexpr char kNotConnectedUrl[] = "evergrad.dev/not-connected";
}  // namespace

absl::Status MarkNotConnected(absl::Status status) {
  if (!status.ok()) status.SetPayload(kNotConnectedUrl, absl::Cord("yes"));
  return status;
}

bool IsNotConnected(const absl::Status& status) {
  return status.GetPayload(kNotConnectedUrl).has_value();
}

}  // namespace evergrad::transport
