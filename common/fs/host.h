// Names of the machine that this process runs on.
#pragma once

#include <string>

namespace evergrad::fs {

// Equal for two processes of one running system and network namespace: its boot id (else machine id) and the namespace. Such
// processes may try each other's unix sockets.
// "" when the system does not say: then nobody is taken to be on the same host.
std::string HostId();
std::string HostName();  // "localhost" when the system does not say.

}  // namespace evergrad::fs
