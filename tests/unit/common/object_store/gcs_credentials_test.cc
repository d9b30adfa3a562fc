#include <openssl/evp.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/unit/common/object_store/credentials_fixture.h"

namespace evergrad::object_store {
namespace {

using nlohmann::json;
using Fields = std::map<std::string, std::string>;

constexpr char kToken[] = R"({"access_token":"ya29.new","expires_in":3599,"token_type":"Bearer"})";

std::string UserFile() {
  return R"({"type":"authorized_user","client_id":"id.apps","client_secret":"user/secret",
             "refresh_token":"1//refresh"})";
}

json ServiceAccount(EVP_PKEY* key) {
  return {{"type", "service_account"},
          {"client_email", "trainer@project.iam.gserviceaccount.com"},
          {"private_key", PemOf(key)},
          {"private_key_id", "0123abcd"},
          {"token_uri", "http://127.0.0.1:7/token"}};
}

json ExternalAccount(const std::string& file) {
  return {{"type", "external_account"},
          {"audience", "//iam.googleapis.com/projects/1/locations/global/providers/p"},
          {"subject_token_type", "urn:ietf:params:oauth:token-type:jwt"},
          {"token_url", "https://sts.googleapis.com/v1/token"},
          {"credential_source", {{"file", file}}}};
}

// Points the setting at a credential file with these contents.
void SetFile(CredentialSetting* setting, const std::string& contents) {
  setting->variables["GOOGLE_APPLICATION_CREDENTIALS"] = setting->Write("key.json", contents);
}

bool IsSignatureOf(EVP_PKEY* key, absl::string_view text, absl::string_view signature) {
  const std::unique_ptr<EVP_MD_CTX, Freer<EVP_MD_CTX_free>> context(EVP_MD_CTX_new());
  return EVP_DigestVerifyInit(context.get(), nullptr, EVP_sha256(), nullptr, key) == 1 &&
         EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(signature.data()),
                          signature.size(), reinterpret_cast<const unsigned char*>(text.data()),
                          text.size()) == 1;
}

TEST_CASE("a token file is used before all other places, and read again when it changes") {
  CredentialSetting setting;
  setting.variables["GS_ACCESS_KEY_ID"] = "GOOG1E";
  setting.variables["GS_SECRET_ACCESS_KEY"] = "hmac/secret";
  setting.variables["EVERGRAD_GCS_TOKEN_FILE"] = setting.Write("token", "ya29.first\n");
  const auto source = setting.Gcs();
  auto credentials = source->Get();
  REQUIRE(credentials.ok());
  CHECK(credentials->bearer_token == "ya29.first");
  CHECK(credentials->access_key_id.empty());
  CHECK(credentials->expires_ms == 0);
  CHECK(credentials->origin == setting.folder / "token");
  setting.Write("token", "ya29.second");
  CHECK(source->Get()->bearer_token == "ya29.second");
  // A file that is being replaced may be empty for a moment.
  setting.Write("token", "");
  CHECK(source->Get()->bearer_token == "ya29.second");
  setting.Write("token", "ya29.third");
  setting.clock.Advance(std::chrono::seconds(10));
  CHECK(source->Get()->bearer_token == "ya29.third");
  CHECK(setting.client.sent().empty());
}

TEST_CASE("HMAC keys come from two variables, and one of them alone is an error") {
  CredentialSetting setting;
  setting.variables["GS_ACCESS_KEY_ID"] = "GOOG1E";
  CHECK(setting.Gcs()->Get().status() ==
        absl::UnauthenticatedError(
            "one of two variables is set, and the other is not: set=GS_ACCESS_KEY_ID "
            "missing=GS_SECRET_ACCESS_KEY"));
  setting.variables["GS_SECRET_ACCESS_KEY"] = "hmac/secret";
  const auto credentials = setting.Gcs()->Get();
  REQUIRE(credentials.ok());
  CHECK(credentials->access_key_id == "GOOG1E");
  CHECK(credentials->secret_access_key == "hmac/secret");
  CHECK(credentials->origin == "environment");
  setting.variables.erase("GS_ACCESS_KEY_ID");
  CHECK(absl::StrContains(setting.Gcs()->Get().status().message(),
                          "set=GS_SECRET_ACCESS_KEY missing=GS_ACCESS_KEY_ID"));
}

TEST_CASE("a service account proves itself with a JSON Web Token that its key has signed") {
  CredentialSetting setting;
  const auto key = NewRsaKey();
  SetFile(&setting, ServiceAccount(key.get()).dump());
  setting.client.Answer(200, kToken);
  const auto credentials = setting.Gcs()->Get();
  REQUIRE(credentials.ok());
  CHECK(credentials->bearer_token == "ya29.new");
  CHECK(credentials->expires_ms == TestClock::kBeginMs + 3'599'000);
  CHECK(credentials->origin == setting.folder / "key.json");

  const auto sent = setting.client.sent();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].method == "POST");
  CHECK(sent[0].url == "http://127.0.0.1:7/token");
  CHECK(sent[0].Find("content-type") == "application/x-www-form-urlencoded");
  Fields fields = FieldsOf(sent[0].body);
  CHECK(fields.size() == 2);
  CHECK(fields["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer");
  const std::vector<std::string> parts = absl::StrSplit(fields["assertion"], '.');
  REQUIRE(parts.size() == 3);
  std::vector<std::string> plain(3);
  for (std::size_t i = 0; i < 3; ++i) REQUIRE(absl::WebSafeBase64Unescape(parts[i], &plain[i]));
  CHECK(json::parse(plain[0], nullptr, false) ==
        json{{"alg", "RS256"}, {"typ", "JWT"}, {"kid", "0123abcd"}});
  CHECK(json::parse(plain[1], nullptr, false) ==
        json{{"iss", "trainer@project.iam.gserviceaccount.com"},
             {"scope", "https://www.googleapis.com/auth/devstorage.read_write"},
             {"aud", "http://127.0.0.1:7/token"},
             {"iat", TestClock::kBeginMs / 1000},
             {"exp", TestClock::kBeginMs / 1000 + 3600}});
  CHECK(IsSignatureOf(key.get(), absl::StrCat(parts[0], ".", parts[1]), plain[2]));
  CHECK_FALSE(IsSignatureOf(key.get(), absl::StrCat(parts[0], ".", parts[1], "x"), plain[2]));
}

TEST_CASE("a private key that is encrypted, of another kind or no key is refused") {
  CredentialSetting setting;
  const auto key = NewRsaKey();
  const std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>> curve(EVP_EC_gen("P-256"));
  const std::unique_ptr<BIO, Freer<BIO_free>> bio(BIO_new(BIO_s_mem()));
  char passphrase[] = "passphrase";
  REQUIRE(PEM_write_bio_PKCS8PrivateKey(bio.get(), key.get(), EVP_aes_128_cbc(), passphrase,
                                        sizeof(passphrase) - 1, nullptr, nullptr) == 1);
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &bytes);
  const std::string encrypted(bytes, static_cast<std::size_t>(size));
  const std::string plain = PemOf(key.get());
  for (const std::string& pem :
       {encrypted, PemOf(curve.get()), std::string("x"), plain.substr(0, plain.size() / 2)}) {
    json account = ServiceAccount(key.get());
    account["private_key"] = pem;
    SetFile(&setting, account.dump());
    const auto credentials = setting.Gcs()->Get();
    CHECK(credentials.status() ==
          absl::UnauthenticatedError(absl::StrCat(
              "the private key is not an unencrypted RSA key in PEM: field=private_key path=",
              setting.folder / "key.json")));
  }
  CHECK(setting.client.sent().empty());
}

TEST_CASE("the login of a user is exchanged for an access token") {
  CredentialSetting setting;
  setting.Write("home/.config/gcloud/application_default_credentials.json", UserFile());
  setting.client.Answer(200, kToken);
  const auto credentials = setting.Gcs()->Get();
  REQUIRE(credentials.ok());
  CHECK(credentials->bearer_token == "ya29.new");
  const auto sent = setting.client.sent();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].url == "https://oauth2.googleapis.com/token");
  CHECK(FieldsOf(sent[0].body) == Fields{{"grant_type", "refresh_token"},
                                         {"client_id", "id.apps"},
                                         {"client_secret", "user/secret"},
                                         {"refresh_token", "1//refresh"}});
}

TEST_CASE("an external account exchanges the token of its file") {
  CredentialSetting setting;
  SetFile(&setting, ExternalAccount(setting.Write("subject", "eyJ.subject\n")).dump());
  setting.client.Answer(200, kToken);
  REQUIRE(setting.Gcs()->Get().ok());
  const auto sent = setting.client.sent();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].url == "https://sts.googleapis.com/v1/token");
  CHECK(FieldsOf(sent[0].body) ==
        Fields{{"grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"},
               {"audience", "//iam.googleapis.com/projects/1/locations/global/providers/p"},
               {"scope", "https://www.googleapis.com/auth/devstorage.read_write"},
               {"requested_token_type", "urn:ietf:params:oauth:token-type:access_token"},
               {"subject_token", "eyJ.subject"},
               {"subject_token_type", "urn:ietf:params:oauth:token-type:jwt"}});
}

TEST_CASE("an external account can act as a service account, with a token in a JSON file") {
  CredentialSetting setting;
  json account = ExternalAccount(setting.Write("subject", R"({"id_token":"eyJ.subject"})"));
  account["credential_source"]["format"] = {{"type", "json"},
                                            {"subject_token_field_name", "id_token"}};
  account["service_account_impersonation_url"] =
      "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/a@b:generateAccessToken";
  SetFile(&setting, account.dump());
  setting.client.Answer(200, kToken);
  setting.client.Answer(200,
                        R"({"accessToken":"ya29.account","expireTime":"2026-01-01T00:30:00Z"})");
  const auto credentials = setting.Gcs()->Get();
  REQUIRE(credentials.ok());
  CHECK(credentials->bearer_token == "ya29.account");
  CHECK(credentials->expires_ms == TestClock::kBeginMs + 1'800'000);
  const auto sent = setting.client.sent();
  REQUIRE(sent.size() == 2);
  CHECK(FieldsOf(sent[0].body)["subject_token"] == "eyJ.subject");
  CHECK(FieldsOf(sent[0].body)["scope"] == "https://www.googleapis.com/auth/cloud-platform");
  CHECK(sent[1].method == "POST");
  CHECK(sent[1].url == account["service_account_impersonation_url"].get<std::string>());
  CHECK(sent[1].Find("authorization") == "Bearer ya29.new");
  CHECK(json::parse(sent[1].body, nullptr, false) ==
        json{{"scope", json::array({"https://www.googleapis.com/auth/devstorage.read_write"})},
             {"lifetime", "3600s"}});
}

TEST_CASE("a credential file that is not as expected is an error that names the field") {
  CredentialSetting setting;
  const std::string subject = setting.Write("subject", "eyJ.subject");
  const auto without = [](json account, const char* field) {
    account.erase(field);
    return account.dump();
  };
  const auto with = [](json account, const char* field, const json& value) {
    account[field] = value;
    return account.dump();
  };
  const json user = json::parse(UserFile()), external = ExternalAccount(subject),
             service = {{"type", "service_account"}, {"client_email", "a"}};
  const struct {
    std::string contents;
    const char* want;
  } kCases[] = {
      {"", "not a JSON object"},
      {"[]", "not a JSON object"},
      {"{\"type\":\"impersonated_service_account\"}", "field=type"},
      {"{}", "field=type"},
      {"{\"type\":7}", "field=type"},
      {without(user, "client_id"), "field=client_id"},
      {without(user, "client_secret"), "field=client_secret"},
      {with(user, "refresh_token", 7), "field=refresh_token"},
      {with(user, "token_uri", "http://oauth2.googleapis.com/token"), "name=token_uri"},
      {without(service, "client_email"), "field=client_email"},
      {service.dump(), "field=private_key"},
      {without(external, "audience"), "field=audience"},
      {without(external, "subject_token_type"), "field=subject_token_type"},
      {without(external, "token_url"), "field=token_url"},
      {with(external, "token_url", "http://sts.test/"), "name=token_url"},
      {with(external, "service_account_impersonation_url", "http://iam.test/"),
       "name=service_account_impersonation_url"},
      {with(external, "service_account_impersonation_url", 7),
       "field=service_account_impersonation_url"},
      {without(external, "credential_source"), "field=credential_source.file"},
      {with(external, "credential_source", {{"executable", {{"command", "id"}}}}),
       "field=credential_source.file"},
      {with(external, "credential_source", {{"url", "http://169.254.169.254/"}}),
       "field=credential_source.file"},
      {with(external, "credential_source", {{"file", "/absent/file"}}),
       "name=credential_source.file"},
      {with(external, "credential_source",
            {{"file", subject}, {"format", {{"type", "json"}, {"subject_token_field_name", "x"}}}}),
       "name=the token in credential_source.file"},
  };
  for (const auto& one : kCases) {
    INFO(one.want);
    SetFile(&setting, one.contents);
    const auto credentials = setting.Gcs()->Get();
    CHECK(absl::IsUnauthenticated(credentials.status()));
    const std::string message(credentials.status().message());
    INFO(message);
    CHECK(absl::StrContains(message, one.want));
    CHECK(absl::StrContains(message, "path=" + setting.folder / "key.json"));
  }
  CHECK(setting.client.sent().empty());
}

TEST_CASE("a credential file that a variable names must exist, and the one of gcloud need not") {
  CredentialSetting setting;
  setting.variables["GOOGLE_APPLICATION_CREDENTIALS"] = setting.folder / "absent.json";
  const auto named = setting.Gcs()->Get();
  CHECK(absl::IsUnauthenticated(named.status()));
  CHECK(absl::StrContains(named.status().message(), "name=GOOGLE_APPLICATION_CREDENTIALS"));
  CHECK(absl::StrContains(named.status().message(), setting.folder / "absent.json"));
  setting.variables.erase("GOOGLE_APPLICATION_CREDENTIALS");
  CHECK(setting.Gcs()->Get().status() ==
        absl::UnauthenticatedError(
            "no credentials for gs://; these places were searched: EVERGRAD_GCS_TOKEN_FILE, "
            "GS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS or the login of gcloud; the metadata "
            "service is asked only with --store-metadata-credentials"));
}

TEST_CASE(
    "the metadata service of Google is asked only if the user allows it, and must name itself") {
  CredentialSetting setting;
  CHECK_FALSE(setting.Gcs()->Get().ok());
  CHECK(setting.client.sent().empty());
  setting.from_metadata = true;
  setting.client.Answer(200, kToken, {{"metadata-flavor", "Google"}});
  const auto credentials = setting.Gcs()->Get();
  REQUIRE(credentials.ok());
  CHECK(credentials->bearer_token == "ya29.new");
  CHECK(credentials->origin == "the service account of the machine or pod");
  const auto sent = setting.client.sent();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].method == "GET");
  CHECK(sent[0].url ==
        "http://127.0.0.1:1/computeMetadata/v1/instance/service-accounts/default/token");
  CHECK(sent[0].Find("metadata-flavor") == "Google");
  setting.client.Answer(200, kToken);
  CHECK(absl::IsUnavailable(setting.Gcs()->Get().status()));
}

TEST_CASE("an answer with a token is read strictly") {
  const struct {
    const char* body;
    bool is_accepted;
  } kCases[] = {
      {R"({"access_token":"a","expires_in":1})", true},
      {R"({"access_token":"a","expires_in":18446744073709551615})", true},
      {R"({"access_token":"a","expires_in":0})", false},
      {R"({"access_token":"a","expires_in":-1})", false},
      {R"({"access_token":"a","expires_in":1.5})", false},
      {R"({"access_token":"a","expires_in":"3599"})", false},
      {R"({"access_token":"a"})", false},
      {R"({"access_token":"","expires_in":1})", false},
      {R"({"access_token":"a b","expires_in":1})", false},
      {R"({"access_token":"a\r\nx: y","expires_in":1})", false},
      {R"({"expires_in":1})", false},
      {R"(["access_token"])", false},
      {"ya29.token", false},
      {"", false},
  };
  for (const auto& one : kCases) {
    INFO(one.body);
    CredentialSetting setting;
    SetFile(&setting, UserFile());
    setting.client.Answer(200, one.body);
    const auto credentials = setting.Gcs()->Get();
    if (one.is_accepted) {
      REQUIRE(credentials.ok());
      CHECK(credentials->expires_ms > TestClock::kBeginMs);
      CHECK(credentials->expires_ms <= TestClock::kBeginMs + 366LL * 24 * 3'600'000);
    } else {
      CHECK(absl::IsUnavailable(credentials.status()));
    }
  }
}

TEST_CASE("a refusal of Google shows the code of the error") {
  const struct {
    int status;
    const char* body;
    const char* want;
    absl::StatusCode code;
  } kCases[] = {
      {400, R"({"error":"invalid_grant","error_description":"Bad Request"})",
       "http_status=400 code=invalid_grant", absl::StatusCode::kUnauthenticated},
      {403, R"({"error":{"code":403,"message":"x","status":"PERMISSION_DENIED"}})",
       "http_status=403 code=PERMISSION_DENIED", absl::StatusCode::kPermissionDenied},
      {500, "<html>", "http_status=500", absl::StatusCode::kUnavailable},
      {401, R"({"error":"1//refresh"})", "http_status=401", absl::StatusCode::kUnauthenticated},
  };
  for (const auto& one : kCases) {
    INFO(one.body);
    CredentialSetting setting;
    SetFile(&setting, UserFile());
    setting.client.Answer(one.status, one.body);
    const absl::Status status = setting.Gcs()->Get().status();
    CHECK(status.code() == one.code);
    CHECK(absl::EndsWith(status.message(), one.want));
  }
}

}  // namespace
}  // namespace evergrad::object_store
