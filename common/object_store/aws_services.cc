// The places of S3 that ask a service: STS, the endpoints for containers, and IMDSv2.
#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/object_store/credential_answers.h"
#include "common/object_store/credential_places.h"
#include "common/object_store/credential_text.h"
#include "common/object_store/signature.h"

namespace evergrad::object_store {
namespace {

constexpr absl::string_view kEcsHost = "169.254.170.2", kEksHost = "169.254.170.23",
                            kEksHost6 = "[fd00:ec2::23]";
constexpr absl::string_view kInstanceUrl = "http://169.254.169.254";
constexpr std::size_t kRoleBytesMax = 128;

absl::StatusOr<std::string> StsUrl(const CredentialOptions& options) {
  const std::string url = VariableOf(options, "AWS_ENDPOINT_URL_STS");
  if (!url.empty()) {
    EG_RETURN_IF_ERROR(CheckUrl(url, "AWS_ENDPOINT_URL_STS"));
    return url;
  }
  std::string region = VariableOf(options, "AWS_REGION");
  if (region.empty()) region = VariableOf(options, "AWS_DEFAULT_REGION");
  if (region.empty()) return std::string("https://sts.amazonaws.com/");
  if (region.size() > 32 || !std::all_of(region.begin(), region.end(), [](char c) {
        return c == '-' || absl::ascii_islower(static_cast<unsigned char>(c)) ||
               absl::ascii_isdigit(static_cast<unsigned char>(c));
      }))
    return absl::UnauthenticatedError(
        "a region must consist of lower-case letters, digits and hyphens: name=AWS_REGION");
  return absl::StrCat("https://sts.", region, ".amazonaws.com",
                      absl::StartsWith(region, "cn-") ? ".cn" : "", "/");
}

// Returns the URL of the endpoint for containers, or "" if none is configured.
absl::StatusOr<std::string> ContainerUrl(const CredentialOptions& options) {
  // ECS sets the relative URI, and EKS Pod Identity sets the full one.
  const std::string relative = VariableOf(options, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  std::string url = VariableOf(options, "AWS_CONTAINER_CREDENTIALS_FULL_URI");
  absl::string_view name = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
  if (!relative.empty()) {
    name = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
    if (relative[0] != '/')
      return absl::UnauthenticatedError(absl::StrCat("a URI must begin with '/': name=", name));
    url = absl::StrCat("http://", kEcsHost, relative);
  }
  if (!url.empty()) EG_RETURN_IF_ERROR(CheckUrl(url, name, {kEcsHost, kEksHost, kEksHost6}));
  return url;
}

}  // namespace

FoundCredentials AskWebIdentity(const CredentialOptions& options) {
  constexpr absl::string_view kPlace = "AWS_WEB_IDENTITY_TOKEN_FILE";
  const std::string file = VariableOf(options, std::string(kPlace));
  if (file.empty()) return std::nullopt;
  const std::string role = VariableOf(options, "AWS_ROLE_ARN");
  if (role.empty())
    return absl::UnauthenticatedError(
        absl::StrCat("one of two variables is set, and the other is not: set=", kPlace,
                     " missing=AWS_ROLE_ARN"));
  std::string session = VariableOf(options, "AWS_ROLE_SESSION_NAME");
  if (session.empty()) session = "evergrad";
  // The platform replaces the token before it expires, so the file is read for each request.
  EG_ASSIGN_OR_RETURN(const std::string token, ReadCredentialFile(file, kPlace));
  EG_RETURN_IF_ERROR(CheckSecret(token, kPlace));
  http::Request request;
  request.method = "POST";
  EG_ASSIGN_OR_RETURN(request.url, StsUrl(options));
  request.headers = {{"content-type", "application/x-www-form-urlencoded"}};
  // The token is in the body, because errors and logs of proxies can contain URLs.
  const std::string form = EncodeQuery({{"Action", "AssumeRoleWithWebIdentity"},
                                        {"Version", "2011-06-15"},
                                        {"RoleArn", role},
                                        {"RoleSessionName", session},
                                        {"WebIdentityToken", token}});
  request.body = form;
  EG_ASSIGN_OR_RETURN(const http::Response answer, Ask(options, std::move(request), kPlace));
  EG_ASSIGN_OR_RETURN(Credentials credentials, ParseStsAnswer(answer.body, kPlace));
  credentials.origin = "web identity (AWS_WEB_IDENTITY_TOKEN_FILE)";
  return credentials;
}

FoundCredentials AskContainer(const CredentialOptions& options) {
  constexpr absl::string_view kPlace = "AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI";
  http::Request request;
  request.method = "GET";
  EG_ASSIGN_OR_RETURN(request.url, ContainerUrl(options));
  if (request.url.empty()) return std::nullopt;
  const std::string name = "AWS_CONTAINER_AUTHORIZATION_TOKEN";
  std::string token = VariableOf(options, name);
  if (const std::string file = VariableOf(options, name + "_FILE"); !file.empty()) {
    EG_ASSIGN_OR_RETURN(token, ReadCredentialFile(file, name + "_FILE"));
    EG_RETURN_IF_ERROR(CheckSecret(token, name + "_FILE"));
  } else if (!token.empty()) {
    EG_RETURN_IF_ERROR(CheckSecret(token, name));
  }
  request.headers = {{"accept", "application/json"}};
  if (!token.empty()) request.headers.push_back({"authorization", token});
  EG_ASSIGN_OR_RETURN(const http::Response answer, Ask(options, std::move(request), kPlace));
  EG_ASSIGN_OR_RETURN(Credentials credentials, ParseAwsAnswer(answer.body, kPlace));
  credentials.origin = "container (AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI)";
  return credentials;
}

FoundCredentials AskInstance(const CredentialOptions& options) {
  constexpr absl::string_view kPlace = "the instance profile";
  const std::string base =
      options.metadata_url.empty() ? std::string(kInstanceUrl) : options.metadata_url;
  http::Request session;
  session.method = "PUT";
  session.url = absl::StrCat(base, "/latest/api/token");
  session.headers = {{"x-aws-ec2-metadata-token-ttl-seconds", "300"}};
  EG_ASSIGN_OR_RETURN(http::Response token, Ask(options, std::move(session), kPlace));
  absl::StripAsciiWhitespace(&token.body);
  if (!CheckSecret(token.body, "token").ok())
    return absl::UnavailableError(
        absl::StrCat("the metadata service returns no session token: place=", kPlace));

  http::Request request;
  request.method = "GET";
  request.url = absl::StrCat(base, "/latest/meta-data/iam/security-credentials/");
  request.headers = {{"x-aws-ec2-metadata-token", token.body}};
  const std::string roles_url = request.url;
  EG_ASSIGN_OR_RETURN(http::Response role, Ask(options, request, kPlace));
  absl::StripAsciiWhitespace(&role.body);
  if (role.body.size() > kRoleBytesMax || !CheckSecret(role.body, "role").ok())
    return absl::UnavailableError(
        absl::StrCat("the metadata service returns no name of a role: place=", kPlace));

  request.url = absl::StrCat(roles_url, PercentEncode(role.body, false));
  EG_ASSIGN_OR_RETURN(const http::Response answer, Ask(options, std::move(request), kPlace));
  EG_ASSIGN_OR_RETURN(Credentials credentials, ParseAwsAnswer(answer.body, kPlace));
  credentials.origin = std::string(kPlace);
  return credentials;
}

}  // namespace evergrad::object_store
