// The three PEM files of a task, read and checked before gRPC sees them, so that a bad one is
// named. For the room, and for the daemon's metrics listener, which serves with the same
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

// Nothing for no files. InvalidArgument, with the file: one or two of three given, unreadable, no
// PEM, key of another certificate, and with "certificate verify failed: …": expired, not valid yet,
// not signed by `ca`; and when it names no task, or not files.task.
absl::StatusOr<std::optional<TlsPems>> LoadTls(const TlsFiles& files);

// Puts every certificate of `pem` into `store`; how many there were.
int AddAuthorities(const std::string& pem, x509_store_st* store);

}  // namespace evergrad::transport
