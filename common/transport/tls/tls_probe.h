// Finds the reason of a failed connection by one more handshake with OpenSSL, because gRPC reports
// "Socket closed" for a certificate that the peer refused. The call blocks for at most two seconds.
// The call must run on a separate thread, because it blocks SIGPIPE there. Private to the room.
#pragma once

#include <string>

#include "common/transport/tls/tls_files.h"

namespace evergrad::transport {

// `pems` is nullptr for a client without TLS. Returns "" if the probe finds nothing to add.
std::string ProbeTls(const std::string& host_port, const TlsPems* pems);

}  // namespace evergrad::transport
