// Finds the reason of a failed connection by one more handshake with OpenSSL, because gRPC reports
// "Socket closed" for a certificate that the peer refused. Blocks for at most two seconds; run it
// on a separate thread, whose SIGPIPE it blocks. Private to the room.
#pragma once

#include <string>

#include "common/transport/tls/tls_files.h"

namespace evergrad::transport {

// `pems` is nullptr for a plain client. Returns "" if the probe finds nothing to add.
std::string ProbeTls(const std::string& host_port, const TlsPems* pems);

}  // namespace evergrad::transport
