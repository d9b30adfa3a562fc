// The ordinal of a host in a group of equal hosts, for example of a stateful set.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace evergrad::daemon {

// Returns the number after the last dash of the name: "3" for "worker-3", "worker-03" and
// "worker-3.pool". Returns "" for a name without such a number, or with a number above 4294967295.
std::string HostOrdinal(absl::string_view host_name);

}  // namespace evergrad::daemon
