// Names of the machine on which this process runs.
#pragma once

#include <string>

namespace evergrad::fs {

// Returns an id of this running system and network namespace: the boot id (or else the machine id)
// and the namespace. Processes with equal ids can try each other's unix sockets. Returns "" if the
// system does not provide these ids. With "", no process counts as being on the same host.
std::string HostId();
// Like HostId, but never from the machine id. Equal results therefore mean the same running system,
// even among cloned machines. Returns "" if the system does not provide the boot id.
std::string BootAndNetwork();
std::string HostName();  // "localhost" if the system reports no name

}  // namespace evergrad::fs
