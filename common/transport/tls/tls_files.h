// The three PEM files of a task, read and checked before gRPC uses them, so that errors name the
// file. The transport uses the files, and so does the daemon's metrics listener, which serves with
// the same certificate. tls_watch.h reads the files again while the process runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/transport.h"

struct ssl_ctx_st;     // OpenSSL's SSL_CTX.
struct x509_store_st;  // OpenSSL's X509_STORE.

namespace evergrad::transport {

struct TlsPems {
  std::string ca, cert, key;
  bool operator==(const TlsPems&) const = default;
};

// Returns nullopt for no files. The error InvalidArgument names the file. It is an error if only
// one or two of the three files are given, if a file is unreadable or not PEM, and if the key
// belongs to another certificate. It is also an error if the certificate is expired, not valid yet,
// or not signed by `ca` ("certificate verify failed: …"), and if the certificate names no task, or
// a task other than files.task.
absl::StatusOr<std::optional<TlsPems>> LoadTls(const TlsFiles& files);

// The two halves of LoadTls, for files of which all three are given: ReadTls reads them, and
// CheckTls checks their contents.
absl::StatusOr<TlsPems> ReadTls(const TlsFiles& files);
absl::Status CheckTls(const TlsPems& pems, const TlsFiles& files);

// Like CheckTls, for contents that will replace others in a running process. Contents are also
// refused if OpenSSL would not use them, or if the file of the certificate or of the authorities
// ends within a certificate, because another process may be writing the file.
absl::Status CheckReload(const TlsPems& pems, const TlsFiles& files);

// Returns the time at which the first certificate of `cert_pem` expires, in seconds since
// 1970-01-01 UTC. Returns 0 if the text is no certificate.
std::int64_t ExpirySeconds(const std::string& cert_pem);

// Returns the task that the certificate in the file names, for example "operator".
absl::StatusOr<std::string> TaskOfCertificateFile(const std::string& path);

// Adds every certificate of `pem` to `store`, and returns their number.
int AddAuthorities(const std::string& pem, x509_store_st* store);

// Makes `context` trust the authorities and show the certificate. Returns false if OpenSSL refuses
// one of them; its error queue then has the reason.
bool UseTls(ssl_ctx_st* context, const TlsPems& pems);

}  // namespace evergrad::transport
