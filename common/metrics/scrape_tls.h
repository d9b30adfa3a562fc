// TLS of the metrics listener: the daemon's own certificate, and the verification of client
// certificates. Private to the room.
//
// A client may show no certificate, or an invalid one; the handshake still succeeds. The page that
// requires a certificate checks ClientCertificateProblem(). The pages about health therefore answer
// a probe without a certificate.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX.
struct ssl_st;      // OpenSSL's SSL.

namespace evergrad::metrics {

struct TlsPems;

// Returns a context for TLS 1.2 and later. The context has no session resumption, because a resumed
// session would not verify the client's certificate again. Returns InvalidArgument for a text that
// is not PEM, or a key that does not belong to the certificate.
absl::StatusOr<std::shared_ptr<ssl_ctx_st>> MakeServerContext(const TlsPems& pems);

// Returns "" if the client showed a currently valid certificate signed by the authority, and
// otherwise the problem. Valid after the handshake.
std::string ClientCertificateProblem(const ssl_st* session);

}  // namespace evergrad::metrics
