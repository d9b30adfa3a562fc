// The error of a call that was never sent, because no connection to the peer could be made. Pure.
#pragma once

#include "absl/status/status.h"

namespace evergrad::transport {

// Returns whether `status` ended a call that was never sent and that can therefore be repeated
// without side effects. Returns false if a handshake refused a certificate, because another attempt
// would be refused, too.
bool IsNotConnected(const absl::Status& status);

// Marks `status` as the end of a call that was never sent; OK stays OK. Implementations of the
// transport call this function.
absl::Status MarkNotConnected(absl::Status status);

}  // namespace evergrad::transport
