// "host:port" as flags, files and messages say it. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace evergrad {

struct HostPort {
  std::string host;  // a name or an address, without brackets
  std::uint16_t port = 0;
};

// "name:4000", "127.0.0.1:4000", "[::1]:4000"; nullopt when it is none of these. A port is at most
// 65535 and written in digits alone.
std::optional<HostPort> ParseHostPort(absl::string_view text);

}  // namespace evergrad
