// The version of this program in one line.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace evergrad::daemon {

// Returns a line such as "evergrad-worker 0.1.0+1a2b3c4d5e6f (protocol 1, g++ 12.2.0)".
std::string VersionLine(absl::string_view program);

}  // namespace evergrad::daemon
