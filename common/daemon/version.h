// Which Evergrad this is.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace evergrad::daemon {

// Of the session and of the control calls: a peer that speaks another one is refused, with both named.
inline constexpr std::uint32_t kProtocolVersion = 1;

std::string BuildId();                                  // "0.1.0"
std::string VersionLine(absl::string_view program);     // "evergrad-worker 0.1.0 (protocol 1, g++ 12.2.0)"

}  // namespace evergrad::daemon
