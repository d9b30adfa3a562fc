// TLS of the metrics listener: the daemon's own certificate, and what a client's certificate is
// worth. Private to the room.
//
// A client is asked for a certificate and may go without one, or show one that does not verify: the
// handshake succeeds, and the page that needs a certificate asks ClientCertificateProblem(). So
// /healthz answers a prober that has none.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX.
struct ssl_st;      // OpenSSL's SSL.

namespace evergrad::metrics {

struct TlsPems;

// InvalidArgument: a text that is no PEM, or a key of another certificate. TLS 1.2 and later, no
// session resumption (a resumed session would not verify the client's certificate again).
absl::StatusOr<std::shared_ptr<ssl_ctx_st>> MakeServerContext(const TlsPems& pems);

// After the handshake: "" when the client showed a certificate that the authority signed and that
// is valid now, else what is wrong with it.
std::string ClientCertificateProblem(const ssl_st* session);

}  // namespace evergrad::metrics
