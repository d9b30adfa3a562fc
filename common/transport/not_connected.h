// The error of a call that never left, because no connection to the peer could be made. Pure.
#pragma once

#include "absl/status/status.h"

namespace evergrad::transport {

// Whether `status` ended such a call: it can be repeated without doing anything twice. False where
// a handshake refused a certificate, because another try would be refused as well.
bool IsNotConnected(const absl::Status& status);

// `status` with that mark; for the implementations of the transport. OK stays OK.
absl::Status MarkNotConnected(absl::Status status);

}  // namespace evergrad::transport
