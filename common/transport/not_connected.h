// The error of a call that was never sent, because no connection to the peer could be made. Pure.
#pragma once

#include "absl/status/status.h"

namespace evergrad::transport {

// Returns whether `status` ended such a call, which can be repeated without side effects. False if
// a handshake refused a certificate, because another try would be refused as well.
bool IsNotConnected(const absl::Status& status);

// Marks `status` accordingly, for implementations of the transport. OK stays OK.
absl::Status MarkNotConnected(absl::Status status);

}  // namespace evergrad::transport
