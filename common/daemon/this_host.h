// Determines whether an address belongs to this host, as far as this process can determine it.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace evergrad::daemon {

enum class Where { kThisHost, kElsewhere, kUnknown };

// Returns whether "host:port" or "[::1]:port" is on this host. A name is looked up, which may
// block. For a name that cannot be resolved, the result is kUnknown. An address belongs to this
// host if it is a loopback address, or if an interface of this network namespace has the address.
Where WhereIs(absl::string_view host_port);
// Returns whether a peer is on this host. The peer is given in the transport's notation:
// "ipv4:10.0.0.1:4000", "ipv6:[fe80::1]:4000". For any other notation ("unix:", a test's), the
// result is kUnknown. Resolves no names.
Where WhereIsPeer(absl::string_view peer);

// Checks whether workers may be able to reach a server at the address `advertised`, given the place
// of its coordinator. Returns InvalidArgument (a user error) if the address is a loopback address
// and the coordinator is on another host. `where_is` is WhereIs, or a test's replacement.
absl::Status CheckServerAddress(absl::string_view advertised, absl::string_view coordinator,
                                const std::function<Where(absl::string_view)>& where_is);

}  // namespace evergrad::daemon
