// Says why a connection to a peer does not come about, by trying it once more by hand: gRPC reports
// "Socket closed" for a certificate that the peer refused. Blocks for at most two seconds: on a
// thread of its own, whose SIGPIPE it blocks. Private to the room.
#pragma once

#include <string>

#include "common/transport/tls/tls_files.h"

namespace evergrad::transport {

// `pems` is nullptr for a plain client. "" when the probe has nothing to add.
std::string ProbeTls(const std::string& host_port, const TlsPems* pems);

}  // namespace evergrad::transport
