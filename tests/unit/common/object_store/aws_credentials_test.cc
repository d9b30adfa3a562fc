#include <catch2/catch.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/common/object_store/credentials_fixture.h"

namespace evergrad::object_store {
namespace {

using test::SentRequest;

constexpr char kInstanceAnswer[] =
    R"({"Code":"Success","Type":"AWS-HMAC","AccessKeyId":"ASIAINSTANCE",
        "SecretAccessKey":"instance/secret","Token":"instance//token==",
        "Expiration":"2026-01-01T06:00:00Z"})";
constexpr char kFile[] =
    "[default]\naws_access_key_id = AKIAFILE\naws_secret_access_key = file/secret\n"
    "[temporary]\naws_access_key_id = ASIAFILE\naws_secret_access_key = file/secret2\n"
    "aws_session_token = file//token==\n"
    "[half]\naws_access_key_id = AKIAHALF\n"
    "[other]\nregion = eu-west-1\n";

void SetWebIdentity(CredentialSetting* setting) {
  setting->variables["AWS_WEB_IDENTITY_TOKEN_FILE"] =
      setting->Write("token", "eyJhbGciOi.web+identity/token\n");
  setting->variables["AWS_ROLE_ARN"] = "arn:aws:iam::123456789012:role/evergrad";
}

TEST_CASE("keys in the environment are used before all other places, without a request") {
  CredentialSetting setting;
  setting.variables["AWS_ACCESS_KEY_ID"] = "AKIAENVIRONMENT";
  setting.variables["AWS_SECRET_ACCESS_KEY"] = "environment/secret";
  SetWebIdentity(&setting);
  setting.Write("home/.aws/credentials", kFile);
  setting.from_metadata = true;
  const auto permanent = setting.S3()->Get();
  REQUIRE(permanent.ok());
  CHECK(permanent->access_key_id == "AKIAENVIRONMENT");
  CHECK(permanent->secret_access_key == "environment/secret");
  CHECK(permanent->session_token.empty());
  CHECK(permanent->bearer_token.empty());
  CHECK(permanent->expires_ms == 0);
  CHECK(permanent->origin == "environment");
  setting.variables["AWS_SESSION_TOKEN"] = "environment//token==";
  CHECK(setting.S3()->Get()->session_token == "environment//token==");
  CHECK(setting.client.sent().empty());
}

TEST_CASE("a web identity is exchanged at STS, with the token in the body of the request") {
  CredentialSetting setting;
  SetWebIdentity(&setting);
  setting.variables["AWS_REGION"] = "eu-central-1";
  setting.client.Answer(200, StsXml("ASIASTS", "2026-01-01T01:00:00Z"));
  const auto credentials = setting.S3()->Get();
  REQUIRE(credentials.ok());
  CHECK(credentials->access_key_id == "ASIASTS");
  CHECK(credentials->secret_access_key == "sts/secret+1");
  CHECK(credentials->session_token == "sts//token==");
  CHECK(credentials->expires_ms == TestClock::kBeginMs + 3'600'000);
  CHECK(credentials->origin == "web identity (AWS_WEB_IDENTITY_TOKEN_FILE)");
  const std::vector<SentRequest> sent = setting.client.sent();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].method == "POST");
  CHECK(sent[0].url == "https://sts.eu-central-1.amazonaws.com/");
  CHECK(sent[0].Find("content-type") == "application/x-www-form-urlencoded");
  CHECK_FALSE(sent[0].Has("authorization"));
  CHECK(sent[0].response_bytes_max == 65'536);
  CHECK(FieldsOf(sent[0].body) ==
        std::map<std::string, std::string>{{"Action", "AssumeRoleWithWebIdentity"},
                                           {"Version", "2011-06-15"},
                                           {"RoleArn", "arn:aws:iam::123456789012:role/evergrad"},
                                           {"RoleSessionName", "evergrad"},
                                           {"WebIdentityToken", "eyJhbGciOi.web+identity/token"}});
}

TEST_CASE("the address of STS depends on the variables of the region and of the endpoint") {
  const struct {
    std::map<std::string, std::string> variables;
    const char* url;  // nullptr if no request may be sent
  } kCases[] = {
      {{}, "https://sts.amazonaws.com/"},
      {{{"AWS_DEFAULT_REGION", "us-east-2"}}, "https://sts.us-east-2.amazonaws.com/"},
      {{{"AWS_DEFAULT_REGION", "us-east-2"}, {"AWS_REGION", "us-west-1"}},
       "https://sts.us-west-1.amazonaws.com/"},
      {{{"AWS_REGION", "cn-north-1"}}, "https://sts.cn-north-1.amazonaws.com.cn/"},
      {{{"AWS_REGION", "x"}, {"AWS_ENDPOINT_URL_STS", "https://sts.test:9000/a"}},
       "https://sts.test:9000/a"},
      {{{"AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9000"}}, "http://127.0.0.1:9000"},
      {{{"AWS_ENDPOINT_URL_STS", "http://10.0.0.1:9000"}}, nullptr},
      {{{"AWS_REGION", "evil.test/"}}, nullptr},
      {{{"AWS_REGION", std::string(33, 'a')}}, nullptr},
  };
  for (const auto& one : kCases) {
    CredentialSetting setting;
    SetWebIdentity(&setting);
    for (const auto& [name, value] : one.variables) setting.variables[name] = value;
    setting.client.Answer(200, StsXml("ASIASTS", "2026-01-01T01:00:00Z"));
    const auto credentials = setting.S3()->Get();
    const auto sent = setting.client.sent();
    if (one.url != nullptr) {
      INFO(one.url);
      CHECK(credentials.ok());
      REQUIRE(sent.size() == 1);
      CHECK(sent[0].url == one.url);
    } else {
      CHECK(absl::IsUnauthenticated(credentials.status()));
      CHECK(sent.empty());
    }
  }
}

TEST_CASE("a profile is read from the file and the section that the variables name") {
  CredentialSetting setting;
  const std::string home = setting.Write("home/.aws/credentials", kFile);
  auto credentials = setting.S3()->Get();
  REQUIRE(credentials.ok());
  CHECK(credentials->access_key_id == "AKIAFILE");
  CHECK(credentials->secret_access_key == "file/secret");
  CHECK(credentials->session_token.empty());
  CHECK(credentials->origin == home + " [default]");
  setting.variables["AWS_PROFILE"] = "temporary";
  credentials = setting.S3()->Get();
  REQUIRE(credentials.ok());
  CHECK(credentials->session_token == "file//token==");
  CHECK(credentials->origin == home + " [temporary]");
  setting.variables["AWS_SHARED_CREDENTIALS_FILE"] =
      setting.Write("elsewhere", "[temporary]\naws_access_key_id=B\naws_secret_access_key=C\n");
  CHECK(setting.S3()->Get()->access_key_id == "B");
}

TEST_CASE("a wrong profile is an error that names the profile and the file") {
  CredentialSetting setting;
  const std::string file = setting.Write("home/.aws/credentials", kFile);
  const auto message = [&](const std::string& profile) {
    setting.variables["AWS_PROFILE"] = profile;
    const auto credentials = setting.S3()->Get();
    CHECK(absl::IsUnauthenticated(credentials.status()));
    return std::string(credentials.status().message());
  };
  CHECK(message("missing") ==
        "the credentials file has no such profile: profile=missing path=" + file);
  CHECK(message("half") == "the profile has no aws_secret_access_key: profile=half path=" + file);
  CHECK(message("other") == "the profile has no aws_access_key_id: profile=other path=" + file);
  setting.Write("home/.aws/credentials", "[default]\nfile/secret\n");
  CHECK(message("default") ==
        "a line is neither [PROFILE] nor KEY = VALUE: line=2: profile=default path=" + file);
  setting.variables["AWS_SHARED_CREDENTIALS_FILE"] = setting.folder / "absent";
  CHECK(absl::StrContains(message("default"), "cannot read the credentials file: "));
  setting.variables.erase("HOME");
  setting.variables.erase("AWS_SHARED_CREDENTIALS_FILE");
  CHECK(absl::StartsWith(message("prod"), "AWS_PROFILE is set, but there is no credentials file"));
}

TEST_CASE("a default profile without keys does not end the search") {
  CredentialSetting setting;
  setting.Write("home/.aws/credentials", "[default]\nregion = eu-west-1\n");
  setting.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://169.254.170.23/v1/credentials";
  setting.client.Answer(200, kInstanceAnswer);
  const auto credentials = setting.S3()->Get();
  REQUIRE(credentials.ok());
  CHECK(credentials->access_key_id == "ASIAINSTANCE");
}

TEST_CASE("the endpoint of a container is asked with the token of its file") {
  CredentialSetting setting;
  setting.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://169.254.170.23/v1/credentials";
  setting.variables["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "not/this/one";
  setting.variables["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = setting.Write("t", "pod/token\n");
  setting.client.Answer(200, kInstanceAnswer);
  const auto credentials = setting.S3()->Get();
  REQUIRE(credentials.ok());
  CHECK(credentials->access_key_id == "ASIAINSTANCE");
  CHECK(credentials->secret_access_key == "instance/secret");
  CHECK(credentials->session_token == "instance//token==");
  CHECK(credentials->expires_ms == TestClock::kBeginMs + 6 * 3'600'000);
  const auto sent = setting.client.sent();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].method == "GET");
  CHECK(sent[0].url == "http://169.254.170.23/v1/credentials");
  CHECK(sent[0].Find("authorization") == "pod/token");

  CredentialSetting ecs;
  ecs.variables["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "/v2/credentials/uuid";
  ecs.variables["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "task/token";
  ecs.client.Answer(200, kInstanceAnswer);
  REQUIRE(ecs.S3()->Get().ok());
  REQUIRE(ecs.client.sent().size() == 1);
  CHECK(ecs.client.sent()[0].url == "http://169.254.170.2/v2/credentials/uuid");
  CHECK(ecs.client.sent()[0].Find("authorization") == "task/token");
}

TEST_CASE("the token of a container is sent only to known hosts or over HTTPS") {
  const struct {
    const char* url;
    bool is_accepted;
  } kCases[] = {
      {"https://credentials.test/x", true},
      {"http://127.0.0.1:8080/x", true},
      {"http://localhost/x?y=z", true},
      {"http://[::1]:8080/x", true},
      {"http://169.254.170.2/x", true},
      {"http://169.254.170.23/x", true},
      {"http://[fd00:ec2::23]/x", true},
      {"http://credentials.test/x", false},
      {"http://169.254.169.254/x", false},
      {"http://169.254.170.2.test/x", false},
      {"http://169.254.170.2@evil.test/x", false},
      {"http://evil.test\\@127.0.0.1/x", false},
      {"http://127.0.0.1:80\\@evil.test/x", false},
      {"http://127.0.0.1#@evil.test/x", false},
      {"http://127.0.0.1:x@evil.test/x", false},
      {"http://127.0.0.1:/x", false},
      {"http://127.evil.test/x", false},
      {"http://localhost.test/x", false},
      {"http://[::1/x", false},
      {"http://[::1]evil.test/x", false},
      {"http://[]/x", false},
      {"https://user@credentials.test/x", false},
      {"https://credentials.test/x#y", false},
      {"https:///x", false},
      {"HTTPS://credentials.test/x", false},
      {"https://credentials.test/x y", false},
      {"https://credentials.test/x\r\nHost: y", false},
      {"ftp://127.0.0.1/x", false},
      {"file:///etc/passwd", false},
      {"//127.0.0.1/x", false},
      {"/x", false},
  };
  for (const auto& one : kCases) {
    INFO(one.url);
    CredentialSetting setting;
    setting.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = one.url;
    setting.client.Answer(200, kInstanceAnswer);
    CHECK(setting.S3()->Get().ok() == one.is_accepted);
    CHECK(setting.client.sent().size() == (one.is_accepted ? 1 : 0));
  }
}

TEST_CASE("the instance profile is asked with IMDSv2, and only if the user allows it") {
  CredentialSetting setting;
  CHECK_FALSE(setting.S3()->Get().ok());
  CHECK(setting.client.sent().empty());

  setting.from_metadata = true;
  setting.client.Answer(200, "imds/session==");
  setting.client.Answer(200, "role-of-machine\n");
  setting.client.Answer(200, kInstanceAnswer);
  const auto credentials = setting.S3()->Get();
  REQUIRE(credentials.ok());
  CHECK(credentials->access_key_id == "ASIAINSTANCE");
  CHECK(credentials->origin == "the instance profile");
  const auto sent = setting.client.sent();
  REQUIRE(sent.size() == 3);
  CHECK(sent[0].method == "PUT");
  CHECK(sent[0].url == "http://127.0.0.1:1/latest/api/token");
  CHECK(sent[0].Find("x-aws-ec2-metadata-token-ttl-seconds") == "300");
  CHECK(sent[1].method == "GET");
  CHECK(sent[1].url == "http://127.0.0.1:1/latest/meta-data/iam/security-credentials/");
  CHECK(sent[1].Find("x-aws-ec2-metadata-token") == "imds/session==");
  CHECK(sent[2].method == "GET");
  CHECK(sent[2].url ==
        "http://127.0.0.1:1/latest/meta-data/iam/security-credentials/role-of-machine");
  CHECK(sent[2].Find("x-aws-ec2-metadata-token") == "imds/session==");
}

TEST_CASE("the name of a role cannot change the path of the next request") {
  CredentialSetting setting;
  setting.from_metadata = true;
  setting.client.Answer(200, "session");
  setting.client.Answer(200, "../../user-data?x");
  setting.client.Answer(200, kInstanceAnswer);
  REQUIRE(setting.S3()->Get().ok());
  CHECK(setting.client.sent()[2].url ==
        "http://127.0.0.1:1/latest/meta-data/iam/security-credentials/..%2F..%2Fuser-data%3Fx");
}

TEST_CASE("without credentials the error lists all places that were searched") {
  CredentialSetting setting;
  const auto none = setting.S3()->Get();
  CHECK(none.status() ==
        absl::UnauthenticatedError(absl::StrCat(
            "no credentials for s3://; these places were searched: AWS_ACCESS_KEY_ID, "
            "AWS_WEB_IDENTITY_TOKEN_FILE, ",
            setting.folder / "home/.aws/credentials",
            " [default], AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI; the metadata service "
            "is asked only with --store-metadata-credentials")));
}

TEST_CASE("an answer that is not as documented is unavailable, and a refusal is not") {
  const struct {
    const char* name;
    int status;
    std::string body;
    absl::StatusCode want;
  } kCases[] = {
      {"an error of a client", 400,
       "<ErrorResponse xmlns=\"x\"><Error><Code>ExpiredTokenException</Code></Error>"
       "</ErrorResponse>",
       absl::StatusCode::kUnauthenticated},
      {"a refusal", 403, "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>",
       absl::StatusCode::kPermissionDenied},
      {"a code of STS that passes", 400,
       "<ErrorResponse><Error><Code>IDPCommunicationError</Code></Error></ErrorResponse>",
       absl::StatusCode::kUnavailable},
      {"too many requests", 429, "", absl::StatusCode::kUnavailable},
      {"an error of the service", 503, "<html>", absl::StatusCode::kUnavailable},
      {"a redirect", 302, "", absl::StatusCode::kUnauthenticated},
      {"no XML", 200, "{}", absl::StatusCode::kUnavailable},
      {"other XML", 200, "<a/>", absl::StatusCode::kUnavailable},
      {"an empty answer", 200, "", absl::StatusCode::kUnavailable},
      {"truncated XML", 200, StsXml("A", "2026-01-01T01:00:00Z").substr(0, 300),
       absl::StatusCode::kUnavailable},
      {"an empty key", 200, StsXml("", "2026-01-01T01:00:00Z"), absl::StatusCode::kUnavailable},
      {"a key with a line end", 200, StsXml("A\r\nx", "2026-01-01T01:00:00Z"),
       absl::StatusCode::kUnavailable},
      {"a key that is too long", 200, StsXml(std::string(20'000, 'A'), "2026-01-01T01:00:00Z"),
       absl::StatusCode::kUnavailable},
      {"an answer that is too long", 200,
       StsXml("A", "2026-01-01T01:00:00Z") + std::string(65'536, ' '),
       absl::StatusCode::kUnavailable},
      {"no time", 200, StsXml("A", "soon"), absl::StatusCode::kUnavailable},
      {"a time that has passed", 200, StsXml("A", "2025-12-31T23:59:59Z"),
       absl::StatusCode::kUnavailable},
      {"an entity bomb", 200,
       "<!DOCTYPE a [<!ENTITY b \"&c;&c;\"><!ENTITY c \"&b;&b;\">]>" +
           StsXml("&b;", "2026-01-01T01:00:00Z"),
       absl::StatusCode::kOk},
  };
  for (const auto& one : kCases) {
    INFO(one.name);
    CredentialSetting setting;
    SetWebIdentity(&setting);
    setting.client.Answer(one.status, one.body);
    const auto credentials = setting.S3()->Get();
    CHECK(credentials.status().code() == one.want);
    // Entities are not expanded.
    if (credentials.ok()) CHECK(credentials->access_key_id == "&b;");
  }
}

TEST_CASE("a refusal shows the status, the code and the place") {
  CredentialSetting setting;
  SetWebIdentity(&setting);
  setting.client.Answer(
      400, "<ErrorResponse><Error><Code>InvalidIdentityToken</Code></Error></ErrorResponse>");
  CHECK(setting.S3()->Get().status().message() ==
        "the service that gives out credentials refuses the request: "
        "place=AWS_WEB_IDENTITY_TOKEN_FILE http_status=400 code=InvalidIdentityToken");
}

TEST_CASE("answers of a container that are not as documented are refused") {
  const struct {
    const char* body;
    absl::StatusCode want;
  } kCases[] = {
      {"", absl::StatusCode::kUnavailable},
      {"[]", absl::StatusCode::kUnavailable},
      {"{", absl::StatusCode::kUnavailable},
      {"{\"AccessKeyId\":1}", absl::StatusCode::kUnavailable},
      {"{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"B\",\"Token\":\"C\"}",
       absl::StatusCode::kUnavailable},
      {"{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"B\",\"Expiration\":\"2026-01-01T06:00:00Z\"}",
       absl::StatusCode::kUnavailable},
      {"{\"AccessKeyId\":\"A b\",\"SecretAccessKey\":\"B\",\"Token\":\"C\","
       "\"Expiration\":\"2026-01-01T06:00:00Z\"}",
       absl::StatusCode::kUnavailable},
      {"{\"Code\":\"AssumeRoleUnauthorizedAccess\"}", absl::StatusCode::kUnauthenticated},
      {"{\"AccessKeyId\":\"A\xff\"}", absl::StatusCode::kUnavailable},
  };
  for (const auto& one : kCases) {
    INFO(one.body);
    CredentialSetting setting;
    setting.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://127.0.0.1/x";
    setting.client.Answer(200, one.body);
    CHECK(setting.S3()->Get().status().code() == one.want);
  }
  // Deep nesting must not exhaust the stack.
  CredentialSetting setting;
  setting.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://127.0.0.1/x";
  setting.client.Answer(200, std::string(60'000, '['));
  setting.client.Answer(200, std::string(30'000, '[') + std::string(30'000, ']'));
  CHECK(absl::IsUnavailable(setting.S3()->Get().status()));
  CHECK(absl::IsUnavailable(setting.S3()->Get().status()));
}

TEST_CASE("errors of the client keep their kind") {
  const std::pair<absl::Status, absl::StatusCode> cases[] = {
      {absl::UnavailableError("x"), absl::StatusCode::kUnavailable},
      {absl::CancelledError("x"), absl::StatusCode::kCancelled},
      {absl::UnauthenticatedError("x"), absl::StatusCode::kUnauthenticated},
      {absl::InvalidArgumentError("x"), absl::StatusCode::kUnauthenticated},
      {absl::ResourceExhaustedError("x"), absl::StatusCode::kUnavailable},
  };
  for (const auto& [status, want] : cases) {
    CredentialSetting setting;
    SetWebIdentity(&setting);
    setting.client.Fail(status);
    const auto credentials = setting.S3()->Get();
    CHECK(credentials.status().code() == want);
    CHECK(credentials.status().message() ==
          "cannot ask for credentials: place=AWS_WEB_IDENTITY_TOKEN_FILE reason=x");
  }
}

}  // namespace
}  // namespace evergrad::object_store
