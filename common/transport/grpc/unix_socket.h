// Small questions about unix domain sockets. Private to the room.
#pragma once

#include <string>

namespace evergrad::transport {

inline constexpr std::size_t kUnixPathBytesMax = 107;  // sockaddr_un has 108, with the terminator.

// Whether somebody listens at `path` and we may connect: tried, since neither the file nor its mode
// says so.
bool CanConnectUnix(const std::string& path);

}  // namespace evergrad::transport
