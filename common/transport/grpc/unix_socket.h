// Checks of unix domain sockets. Private to the room.
#pragma once

#include <string>

namespace evergrad::transport {

inline constexpr std::size_t kUnixPathBytesMax =
    107;  // sockaddr_un has 108 bytes with the terminator

// Returns whether a process listens at `path` and this process may connect. The function tries to
// connect, because neither the file nor its mode gives the answer.
bool CanConnectUnix(const std::string& path);

}  // namespace evergrad::transport
