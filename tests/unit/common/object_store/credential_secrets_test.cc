// Tests that no error of a credential source contains a secret.
#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/common/object_store/credentials_fixture.h"

namespace evergrad::object_store {
namespace {

using nlohmann::json;

// Each secret of an input contains this text, and nothing else does.
constexpr char kMark[] = "s3cr3t";

constexpr char kGoodToken[] = R"({"access_token":"s3cr3t","expires_in":9})";

// Stands for the text that a service has received.
constexpr char kReceived[] = "RECEIVED";

// Answers with which a service can make a source fail. Some repeat what the service has received.
std::vector<http::Response> BadAnswers() {
  const std::vector<std::string> bodies = {
      "",
      "s3cr3t",
      kReceived,
      json{{"AccessKeyId", "s3cr3t id"},
           {"SecretAccessKey", "s3cr3t key"},
           {"Token", "s3cr3t token"},
           {"Expiration", "s3cr3t"}}
          .dump(),
      json{{"access_token", "s3cr3t"}, {"expires_in", "s3cr3t"}, {"refresh_token", "s3cr3t"}}
          .dump(),
      json{{"error", "s3cr3t"}, {"error_description", kReceived}}.dump(),
      json{{"error", kReceived}}.dump(),
      json{{"error", {{"status", "s3cr3t"}, {"message", kReceived}}}}.dump(),
      json{{"Code", "s3cr3t"}, {"Message", "s3cr3t"}}.dump(),
      "{\"s3cr3t",
      StsXml("s3cr3t id", "s3cr3t"),
      "<ErrorResponse><Error><Code>s3cr3t</Code><Message>s3cr3t</Message></Error></ErrorResponse>",
      "<s3cr3t",
      std::string(70'000, 's') + "s3cr3t"};
  std::vector<http::Response> answers;
  for (const int status : {200, 302, 400, 401, 403, 404, 429, 500})
    for (const std::string& body : bodies)
      answers.push_back(test::ResponseOf(status, body, {{"metadata-flavor", "Google"}}));
  return answers;
}

using Prepare = std::function<void(CredentialSetting*)>;

struct SecretPlace {
  const char* name;
  bool is_s3;
  Prepare prepare;
};

// Settings that send a request.
std::vector<SecretPlace> Services(const std::string& pem) {
  const auto google = [](const json& file) {
    return [file](CredentialSetting* setting) {
      setting->variables["GOOGLE_APPLICATION_CREDENTIALS"] =
          setting->Write("key.json", file.dump());
    };
  };
  return {
      {"web identity", true,
       [](CredentialSetting* setting) {
         setting->variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = setting->Write("t", "s3cr3t");
         setting->variables["AWS_ROLE_ARN"] = "arn";
       }},
      {"container", true,
       [](CredentialSetting* setting) {
         setting->variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://127.0.0.1/x";
         setting->variables["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "s3cr3t";
       }},
      {"instance", true, [](CredentialSetting* setting) { setting->from_metadata = true; }},
      {"metadata of GCS", false, [](CredentialSetting* setting) { setting->from_metadata = true; }},
      {"service account", false,
       google({{"type", "service_account"}, {"client_email", "a"}, {"private_key", pem}})},
      {"user", false,
       google({{"type", "authorized_user"},
               {"client_id", "a"},
               {"client_secret", "s3cr3t"},
               {"refresh_token", "s3cr3t"}})},
      {"external account", false,
       [google](CredentialSetting* setting) {
         google({{"type", "external_account"},
                 {"audience", "a"},
                 {"subject_token_type", "b"},
                 {"token_url", "https://sts.test/"},
                 {"service_account_impersonation_url", "https://iam.test/"},
                 {"credential_source", {{"file", setting->Write("t", "s3cr3t")}}}})(setting);
       }},
  };
}

absl::Status StatusOf(CredentialSetting* setting, bool is_s3) {
  const auto source = is_s3 ? setting->S3() : setting->Gcs();
  return source->Get().status();
}

TEST_CASE("no error of a service's answer contains a secret") {
  const std::string pem = PemOf(NewRsaKey().get());
  REQUIRE(absl::StrContains(pem, "PRIVATE KEY"));
  // The lines of the key in base64.
  const std::string line = pem.substr(pem.size() / 2, 20);
  const std::vector<http::Response> answers = BadAnswers();
  int errors = 0;
  for (const SecretPlace& place : Services(pem)) {
    // The answer to the first, second or third request is bad. The answers before it are good.
    for (std::size_t good = 0; good < 3; ++good) {
      for (const http::Response& bad : answers) {
        CredentialSetting setting;
        place.prepare(&setting);
        std::size_t requests = 0;
        setting.client.SetHandler([&](const http::Request& request) -> http::Response {
          if (requests++ < good)
            return test::ResponseOf(200, place.is_s3 ? "good" : kGoodToken, bad.headers);
          http::Response answer = bad;
          std::string received(request.body);
          for (const http::Header& header : request.headers)
            absl::StrAppend(&received, " ", header.value);
          absl::StrReplaceAll({{kReceived, received}}, &answer.body);
          return answer;
        });
        const absl::Status status = StatusOf(&setting, place.is_s3);
        if (status.ok()) continue;
        ++errors;
        const bool has_secret =
            absl::StrContains(status.message(), kMark) || absl::StrContains(status.message(), line);
        if (has_secret) {
          INFO(place.name);
          INFO(bad.status);
          INFO(bad.body);
          INFO(status.ToString());
          CHECK_FALSE(has_secret);
        }
      }
    }
  }
  // Each place fails for nearly all answers to its first request.
  CHECK(errors > 7 * 90);
}

TEST_CASE("no error of a configuration contains a secret") {
  const auto google = [](const std::string& contents) -> Prepare {
    return [contents](CredentialSetting* setting) {
      setting->variables["GOOGLE_APPLICATION_CREDENTIALS"] = setting->Write("key.json", contents);
    };
  };
  const auto variables = [](std::map<std::string, std::string> values) -> Prepare {
    return [values](CredentialSetting* setting) {
      for (const auto& [name, value] : values) setting->variables[name] = value;
    };
  };
  const auto profile = [](const std::string& contents) -> Prepare {
    return [contents](CredentialSetting* setting) {
      setting->Write("home/.aws/credentials", contents);
      setting->variables["AWS_PROFILE"] = "default";
    };
  };
  const auto token_file = [](const std::string& name, const std::string& contents) -> Prepare {
    return [name, contents](CredentialSetting* setting) {
      setting->variables["AWS_ROLE_ARN"] = "arn";
      setting->variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://127.0.0.1/x";
      setting->variables[name] = setting->Write("t", contents);
    };
  };
  const SecretPlace cases[] = {
      {"half of the keys", true, variables({{"AWS_SECRET_ACCESS_KEY", "s3cr3t"}})},
      {"half of the keys", true, variables({{"AWS_ACCESS_KEY_ID", "s3cr3t"}})},
      {"a key with a line end", true,
       variables({{"AWS_ACCESS_KEY_ID", "A"}, {"AWS_SECRET_ACCESS_KEY", "s3cr3t\n"}})},
      {"an id with a space", true,
       variables({{"AWS_ACCESS_KEY_ID", "s3cr3t s3cr3t"}, {"AWS_SECRET_ACCESS_KEY", "s3cr3t"}})},
      {"a token with a space", true,
       variables({{"AWS_ACCESS_KEY_ID", "s3cr3t"},
                  {"AWS_SECRET_ACCESS_KEY", "s3cr3t"},
                  {"AWS_SESSION_TOKEN", "s3cr3t s3cr3t"}})},
      {"a long key", true,
       variables({{"AWS_ACCESS_KEY_ID", "A"},
                  {"AWS_SECRET_ACCESS_KEY", "s3cr3t" + std::string(20'000, 's')}})},
      {"a URL with a password", true,
       variables({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://a:s3cr3t@127.0.0.1/"}})},
      {"a URI of another host", true,
       variables({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://a.test/?s3cr3t"}})},
      {"a relative URI", true, variables({{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "s3cr3t"}})},
      {"a token of a container", true,
       variables({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1/"},
                  {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "s3cr3t\r\nx: y"}})},
      {"a token file of a container", true,
       token_file("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "s3cr3t\r\nx: y")},
      {"a web identity with a space", true,
       token_file("AWS_WEB_IDENTITY_TOKEN_FILE", "s3cr3t s3cr3t")},
      {"a profile without a key", true, profile("[default]\naws_access_key_id = s3cr3t\n")},
      {"a profile without an id", true, profile("[default]\naws_secret_access_key = s3cr3t\n")},
      {"a line of a profile", true, profile("[default]\ns3cr3t\n")},
      {"a section of a profile", true, profile("[default]\n[s3cr3t\n")},
      {"a key of a profile with a space", true,
       profile("[default]\naws_access_key_id = s3cr3t s3cr3t\naws_secret_access_key = s3cr3t\n")},
      {"half of the HMAC keys", false, variables({{"GS_SECRET_ACCESS_KEY", "s3cr3t"}})},
      {"HMAC keys with a space", false,
       variables({{"GS_ACCESS_KEY_ID", "a"}, {"GS_SECRET_ACCESS_KEY", "s3cr3t s3cr3t"}})},
      {"a token file with two words", false,
       token_file("EVERGRAD_GCS_TOKEN_FILE", "s3cr3t s3cr3t")},
      {"a file that is no JSON", false, google("s3cr3t")},
      {"an unknown type", false, google(R"({"type":"s3cr3t"})")},
      {"a private key", false,
       google(R"({"type":"service_account","client_email":"a","private_key":"s3cr3t"})")},
      {"a user without an id", false,
       google(R"({"type":"authorized_user","client_secret":"s3cr3t","refresh_token":"s3cr3t"})")},
      {"a user without a token", false,
       google(R"({"type":"authorized_user","client_id":"a","client_secret":"s3cr3t"})")},
      {"a token URL with a password", false,
       google(R"({"type":"authorized_user","client_id":"a","client_secret":"s3cr3t",
                  "refresh_token":"s3cr3t","token_uri":"http://a:s3cr3t@b.test/"})")},
      {"a program", false,
       google(R"({"type":"external_account","audience":"a","subject_token_type":"b",
                  "token_url":"https://sts.test/",
                  "credential_source":{"executable":{"command":"s3cr3t"}}})")},
  };
  for (const SecretPlace& one : cases) {
    INFO(one.name);
    CredentialSetting setting;
    one.prepare(&setting);
    const absl::Status status = StatusOf(&setting, one.is_s3);
    CHECK(absl::IsUnauthenticated(status));
    INFO(status.ToString());
    CHECK_FALSE(absl::StrContains(status.message(), kMark));
    CHECK(setting.client.sent().empty());
  }
}

}  // namespace
}  // namespace evergrad::object_store
