// Signs a text with an RSA key, as JSON Web Tokens with the algorithm RS256 need it. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::object_store {

// Returns the bytes of the signature RSASSA-PKCS1-v1_5 with SHA-256. `key_pem` is an unencrypted
// private key ("-----BEGIN PRIVATE KEY-----"). Returns InvalidArgument if it is anything else. The
// error contains nothing of the key.
absl::StatusOr<std::string> SignRs256(absl::string_view text, absl::string_view key_pem);

}  // namespace evergrad::object_store
