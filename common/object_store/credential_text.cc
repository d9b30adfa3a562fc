#include "common/object_store/credential_text.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/escape.h"
#include "common/base/host_port.h"
#include "common/daemon/daemon.h"
#include "common/fs/file.h"
#include "common/object_store/credential_answers.h"

namespace evergrad::object_store {
namespace {

constexpr std::size_t kUrlBytesMax = 2048, kErrorCodeBytesMax = 48;

// Codes of STS that have the status 400, although a later request can succeed.
constexpr absl::string_view kPassingCodes[] = {"IDPCommunicationError", "RequestLimitExceeded",
                                               "Throttling", "ThrottlingException"};

bool IsVisible(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
}

bool IsHostCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.';
}

bool IsAddressCharacter(char c) {
  return absl::ascii_isxdigit(static_cast<unsigned char>(c)) || c == ':' || c == '.';
}

// Returns `text` if it looks like the name of an error. A service could put a secret that it
// received into any field, and secrets have digits or are longer.
std::string CleanErrorCode(absl::string_view text) {
  const bool is_name =
      text.size() <= kErrorCodeBytesMax && std::all_of(text.begin(), text.end(), [](char c) {
        return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '.';
      });
  return is_name ? std::string(text) : "";
}

absl::Status AnswerError(const http::Response& response, absl::string_view place) {
  const std::string code = ErrorCodeOf(response.body);
  const std::string values = absl::StrCat(" place=", place, " http_status=", response.status,
                                          code.empty() ? "" : " code=", code);
  const bool may_pass = std::find(std::begin(kPassingCodes), std::end(kPassingCodes), code) !=
                        std::end(kPassingCodes);
  if (may_pass || response.status == 429 || response.status >= 500)
    return absl::UnavailableError(
        absl::StrCat("the service that gives out credentials fails:", values));
  const std::string message =
      absl::StrCat("the service that gives out credentials refuses the request:", values);
  return response.status == 403 ? absl::PermissionDeniedError(message)
                                : absl::UnauthenticatedError(message);
}

}  // namespace

std::string VariableOf(const CredentialOptions& options, const std::string& name) {
  return options.variables ? options.variables(name).value_or("") : "";
}

absl::Status CheckSecret(absl::string_view secret, absl::string_view name) {
  if (!secret.empty() && secret.size() <= kSecretBytesMax && IsVisible(secret))
    return absl::OkStatus();
  return absl::UnauthenticatedError(
      absl::StrCat("a credential must have 1 to ", kSecretBytesMax,
                   " visible ASCII characters, without spaces and line ends: name=", name,
                   " bytes=", secret.size()));
}

std::string HostOf(absl::string_view url) {
  if (url.size() > kUrlBytesMax || !IsVisible(url) || absl::StrContains(url, '#')) return "";
  if (!absl::ConsumePrefix(&url, "https://") && !absl::ConsumePrefix(&url, "http://")) return "";
  absl::string_view authority = url.substr(0, url.find_first_of("/?"));
  absl::string_view host = authority.substr(0, authority.find(':'));
  if (absl::StartsWith(authority, "[")) {
    host = authority.substr(0, authority.find(']') + 1);
    if (host.size() < 4 || !std::all_of(host.begin() + 1, host.end() - 1, IsAddressCharacter))
      return "";
  } else if (host.empty() || !std::all_of(host.begin(), host.end(), IsHostCharacter)) {
    return "";
  }
  const bool has_port = authority.size() > host.size();
  if (has_port && !ParseHostPort(authority)) return "";
  return std::string(host);
}

absl::Status CheckUrl(absl::string_view url, absl::string_view name,
                      const std::vector<absl::string_view>& http_hosts) {
  const std::string host = HostOf(url);
  const bool is_known = std::find(http_hosts.begin(), http_hosts.end(), host) != http_hosts.end();
  if (!host.empty() && (absl::StartsWith(url, "https://") || is_known ||
                        daemon::IsLoopback(absl::StrCat(host, ":80"))))
    return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat(
      "a URL for requests with secrets must begin with https://, or with http:// and a loopback "
      "address",
      http_hosts.empty() ? "" : " or one of ", absl::StrJoin(http_hosts, ", "), ": name=", name));
}

absl::StatusOr<std::string> ReadCredentialFile(const std::string& path, absl::string_view name) {
  absl::StatusOr<std::string> text = fs::ReadFile(path, kCredentialFileBytesMax);
  if (!text.ok())
    return absl::UnauthenticatedError(absl::StrCat("cannot read a file of credentials: name=", name,
                                                   " reason=", Escaped(text.status().message())));
  absl::StripAsciiWhitespace(&*text);
  return text;
}

absl::StatusOr<http::Response> Ask(const CredentialOptions& options, http::Request request,
                                   absl::string_view place) {
  request.response_bytes_max = kCredentialAnswerBytesMax;
  absl::StatusOr<http::Response> response = options.client->Send(request);
  if (!response.ok()) {
    absl::StatusCode code = absl::StatusCode::kUnavailable;
    if (absl::IsCancelled(response.status())) code = absl::StatusCode::kCancelled;
    if (absl::IsUnauthenticated(response.status()) || absl::IsInvalidArgument(response.status()))
      code = absl::StatusCode::kUnauthenticated;
    return absl::Status(code, absl::StrCat("cannot ask for credentials: place=", place,
                                           " reason=", response.status().message()));
  }
  if (response->status != 200) return AnswerError(*response, place);
  return response;
}

std::string ErrorCodeOf(absl::string_view body) {
  if (body.size() > kCredentialAnswerBytesMax) return "";
  const auto json = nlohmann::json::parse(body.begin(), body.end(), nullptr, false);
  if (json.is_object()) {
    // OAuth 2.0 has {"error": "code"}, Google's other services {"error": {"status": "CODE"}}, and
    // services of AWS {"code": "Code"} or {"Code": "Code"}.
    const auto error = json.find("error");
    for (const std::string& code :
         {JsonText(json, "error"), error != json.end() ? JsonText(*error, "status") : std::string(),
          JsonText(json, "code"), JsonText(json, "Code")})
      if (!code.empty()) return CleanErrorCode(code);
    return "";
  }
  pugi::xml_document document;
  if (!document.load_buffer(body.data(), body.size(), pugi::parse_default)) return "";
  return CleanErrorCode(document.child("ErrorResponse").child("Error").child_value("Code"));
}

}  // namespace evergrad::object_store
