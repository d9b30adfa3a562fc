// Names of the machine that this process runs on.
#pragma once

#include <string>

namespace evergrad::fs {

// Equal for two processes of one running system and network namespace: its boot id (else machine
// id) and the namespace. Such processes may try each other's unix sockets.
// "" when the system does not say: then nobody is taken to be on the same host.
std::string HostId();
// The same of the boot id alone: two that are equal are the same running system, cloned machines
// included. "" when the system does not say.
std::string BootAndNetwork();
std::string HostName();  // "localhost" when the system does not say.

}  // namespace evergrad::fs
