// Whether an address is this host's own, as far as this process can tell.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace evergrad::daemon {

enum class Where { kThisHost, kElsewhere, kUnknown };

// Of "host:port" or "[::1]:port". A name is looked up, which may take a while; one that cannot be
// looked up now is kUnknown. An address is this host's if it is a loopback address or an interface
// of this network namespace has it.
Where WhereIs(absl::string_view host_port);
// Of a peer as the transport names it: "ipv4:10.0.0.1:4000", "ipv6:[fe80::1]:4000"; anything else
// ("unix:", a test's) is kUnknown. Looks nothing up.
Where WhereIsPeer(absl::string_view peer);

// Whether workers may reach a server that tells them `advertised`, by where its coordinator is.
// InvalidArgument (a user's): the address is a loopback one and the coordinator is on another host.
// `where_is`: WhereIs, or a test's.
absl::Status CheckServerAddress(absl::string_view advertised, absl::string_view coordinator,
                                const std::function<Where(absl::string_view)>& where_is);

}  // namespace evergrad::daemon
