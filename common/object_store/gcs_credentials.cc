// The places of GCS except the credential file, and the order of all places.
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/object_store/credential_answers.h"
#include "common/object_store/credential_places.h"
#include "common/object_store/credential_text.h"
#include "common/object_store/renewing_source.h"

namespace evergrad::object_store {
namespace {

constexpr absl::string_view kMetadataUrl = "http://169.254.169.254";

}  // namespace

FoundCredentials ReadGcsTokenFile(const CredentialOptions& options) {
  constexpr absl::string_view kPlace = "EVERGRAD_GCS_TOKEN_FILE";
  const std::string file = VariableOf(options, std::string(kPlace));
  if (file.empty()) return std::nullopt;
  Credentials credentials;
  EG_ASSIGN_OR_RETURN(credentials.bearer_token, ReadCredentialFile(file, kPlace));
  EG_RETURN_IF_ERROR(CheckSecret(credentials.bearer_token, kPlace));
  credentials.origin = Quoted(file, 1024);
  return credentials;
}

FoundCredentials ReadGcsHmacKeys(const CredentialOptions& options) {
  return ReadKeyPair(options, "GS_ACCESS_KEY_ID", "GS_SECRET_ACCESS_KEY");
}

FoundCredentials AskGcsMetadata(const CredentialOptions& options) {
  constexpr absl::string_view kPlace = "the service account of the machine or pod";
  http::Request request;
  request.method = "GET";
  request.url =
      absl::StrCat(options.metadata_url.empty() ? std::string(kMetadataUrl) : options.metadata_url,
                   "/computeMetadata/v1/instance/service-accounts/default/token");
  request.headers = {{"metadata-flavor", "Google"}};
  const std::int64_t asked_ms = options.clock->WallMillis();
  EG_ASSIGN_OR_RETURN(const http::Response answer, Ask(options, std::move(request), kPlace));
  // Another server at this address, such as a captive portal, does not send this header.
  if (!absl::EqualsIgnoreCase(answer.Find("metadata-flavor"), "Google"))
    return absl::UnavailableError(absl::StrCat(
        "the answer is not from Google's metadata service: want=metadata-flavor: Google place=",
        kPlace));
  EG_ASSIGN_OR_RETURN(Credentials credentials, ParseTokenAnswer(answer.body, kPlace, asked_ms));
  credentials.origin = std::string(kPlace);
  return credentials;
}

std::unique_ptr<CredentialSource> MakeGcsCredentials(CredentialOptions options) {
  EG_CHECK(options.client != nullptr && options.clock != nullptr);
  std::vector<Place> places{
      {"EVERGRAD_GCS_TOKEN_FILE", [options] { return ReadGcsTokenFile(options); }, true},
      {"GS_ACCESS_KEY_ID", [options] { return ReadGcsHmacKeys(options); }},
      {"GOOGLE_APPLICATION_CREDENTIALS or the login of gcloud",
       [options] { return ReadGoogleCredentialFile(options); }}};
  if (options.from_metadata)
    places.push_back({"the service account of the machine or pod",
                      [options] { return AskGcsMetadata(options); }});
  return std::make_unique<RenewingSource>("gs", std::move(places), MetadataHint(options),
                                          options.clock);
}

}  // namespace evergrad::object_store
