// The notation "host:port" of flags, files and messages. Pure functions.
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

// Parses "name:4000", "127.0.0.1:4000" or "[::1]:4000". A port has digits only and is at most
// 65535. Returns nullopt for anything else.
std::optional<HostPort> ParseHostPort(absl::string_view text);

}  // namespace evergrad
