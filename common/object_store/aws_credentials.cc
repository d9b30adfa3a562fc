// The places of S3 that ask no service, and the order of all places.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/fs/file.h"
#include "common/object_store/credential_places.h"
#include "common/object_store/credential_text.h"
#include "common/object_store/profile_file.h"
#include "common/object_store/renewing_source.h"

namespace evergrad::object_store {
namespace {

// The file of profiles, and the variables that chose it.
struct ProfileChoice {
  std::string path, profile;
  // A variable names the file or the profile, so it must exist.
  bool is_named = false;
};

ProfileChoice ChooseProfile(const CredentialOptions& options) {
  ProfileChoice choice;
  choice.path = VariableOf(options, "AWS_SHARED_CREDENTIALS_FILE");
  choice.profile = VariableOf(options, "AWS_PROFILE");
  choice.is_named = !choice.path.empty() || !choice.profile.empty();
  if (choice.profile.empty()) choice.profile = "default";
  const std::string home = VariableOf(options, "HOME");
  if (choice.path.empty() && !home.empty()) choice.path = absl::StrCat(home, "/.aws/credentials");
  return choice;
}

absl::Status ProfileError(absl::string_view what, const ProfileChoice& choice) {
  return absl::UnauthenticatedError(absl::StrCat(what, ": profile=", Quoted(choice.profile, 128),
                                                 " path=", Quoted(choice.path, 1024)));
}

}  // namespace

FoundCredentials ReadKeyPair(const CredentialOptions& options, const std::string& id,
                             const std::string& secret) {
  Credentials credentials;
  credentials.access_key_id = VariableOf(options, id);
  credentials.secret_access_key = VariableOf(options, secret);
  credentials.origin = "environment";
  const bool has_id = !credentials.access_key_id.empty();
  const bool has_secret = !credentials.secret_access_key.empty();
  if (!has_id && !has_secret) return std::nullopt;
  if (!has_id || !has_secret)
    return absl::UnauthenticatedError(absl::StrCat(
        "one of two variables is set, and the other is not: set=", has_id ? id : secret,
        " missing=", has_id ? secret : id));
  EG_RETURN_IF_ERROR(CheckSecret(credentials.access_key_id, id));
  EG_RETURN_IF_ERROR(CheckSecret(credentials.secret_access_key, secret));
  return credentials;
}

FoundCredentials ReadAwsEnvironment(const CredentialOptions& options) {
  FoundCredentials found = ReadKeyPair(options, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY");
  if (!found.ok() || !found->has_value()) return found;
  std::string& token = (*found)->session_token;
  token = VariableOf(options, "AWS_SESSION_TOKEN");
  if (!token.empty()) EG_RETURN_IF_ERROR(CheckSecret(token, "AWS_SESSION_TOKEN"));
  return found;
}

FoundCredentials ReadAwsProfile(const CredentialOptions& options) {
  const ProfileChoice choice = ChooseProfile(options);
  if (choice.path.empty()) {
    if (!choice.is_named) return std::nullopt;
    return ProfileError("AWS_PROFILE is set, but there is no credentials file", choice);
  }
  const absl::StatusOr<std::string> text = fs::ReadFile(choice.path, kCredentialFileBytesMax);
  if (!text.ok()) {
    if (absl::IsNotFound(text.status()) && !choice.is_named) return std::nullopt;
    return ProfileError(
        absl::StrCat("cannot read the credentials file: reason=", Escaped(text.status().message())),
        choice);
  }
  auto found = FindProfile(*text, choice.profile);
  if (!found.ok()) return ProfileError(found.status().message(), choice);
  if (!found->has_value()) {
    if (!choice.is_named) return std::nullopt;
    return ProfileError("the credentials file has no such profile", choice);
  }
  Profile& values = **found;
  Credentials credentials;
  credentials.access_key_id = std::move(values["aws_access_key_id"]);
  credentials.secret_access_key = std::move(values["aws_secret_access_key"]);
  credentials.session_token = std::move(values["aws_session_token"]);
  const bool has_no_key =
      credentials.access_key_id.empty() && credentials.secret_access_key.empty();
  // The profile "default" can have other settings only, such as a region.
  if (has_no_key && !choice.is_named) return std::nullopt;
  if (credentials.access_key_id.empty())
    return ProfileError("the profile has no aws_access_key_id", choice);
  if (credentials.secret_access_key.empty())
    return ProfileError("the profile has no aws_secret_access_key", choice);
  for (const auto& [key, value] :
       {std::pair<const char*, const std::string&>{"aws_access_key_id", credentials.access_key_id},
        {"aws_secret_access_key", credentials.secret_access_key},
        {"aws_session_token", credentials.session_token}})
    if (const absl::Status status = CheckSecret(value, key); !status.ok() && !value.empty())
      return ProfileError(status.message(), choice);
  credentials.origin =
      absl::StrCat(Quoted(choice.path, 1024), " [", Quoted(choice.profile, 128), "]");
  return credentials;
}

std::unique_ptr<CredentialSource> MakeS3Credentials(CredentialOptions options) {
  EG_CHECK(options.client != nullptr && options.clock != nullptr);
  const ProfileChoice choice = ChooseProfile(options);
  const std::string file = choice.path.empty() ? "~/.aws/credentials" : Quoted(choice.path, 1024);
  const auto place = [&options](std::string name,
                                FoundCredentials (*read)(const CredentialOptions&)) {
    return Place{std::move(name), [options, read] { return read(options); }};
  };
  std::vector<Place> places{
      place("AWS_ACCESS_KEY_ID", ReadAwsEnvironment),
      place("AWS_WEB_IDENTITY_TOKEN_FILE", AskWebIdentity),
      place(absl::StrCat(file, " [", Quoted(choice.profile, 128), "]"), ReadAwsProfile),
      place("AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI", AskContainer)};
  if (options.from_metadata) places.push_back(place("the instance profile", AskInstance));
  return std::make_unique<RenewingSource>("s3", std::move(places), MetadataHint(options),
                                          options.clock);
}

}  // namespace evergrad::object_store
