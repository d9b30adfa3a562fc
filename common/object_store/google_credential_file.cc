// The credential file of Google: service_account, authorized_user and external_account.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/fs/file.h"
#include "common/object_store/credential_answers.h"
#include "common/object_store/credential_places.h"
#include "common/object_store/credential_text.h"
#include "common/object_store/rsa_signature.h"
#include "common/object_store/signature.h"

namespace evergrad::object_store {
namespace {

constexpr absl::string_view kTokenUrl = "https://oauth2.googleapis.com/token";
constexpr absl::string_view kStorageScope = "https://www.googleapis.com/auth/devstorage.read_write";
// The scope of a token that is only exchanged for the token of a service account.
constexpr absl::string_view kPlatformScope = "https://www.googleapis.com/auth/cloud-platform";
constexpr int kTokenSeconds = 3600;  // Google's limit

using Form = std::vector<std::pair<std::string, std::string>>;

// Returns JSON without white space. By default, nlohmann's function throws for invalid UTF-8.
std::string Dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Reads one credential file. An object serves one search.
class CredentialFile {
 public:
  CredentialFile(const CredentialOptions& options, std::string path)
      : options_(options), path_(std::move(path)) {}

  absl::StatusOr<Credentials> Read(absl::string_view text) {
    json_ = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
    if (!json_.is_object())
      return absl::UnauthenticatedError(
          absl::StrCat("the credential file is not a JSON object: path=", path_));
    const std::string type = JsonText(json_, "type");
    if (type == "service_account") return AskAsServiceAccount();
    if (type == "authorized_user") return AskAsUser();
    if (type == "external_account") return AskAsExternalAccount();
    return FieldError(
        "the type of the credential file is not service_account, authorized_user or "
        "external_account",
        "type");
  }

 private:
  absl::Status FieldError(absl::string_view what, absl::string_view field) const {
    return absl::UnauthenticatedError(absl::StrCat(what, ": field=", field, " path=", path_));
  }
  absl::Status WithPath(const absl::Status& status) const {
    return absl::UnauthenticatedError(absl::StrCat(status.message(), " path=", path_));
  }

  absl::StatusOr<std::string> Field(const char* name) const {
    std::string text = JsonText(json_, name);
    if (text.empty()) return FieldError("the credential file has no text in a field", name);
    return text;
  }
  absl::StatusOr<std::string> UrlField(const char* name, absl::string_view otherwise) const {
    std::string url = JsonText(json_, name);
    if (url.empty()) url = std::string(otherwise);
    if (url.empty()) return FieldError("the credential file has no text in a field", name);
    if (const absl::Status status = CheckUrl(url, name); !status.ok()) return WithPath(status);
    return url;
  }

  absl::StatusOr<Credentials> AskAsServiceAccount() const;
  absl::StatusOr<Credentials> AskAsUser() const;
  absl::StatusOr<Credentials> AskAsExternalAccount() const;
  absl::StatusOr<std::string> SubjectToken() const;
  // Asks for a token of a service account with the token of its user.
  absl::StatusOr<Credentials> Impersonate(const std::string& url, const std::string& token) const;
  absl::StatusOr<Credentials> AskForToken(const std::string& url, const Form& form) const;

  const CredentialOptions& options_;  // outlives the search
  const std::string path_;
  nlohmann::json json_;
};

absl::StatusOr<Credentials> CredentialFile::AskForToken(const std::string& url,
                                                        const Form& form) const {
  http::Request request;
  request.method = "POST";
  request.url = url;
  request.headers = {{"content-type", "application/x-www-form-urlencoded"}};
  const std::string body = EncodeQuery(form);
  request.body = body;
  // The token's time begins after this moment.
  const std::int64_t asked_ms = options_.clock->WallMillis();
  EG_ASSIGN_OR_RETURN(const http::Response answer, Ask(options_, std::move(request), path_));
  return ParseTokenAnswer(answer.body, path_, asked_ms);
}

absl::StatusOr<Credentials> CredentialFile::AskAsServiceAccount() const {
  EG_ASSIGN_OR_RETURN(const std::string email, Field("client_email"));
  EG_ASSIGN_OR_RETURN(const std::string key, Field("private_key"));
  EG_ASSIGN_OR_RETURN(const std::string url, UrlField("token_uri", kTokenUrl));
  nlohmann::json header = {{"alg", "RS256"}, {"typ", "JWT"}};
  if (const std::string id = JsonText(json_, "private_key_id"); !id.empty()) header["kid"] = id;
  const std::int64_t now = options_.clock->WallMillis() / 1000;
  const nlohmann::json claims = {{"iss", email},
                                 {"scope", std::string(kStorageScope)},
                                 {"aud", url},
                                 {"iat", now},
                                 {"exp", now + kTokenSeconds}};
  const std::string text = absl::StrCat(absl::WebSafeBase64Escape(Dump(header)), ".",
                                        absl::WebSafeBase64Escape(Dump(claims)));
  const absl::StatusOr<std::string> signature = SignRs256(text, key);
  if (!signature.ok()) return FieldError(signature.status().message(), "private_key");
  return AskForToken(
      url, {{"grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"},
            {"assertion", absl::StrCat(text, ".", absl::WebSafeBase64Escape(*signature))}});
}

absl::StatusOr<Credentials> CredentialFile::AskAsUser() const {
  EG_ASSIGN_OR_RETURN(const std::string id, Field("client_id"));
  EG_ASSIGN_OR_RETURN(const std::string secret, Field("client_secret"));
  EG_ASSIGN_OR_RETURN(const std::string token, Field("refresh_token"));
  EG_ASSIGN_OR_RETURN(const std::string url, UrlField("token_uri", kTokenUrl));
  return AskForToken(url, {{"grant_type", "refresh_token"},
                           {"client_id", id},
                           {"client_secret", secret},
                           {"refresh_token", token}});
}

absl::StatusOr<Credentials> CredentialFile::AskAsExternalAccount() const {
  EG_ASSIGN_OR_RETURN(const std::string audience, Field("audience"));
  EG_ASSIGN_OR_RETURN(const std::string type, Field("subject_token_type"));
  EG_ASSIGN_OR_RETURN(const std::string url, UrlField("token_url", ""));
  std::string account_url;
  if (json_.contains("service_account_impersonation_url")) {
    EG_ASSIGN_OR_RETURN(account_url, UrlField("service_account_impersonation_url", ""));
  }
  EG_ASSIGN_OR_RETURN(const std::string token, SubjectToken());
  EG_ASSIGN_OR_RETURN(
      Credentials credentials,
      AskForToken(url,
                  {{"grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"},
                   {"audience", audience},
                   {"scope", std::string(account_url.empty() ? kStorageScope : kPlatformScope)},
                   {"requested_token_type", "urn:ietf:params:oauth:token-type:access_token"},
                   {"subject_token", token},
                   {"subject_token_type", type}}));
  if (account_url.empty()) return credentials;
  return Impersonate(account_url, credentials.bearer_token);
}

absl::StatusOr<std::string> CredentialFile::SubjectToken() const {
  const auto found = json_.find("credential_source");
  const std::string file = found == json_.end() ? "" : JsonText(*found, "file");
  // A program, which Google's libraries would run, is never run.
  if (file.empty())
    return FieldError("the source of an external account must be a file", "credential_source.file");
  absl::StatusOr<std::string> token = ReadCredentialFile(file, "credential_source.file");
  if (!token.ok()) return WithPath(token.status());
  const auto format = found->find("format");
  if (format != found->end() && JsonText(*format, "type") == "json") {
    const auto json = nlohmann::json::parse(*token, nullptr, false);
    token = JsonText(json, JsonText(*format, "subject_token_field_name").c_str());
  }
  if (const absl::Status status = CheckSecret(*token, "the token in credential_source.file");
      !status.ok())
    return WithPath(status);
  return token;
}

absl::StatusOr<Credentials> CredentialFile::Impersonate(const std::string& url,
                                                        const std::string& token) const {
  http::Request request;
  request.method = "POST";
  request.url = url;
  request.headers = {{"authorization", absl::StrCat("Bearer ", token)},
                     {"content-type", "application/json"}};
  nlohmann::json content;
  content["scope"].push_back(std::string(kStorageScope));
  content["lifetime"] = absl::StrCat(kTokenSeconds, "s");
  const std::string body = Dump(content);
  request.body = body;
  EG_ASSIGN_OR_RETURN(const http::Response answer, Ask(options_, std::move(request), path_));
  return ParseImpersonationAnswer(answer.body, path_);
}

}  // namespace

FoundCredentials ReadGoogleCredentialFile(const CredentialOptions& options) {
  constexpr absl::string_view kVariable = "GOOGLE_APPLICATION_CREDENTIALS";
  std::string file = VariableOf(options, std::string(kVariable));
  const bool is_named = !file.empty();
  const std::string home = VariableOf(options, "HOME");
  if (!is_named) {
    if (home.empty()) return std::nullopt;
    file = absl::StrCat(home, "/.config/gcloud/application_default_credentials.json");
  }
  const absl::StatusOr<std::string> text = fs::ReadFile(file, kCredentialFileBytesMax);
  if (!text.ok()) {
    if (absl::IsNotFound(text.status()) && !is_named) return std::nullopt;
    return absl::UnauthenticatedError(
        absl::StrCat("cannot read the credential file of Google:", is_named ? " name=" : "",
                     is_named ? kVariable : "", " reason=", Escaped(text.status().message())));
  }
  EG_ASSIGN_OR_RETURN(Credentials credentials,
                      CredentialFile(options, Quoted(file, 1024)).Read(*text));
  credentials.origin = Quoted(file, 1024);
  return credentials;
}

}  // namespace evergrad::object_store
