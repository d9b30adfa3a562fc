// The three PEM files of a task, read and checked before gRPC uses them, so that errors name the
// file. For the room, and for the daemon's metrics listener, which serves with the same
// certificate.
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

// nullopt for no files. InvalidArgument names the file: if only one or two of the three are given,
// for an unreadable file, for text that is not PEM, for a key of another certificate, and with
// "certificate verify failed: …" if the certificate is expired, not valid yet, or not signed by
// `ca`; also if it names no task, or another one than files.task.
absl::StatusOr<std::optional<TlsPems>> LoadTls(const TlsFiles& files);

// Adds every certificate of `pem` to `store`; returns their number.
int AddAuthorities(const std::string& pem, x509_store_st* store);

}  // namespace evergrad::transport
