// Finds the reason of a failed connection by one more handshake with OpenSSL, because gRPC reports
// "Socket closed" for a certificate that the peer refused. The call blocks for at most two seconds.
// The call must run on a thread of its own, because it blocks SIGPIPE on that thread. Private to
// the room.
#pragma once

#include <string>

#include "common/transport/tls/tls_files.h"

namespace evergrad::transport {

// Returns the reason, or "" if none was found. `pems` is nullptr for a client without TLS.
std::string ProbeTls(const std::string& host_port, const TlsPems* pems);

}  // namespace evergrad::transport
