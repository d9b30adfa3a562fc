// The places in which the sources of credentials search. Only this room includes this header.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/object_store/credentials.h"

namespace evergrad::object_store {

// Nullopt means that the place is not configured, so that the search continues with the next place.
// An error means that the place is configured, and broken. Its codes are those of
// CredentialSource::Get.
using FoundCredentials = absl::StatusOr<std::optional<Credentials>>;

struct Place {
  std::string name;  // for the error that lists all places
  std::function<FoundCredentials()> read;
  // Each Get reads the place, because it may change without a notice and costs little.
  bool read_each_time = false;
};

// Returns the end of the error for missing credentials.
inline std::string MetadataHint(const CredentialOptions& options) {
  if (options.from_metadata) return "";
  return "; the metadata service is asked only with --store-metadata-credentials";
}

// Reads the two keys of a signature from the environment variables `id` and `secret`.
FoundCredentials ReadKeyPair(const CredentialOptions& options, const std::string& id,
                             const std::string& secret);

// The places of S3. Those that ask a service send one to three requests. AskInstance and
// AskGcsMetadata contact the metadata service whatever CredentialOptions::from_metadata says.
FoundCredentials ReadAwsEnvironment(const CredentialOptions& options);
FoundCredentials ReadAwsProfile(const CredentialOptions& options);
FoundCredentials AskWebIdentity(const CredentialOptions& options);
FoundCredentials AskContainer(const CredentialOptions& options);
FoundCredentials AskInstance(const CredentialOptions& options);

// The places of GCS.
FoundCredentials ReadGcsTokenFile(const CredentialOptions& options);
FoundCredentials ReadGcsHmacKeys(const CredentialOptions& options);
FoundCredentials ReadGoogleCredentialFile(const CredentialOptions& options);
FoundCredentials AskGcsMetadata(const CredentialOptions& options);

}  // namespace evergrad::object_store
