// Retries, credentials, errors and metrics of a store over HTTP.
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/random/philox.h"
#include "tests/unit/common/object_store/http_store_fixture.h"

namespace evergrad::object_store {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
using test::FakeHttpClient;
using test::Fault;

// A store whose server answers from a script.
struct ScriptedStage : StoreStage {
  ScriptedStage() : StoreStage(fs::StoreKind::kS3) {
    StoreParts parts = Parts(1);
    parts.client = &client;
    store = MakeHttpObjectStore("bucket", parts);
  }
  FakeHttpClient client;
  std::unique_ptr<ObjectStore> store;
};

std::string ErrorBody(absl::string_view code, absl::string_view more = "") {
  return absl::StrCat("<Error><Code>", code, "</Code>", more, "</Error>");
}

TEST_CASE("a request that fails for a while is repeated after random waits") {
  StoreStage stage(fs::StoreKind::kS3);
  const auto store = stage.NewStore();
  for (std::size_t i = 0; i < 4; ++i) stage.server->FailRequest(i, Fault::kInternalError);
  CHECK(store->Put("k", "bytes", PutMode::kReplace) == absl::OkStatus());
  REQUIRE(stage.waits.waits.size() == 4);
  const int bounds_ms[] = {100, 200, 400, 800};
  for (std::size_t i = 0; i < 4; ++i) CHECK(stage.waits.waits[i] <= milliseconds(bounds_ms[i]));
  CHECK(stage.waits.waits[2] != stage.waits.waits[3]);
}

TEST_CASE("a store that is too busy determines the wait") {
  StoreStage stage(fs::StoreKind::kS3);
  const auto store = stage.NewStore();
  stage.server->FailRequest(0, Fault::kSlowDown);
  CHECK(store->Put("k", "bytes", PutMode::kReplace) == absl::OkStatus());
  REQUIRE(stage.waits.waits.size() == 1);
  CHECK(stage.waits.waits[0] == milliseconds(2'000));
}

TEST_CASE("a request that keeps failing ends after its time, with the number of attempts") {
  StoreStage stage(fs::StoreKind::kS3);
  const auto store = stage.NewStore();
  stage.server->FailIf([](const auto&) { return true; }, Fault::kNotConnected);
  const absl::Status failed = store->Put("k", "bytes", PutMode::kReplace);
  CHECK(failed.code() == StatusCode::kUnavailable);
  const std::size_t attempts = stage.server->sent().size();
  CHECK(attempts > 10);
  CHECK(attempts < 200);
  CHECK(stage.clock.Now() < std::chrono::seconds(180));
  CHECK(stage.clock.Now() > std::chrono::seconds(150));
  CHECK_THAT(std::string(failed.message()),
             Catch::StartsWith("cannot reach the store: uri=s3://bucket/k store=store.example "
                               "operation=put credentials=environment attempts=" +
                               std::to_string(attempts) + " seconds=1"));
}

TEST_CASE("a process that ends does not wait") {
  StoreStage stage(fs::StoreKind::kS3);
  const auto store = stage.NewStore();
  stage.server->FailIf([](const auto&) { return true; }, Fault::kNotConnected);
  stage.waits.Interrupt();
  CHECK(store->Put("k", "bytes", PutMode::kReplace).code() == StatusCode::kCancelled);
  CHECK(stage.server->sent().size() == 1);
}

TEST_CASE("a store without an interruption works") {
  StoreStage stage(fs::StoreKind::kS3);
  StoreParts parts = stage.Parts(1);
  parts.interruption = nullptr;
  parts.registry = nullptr;
  parts.retries.wait_first = parts.retries.wait_max = milliseconds(0);
  const auto store = MakeHttpObjectStore("bucket", parts);
  stage.server->FailRequest(0, Fault::kInternalError);
  CHECK(store->Put("k", "bytes", PutMode::kReplace) == absl::OkStatus());
}

TEST_CASE("expired credentials are renewed, and the request is repeated at once") {
  for (const fs::StoreKind kind : kKinds) {
    CAPTURE(NameOfKind(kind));
    StoreStage stage(kind);
    const auto store = stage.NewStore();
    Credentials renewed = TestCredentials(kind);
    renewed.access_key_id = "AKIDNEW";
    renewed.secret_access_key = "another-secret-key";
    if (kind == fs::StoreKind::kS3) renewed.session_token = "another-session-token";
    stage.server->SetCredentials(renewed);
    stage.credentials->Add(renewed);
    CHECK(store->Put("k", "bytes", PutMode::kReplace) == absl::OkStatus());
    CHECK(stage.credentials->refused() == std::vector<std::string>{"AKIDTEST"});
    CHECK(stage.server->sent().size() == 2);
    CHECK(stage.waits.waits == std::vector<milliseconds>{milliseconds(0)});
  }
}

TEST_CASE("an expired bearer token is renewed") {
  test::FakeStore::Options options = StoreStage::OptionsOf(fs::StoreKind::kGcs);
  options.credentials.bearer_token = "old-token";
  StoreStage stage(options);
  const auto store = stage.NewStore();
  Credentials renewed;
  renewed.bearer_token = "new-token";
  stage.server->SetCredentials(renewed);
  stage.credentials->Add(renewed);
  CHECK(store->Put("k", "bytes", PutMode::kReplace) == absl::OkStatus());
  CHECK(stage.credentials->refused().size() == 1);
}

TEST_CASE("credentials that stay refused are an error after the second attempt") {
  StoreStage stage(fs::StoreKind::kS3);
  const auto store = stage.NewStore();
  Credentials other = TestCredentials(fs::StoreKind::kS3);
  other.access_key_id = "AKIDOTHER";
  stage.server->SetCredentials(other);
  const absl::Status refused = store->Put("k", "bytes", PutMode::kReplace);
  CHECK(refused.code() == StatusCode::kUnauthenticated);
  CHECK_THAT(std::string(refused.message()), Catch::Contains("code=InvalidAccessKeyId"));
  CHECK(stage.server->sent().size() == 2);
}

// The error of HEAD said only status=403, because a response to HEAD has no body.
TEST_CASE("a refused description of an object names the code of the store") {
  StoreStage stage(fs::StoreKind::kS3);
  const auto store = stage.NewStore();
  Credentials other = TestCredentials(fs::StoreKind::kS3);
  other.access_key_id = "AKIDOTHER";
  stage.server->SetCredentials(other);
  const absl::Status refused = store->Head("k").status();
  CHECK(refused.code() == StatusCode::kUnauthenticated);
  CHECK_THAT(std::string(refused.message()), Catch::Contains("code=InvalidAccessKeyId"));
}

TEST_CASE("missing credentials are not a missing object") {
  StoreStage stage(fs::StoreKind::kS3);
  stage.credentials = std::make_unique<ScriptedCredentials>(TestCredentials(fs::StoreKind::kS3));
  stage.credentials->Add(absl::NotFoundError("no credentials: searched=environment,file"));
  stage.credentials->Refused({});
  const auto store = stage.NewStore();
  const absl::Status missing = store->Head("k").status();
  CHECK(missing.code() == StatusCode::kUnauthenticated);
  CHECK_THAT(std::string(missing.message()),
             Catch::StartsWith("cannot get credentials for the store: uri=s3://bucket/k"));
  CHECK_THAT(std::string(missing.message()), Catch::Contains("searched=environment,file"));
  CHECK(stage.server->sent().empty());
  CHECK(stage.credentials->gets() == 1);
}

TEST_CASE("a service for credentials that is unavailable is asked again") {
  StoreStage stage(fs::StoreKind::kS3);
  stage.credentials->Add(absl::UnavailableError("the service does not answer"));
  stage.credentials->Refused({});
  const auto store = stage.NewStore();
  const absl::Status failed = store->Put("k", "bytes", PutMode::kReplace);
  CHECK(failed.code() == StatusCode::kUnavailable);
  CHECK(stage.credentials->gets() > 10);
  CHECK(stage.server->sent().empty());
}

TEST_CASE("a wrong region gives an error with the flag to set") {
  StoreStage stage(fs::StoreKind::kS3);
  StoreParts parts = stage.Parts(1);
  parts.endpoint.region = "region-2";
  const auto store = MakeHttpObjectStore("bucket", parts);
  for (const absl::Status& status :
       {store->Put("k", "bytes", PutMode::kReplace), store->Head("k").status()}) {
    CHECK(status.code() == StatusCode::kFailedPrecondition);
    CHECK_THAT(std::string(status.message()),
               Catch::StartsWith("the bucket is in region region-1: start the daemon with "
                                 "--s3-region region-1: uri=s3://bucket/k"));
  }
  CHECK(stage.server->sent().size() == 2);
}

TEST_CASE("a redirect is not followed") {
  ScriptedStage stage;
  stage.client.Answer(301,
                      ErrorBody("PermanentRedirect",
                                "<Endpoint>bucket.other.example"
                                "</Endpoint>"),
                      {{"x-amz-bucket-region", "eu-west-1"}, {"location", "https://evil.example"}});
  const absl::Status status = stage.store->Get("k", 0, 1, "").status();
  CHECK(status.code() == StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(status.message()), Catch::Contains("--s3-region eu-west-1"));
  CHECK(stage.client.sent().size() == 1);
}

TEST_CASE("a wrong clock is an error after one repetition") {
  ScriptedStage stage;
  for (int i = 0; i < 2; ++i) stage.client.Answer(403, ErrorBody("RequestTimeTooSkewed"));
  const absl::Status status = stage.store->Delete("k");
  CHECK(status.code() == StatusCode::kUnauthenticated);
  CHECK_THAT(std::string(status.message()), Catch::StartsWith("the clock of this machine"));
  CHECK(stage.client.left() == 0);
}

TEST_CASE("the errors of the HTTP client keep their meaning") {
  struct Case {
    absl::Status error;
    StatusCode code;
  };
  const std::vector<Case> cases = {
      {absl::UnauthenticatedError("the certificate is for another host"),
       StatusCode::kUnauthenticated},
      {absl::CancelledError("interrupted"), StatusCode::kCancelled},
      {absl::ResourceExhaustedError("too large"), StatusCode::kDataLoss},
      {absl::InvalidArgumentError("the URL"), StatusCode::kInvalidArgument}};
  for (const Case& one : cases) {
    CAPTURE(one.error);
    ScriptedStage stage;
    stage.client.Fail(one.error);
    CHECK(stage.store->Get("k", 0, 1, "").status().code() == one.code);
    CHECK(stage.client.sent().size() == 1);
  }
}

TEST_CASE("a store that ignores ranges must not send a large object") {
  ScriptedStage stage;
  stage.client.Answer(200, std::string(3u << 20, 'x'), {{"content-length", "3145728"}});
  const absl::Status status = stage.store->Get("k", 100, 10, "").status();
  CHECK(status.code() == StatusCode::kDataLoss);
  CHECK(stage.client.sent().at(0).response_bytes_max < (2u << 20));
}

TEST_CASE("no error contains a secret, not even one that the store repeats") {
  const std::string secrets[] = {"the-secret-key", "the-session-token", "AKIDTEST",
                                 "Signature=", "AWS4-HMAC"};
  ScriptedStage stage;
  stage.client.SetHandler([](const http::Request& request) -> absl::StatusOr<http::Response> {
    std::string repeated;
    for (const http::Header& header : request.headers)
      if (header.name == "x-amz-security-token") repeated = header.value;
    return test::ResponseOf(
        400,
        absl::StrCat("<Error><Code>", repeated, "</Code><Message>token ", repeated,
                     " and the-secret-key of AKIDTEST</Message><RequestId>", repeated,
                     "</RequestId><Region>", repeated, "</Region><Endpoint>", repeated,
                     "</Endpoint><StringToSign>AWS4-HMAC</StringToSign></Error>"),
        {{"x-amz-request-id", "id-" + repeated}});
  });
  ObjectStore& store = *stage.store;
  const std::string upload = std::string(32, 'a') + " id";
  const std::vector<absl::Status> errors = {
      store.Head("k").status(),
      store.Get("k", 0, 1, "").status(),
      store.Put("k", "x", PutMode::kReplace),
      store.Put("k", "x", PutMode::kIfAbsent),
      store.BeginUpload("k").status(),
      store.PutPart("k", upload, 1, "x").status(),
      store.CompleteUpload("k", upload, {{1, "e"}}, PutMode::kReplace),
      store.AbortUpload("k", upload),
      store.List("", false, "").status(),
      store.Delete("k")};
  for (const absl::Status& error : errors) {
    CAPTURE(error);
    REQUIRE_FALSE(error.ok());
    CHECK_THAT(std::string(error.message()), Catch::Contains("[removed]"));
    for (const std::string& secret : secrets)
      CHECK_THAT(std::string(error.message()), !Catch::Contains(secret));
  }
}

TEST_CASE("responses of random bytes are errors and never a success") {
  const std::uint64_t seed = 20'261'127;
  CAPTURE(seed);
  for (std::uint64_t round = 0; round < 300; ++round) {
    ScriptedStage stage;
    stage.client.SetHandler([&](const http::Request&) -> absl::StatusOr<http::Response> {
      std::string bytes;
      for (std::uint64_t i = 0; i < 20; ++i)
        bytes.push_back(static_cast<char>(random::Bits64(seed + round, i) & 0xff));
      return test::ResponseOf(round % 2 == 0 ? 200 : 206, bytes,
                              {{"etag", bytes}, {"content-range", bytes}});
    });
    CHECK_FALSE(stage.store->BeginUpload("k").ok());
    CHECK_FALSE(stage.store->List("", false, "").ok());
    CHECK_FALSE(stage.store->Head("k").ok());
    if (round % 2 != 0) CHECK_FALSE(stage.store->Get("k", 0, 20, "").ok());
  }
}

TEST_CASE("each attempt is counted by its operation and its result") {
  StoreStage stage(fs::StoreKind::kS3);
  const auto store = stage.NewStore();
  stage.server->FailRequest(0, Fault::kInternalError);
  CHECK(store->Put("k", "12345", PutMode::kReplace).ok());
  CHECK_FALSE(store->Head("missing").ok());
  CHECK_FALSE(MakeHttpObjectStore("another", stage.Parts(2))->List("", false, "").ok());
  CHECK(store->Get("k", 0, 5, "").ok());
  const std::string text = stage.registry.PrometheusText();
  for (const char* line : {"evergrad_store_requests_total{operation=\"put\",result=\"ok\"} 1\n",
                           "evergrad_store_requests_total{operation=\"put\",result=\"retry\"} 1\n",
                           "evergrad_store_requests_total{operation=\"put\",result=\"error\"} 0\n",
                           "evergrad_store_requests_total{operation=\"head\",result=\"ok\"} 1\n",
                           "evergrad_store_requests_total{operation=\"get\",result=\"ok\"} 1\n",
                           "evergrad_store_retries_total{operation=\"put\"} 1\n",
                           "evergrad_store_retries_total{operation=\"get\"} 0\n",
                           "evergrad_store_bytes_total{direction=\"sent\"} 10\n",
                           "evergrad_store_request_seconds_count{operation=\"put\"} 2\n"}) {
    CAPTURE(line);
    CHECK(absl::StrContains(text, line));
  }
}

}  // namespace
}  // namespace evergrad::object_store
