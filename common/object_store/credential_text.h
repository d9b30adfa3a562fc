// Checks texts that belong to credentials: secrets, URLs to which a secret is sent, and answers of
// services. No error contains the text that was checked. Only this room includes this header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/http/client.h"
#include "common/object_store/credentials.h"

namespace evergrad::object_store {

inline constexpr std::size_t kSecretBytesMax = 16 << 10;
inline constexpr std::uint64_t kCredentialFileBytesMax = 1 << 20;

// Returns the value of a variable, or "" if it is not set.
std::string VariableOf(const CredentialOptions& options, const std::string& name);

// Returns Unauthenticated, with `name`, unless `secret` has 1 to kSecretBytesMax visible ASCII
// characters. Other characters would end a header, or are a mistake, such as a line end.
absl::Status CheckSecret(absl::string_view secret, absl::string_view name);

// Returns the host of an https:// or http:// URL ("[::1]" with its brackets), or "" for any other
// text. The syntax is stricter than that of HTTP clients, so that a client cannot see another host.
std::string HostOf(absl::string_view url);
// Returns Unauthenticated, with `name`, unless `url` is https://, or http:// to this machine or to
// one of `http_hosts`.
absl::Status CheckUrl(absl::string_view url, absl::string_view name,
                      const std::vector<absl::string_view>& http_hosts = {});

// Returns a file without white space at its ends. The error is Unauthenticated, with `name`, the
// variable or field that names the file.
absl::StatusOr<std::string> ReadCredentialFile(const std::string& path, absl::string_view name);

// Sends a request to a service that gives out credentials, and returns its answer. If the status of
// the answer is not 200, returns an error with the status and the code of the error in the body.
// `place` is for the error.
absl::StatusOr<http::Response> Ask(const CredentialOptions& options, http::Request request,
                                   absl::string_view place);

// Returns the code of an error in the answer of a service, such as "ExpiredToken" or
// "invalid_grant", or "". The answer is JSON or XML, or has any other content.
std::string ErrorCodeOf(absl::string_view body);

}  // namespace evergrad::object_store
