#include "common/object_store/credential_answers.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <pugixml.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/object_store/credential_text.h"
#include "common/object_store/time_text.h"

namespace evergrad::object_store {
namespace {

constexpr std::int64_t kTokenSecondsMax = 366 * 24 * 3600;

absl::Status BadAnswer(absl::string_view want, absl::string_view place) {
  return absl::UnavailableError(absl::StrCat(
      "the answer of the service that gives out credentials is not as documented: want=", want,
      " place=", place));
}

absl::Status ParseObject(absl::string_view text, absl::string_view place, nlohmann::json* json) {
  if (text.size() > kCredentialAnswerBytesMax) return BadAnswer("at most 64 KiB", place);
  *json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  return json->is_object() ? absl::OkStatus() : BadAnswer("a JSON object", place);
}

absl::StatusOr<std::string> Secret(std::string text, const char* name, absl::string_view place) {
  if (!CheckSecret(text, name).ok()) return BadAnswer(name, place);
  return text;
}

absl::StatusOr<std::int64_t> Expiration(absl::string_view text, const char* name,
                                        absl::string_view place) {
  const std::optional<std::int64_t> time = ParseTime(text);
  if (!time) return BadAnswer(absl::StrCat(name, ", an ISO 8601 time"), place);
  return *time;
}

}  // namespace

std::string JsonText(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

absl::StatusOr<Credentials> ParseAwsAnswer(absl::string_view text, absl::string_view place) {
  nlohmann::json json;
  EG_RETURN_IF_ERROR(ParseObject(text, place, &json));
  // IMDS answers with status 200 and a code if the role cannot be assumed.
  const std::string code = JsonText(json, "Code");
  if (!code.empty() && code != "Success")
    return absl::UnauthenticatedError(
        absl::StrCat("the role of this machine or pod cannot be assumed: place=", place,
                     " code=", ErrorCodeOf(text)));
  Credentials credentials;
  EG_ASSIGN_OR_RETURN(credentials.access_key_id,
                      Secret(JsonText(json, "AccessKeyId"), "AccessKeyId", place));
  EG_ASSIGN_OR_RETURN(credentials.secret_access_key,
                      Secret(JsonText(json, "SecretAccessKey"), "SecretAccessKey", place));
  EG_ASSIGN_OR_RETURN(credentials.session_token, Secret(JsonText(json, "Token"), "Token", place));
  EG_ASSIGN_OR_RETURN(credentials.expires_ms,
                      Expiration(JsonText(json, "Expiration"), "Expiration", place));
  return credentials;
}

absl::StatusOr<Credentials> ParseStsAnswer(absl::string_view text, absl::string_view place) {
  if (text.size() > kCredentialAnswerBytesMax) return BadAnswer("at most 64 KiB", place);
  pugi::xml_document document;
  if (!document.load_buffer(text.data(), text.size(), pugi::parse_default))
    return BadAnswer("XML", place);
  const pugi::xml_node node = document.child("AssumeRoleWithWebIdentityResponse")
                                  .child("AssumeRoleWithWebIdentityResult")
                                  .child("Credentials");
  if (!node) return BadAnswer("AssumeRoleWithWebIdentityResult", place);
  Credentials credentials;
  EG_ASSIGN_OR_RETURN(credentials.access_key_id,
                      Secret(node.child_value("AccessKeyId"), "AccessKeyId", place));
  EG_ASSIGN_OR_RETURN(credentials.secret_access_key,
                      Secret(node.child_value("SecretAccessKey"), "SecretAccessKey", place));
  EG_ASSIGN_OR_RETURN(credentials.session_token,
                      Secret(node.child_value("SessionToken"), "SessionToken", place));
  EG_ASSIGN_OR_RETURN(credentials.expires_ms,
                      Expiration(node.child_value("Expiration"), "Expiration", place));
  return credentials;
}

absl::StatusOr<Credentials> ParseTokenAnswer(absl::string_view text, absl::string_view place,
                                             std::int64_t wall_ms) {
  nlohmann::json json;
  EG_RETURN_IF_ERROR(ParseObject(text, place, &json));
  Credentials credentials;
  EG_ASSIGN_OR_RETURN(credentials.bearer_token,
                      Secret(JsonText(json, "access_token"), "access_token", place));
  const auto seconds = json.find("expires_in");
  if (seconds == json.end() || !seconds->is_number_unsigned() || seconds->get<std::uint64_t>() == 0)
    return BadAnswer("expires_in, a number of seconds", place);
  credentials.expires_ms = wall_ms + 1000 * static_cast<std::int64_t>(std::min<std::uint64_t>(
                                                seconds->get<std::uint64_t>(), kTokenSecondsMax));
  return credentials;
}

absl::StatusOr<Credentials> ParseImpersonationAnswer(absl::string_view text,
                                                     absl::string_view place) {
  nlohmann::json json;
  EG_RETURN_IF_ERROR(ParseObject(text, place, &json));
  Credentials credentials;
  EG_ASSIGN_OR_RETURN(credentials.bearer_token,
                      Secret(JsonText(json, "accessToken"), "accessToken", place));
  EG_ASSIGN_OR_RETURN(credentials.expires_ms,
                      Expiration(JsonText(json, "expireTime"), "expireTime", place));
  return credentials;
}

}  // namespace evergrad::object_store
