// The hosts that a client contacts directly, whatever proxy the environment names. Pure.
#pragma once

#include "absl/strings/string_view.h"

namespace evergrad::http {

// Returns whether `host` is this machine, or a service that a cloud offers to this machine alone,
// such as metadata and credentials: localhost, 127.0.0.0/8, ::1, 169.254.0.0/16, fd00:ec2::/32,
// fd20:ce::254 and metadata.google.internal. A proxy would reach its own machine under these names,
// and would see the credentials. An IPv6 address may have brackets.
bool IsLocalHost(absl::string_view host);

}  // namespace evergrad::http
