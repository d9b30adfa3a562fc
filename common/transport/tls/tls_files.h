// The three PEM files of a task, read and checked before gRPC uses them, so that errors name the
// file. The transport uses the files, and so does the daemon's metrics listener, which serves with
// the same certificate.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/transport/transport.h"

struct x509_store_st;  // OpenSSL's X509_STORE.

namespace evergrad::transport {

struct TlsPems {
  std::string ca, cert, key;
};

// Returns nullopt for no files. The error InvalidArgument names the file. It is an error if only
// one or two of the three files are given, if a file is unreadable or not PEM, and if the key
// belongs to another certificate. It is also an error if the certificate is expired, not valid yet,
// or not signed by `ca` ("certificate verify failed: …"), and if the certificate names no task, or
// a task other than files.task.
absl::StatusOr<std::optional<TlsPems>> LoadTls(const TlsFiles& files);

// Adds every certificate of `pem` to `store`, and returns their number.
int AddAuthorities(const std::string& pem, x509_store_st* store);

}  // namespace evergrad::transport
