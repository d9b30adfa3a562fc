// The credentials with which requests to an object store are signed.
//
// A source returns credentials that are valid for at least kRenewBefore, and gets new ones where it
// can. Sources are thread-safe and block. No error, log line or other text contains a secret, and
// Credentials has no function that prints it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/fs/object_uri.h"
#include "common/http/client.h"
#include "common/time/clock.h"

namespace evergrad::object_store {

struct Credentials {
  // Keys for a signature: AWS keys, or HMAC keys of GCS.
  std::string access_key_id, secret_access_key;
  std::string session_token;  // "" for permanent keys
  // An OAuth 2.0 access token of GCS. If it is set, the request is not signed.
  std::string bearer_token;
  std::int64_t expires_ms = 0;  // wall time; 0 for never
  // The place where these credentials were found, for messages: "environment",
  // "/home/a/.aws/credentials [default]".
  std::string origin;
};

inline constexpr std::chrono::minutes kRenewBefore{5};

class CredentialSource {
 public:
  virtual ~CredentialSource() = default;
  // The first call searches the places of the source. The first place that is configured is used;
  // if it is broken, the call fails, because credentials of another place could belong to another
  // account. One thread renews at a time. The other threads get the credentials that are still
  // valid, or wait. If a renewal fails while the old credentials are valid, the call returns these.
  //
  // The errors are Unauthenticated (no credentials, with all places that were searched; or a place
  // that is not as expected), PermissionDenied (the service that was asked for credentials
  // refuses), Unavailable (this service cannot be reached, or its answer is not as documented; a
  // later call can succeed), and Cancelled. The code is never NotFound or FailedPrecondition, which
  // would speak about an object.
  virtual absl::StatusOr<Credentials> Get() = 0;
  // Reports that the store has refused credentials with this access key or token as expired or
  // unknown. The next Get reads its place again, unless it has other credentials by now.
  virtual void Refused(const Credentials& used) = 0;
};

// Returns the value of an environment variable, or nullopt. main.cc supplies it.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;

struct CredentialOptions {
  Variables variables;
  // Whether the metadata service of the machine may be asked for credentials. It is never contacted
  // otherwise.
  bool from_metadata = false;
  std::string metadata_url;        // "" for the address of the cloud; tests use a loopback address
  http::Client* client = nullptr;  // outlives the source; for web identity and metadata
  const Clock* clock = nullptr;    // outlives the source
};

// Returns the source for S3. It searches, in this order: AWS_ACCESS_KEY_ID with
// AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN (STS
// AssumeRoleWithWebIdentity, at AWS_ENDPOINT_URL_STS or the region's address);
// AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials, profile AWS_PROFILE or default;
// AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI (EKS Pod Identity, ECS; loopback,
// 169.254.170.2/23, fd00:ec2::23 or HTTPS only) with AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE; and,
// if `from_metadata`, the instance profile (IMDSv2).
std::unique_ptr<CredentialSource> MakeS3Credentials(CredentialOptions options);
// Returns the source for GCS. It searches, in this order: EVERGRAD_GCS_TOKEN_FILE (a file with an
// access token, read again when it changes); GS_ACCESS_KEY_ID with GS_SECRET_ACCESS_KEY (HMAC
// keys); GOOGLE_APPLICATION_CREDENTIALS or ~/.config/gcloud/application_default_credentials.json
// (the types service_account, authorized_user and external_account with a file as its source); and,
// if `from_metadata`, the service account of the machine or pod.
std::unique_ptr<CredentialSource> MakeGcsCredentials(CredentialOptions options);

}  // namespace evergrad::object_store
