// Tests the requests to the API server, byte for byte, and its answers, over loopback.
#include <catch2/catch.hpp>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/runtime/executor.h"
#include "kubernetes/api/api.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/common/http/server_fixture.h"

namespace evergrad::kubernetes {
namespace {

using absl::StatusCode;
using http::Peer;
using http::TestServer;

std::string ResponseOf(int status, const std::string& body) {
  return absl::StrCat("HTTP/1.1 ", status, " X\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
}

// A server that sends these responses in order, whatever the requests are.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<std::string> responses)
      : responses_(responses.begin(), responses.end()), server_([this](Peer& peer, int) {
          while (!responses_.empty() && !peer.ReadRequest().empty()) {
            peer.Send(responses_.front());
            responses_.pop_front();
          }
        }) {}
  std::unique_ptr<Api> MakeApi(const std::string& token_file = "") const {
    ApiOptions options;
    options.server = server_.Url("");
    options.name_space = "team-a";
    options.token_file = token_file;
    REQUIRE(CheckApiOptions(options).ok());
    auto api = MakeHttpApi(options);
    REQUIRE(api.ok());
    return *std::move(api);
  }
  std::vector<std::string> requests() const { return server_.requests(); }
  std::string Host() const { return server_.host_port(); }

 private:
  // The one connection of a test uses the responses.
  std::deque<std::string> responses_;
  TestServer server_;
};

JobObject Object(Json status = Json()) {
  JobObject object;
  object.name = "mlp.a";
  object.uid = "u-1";
  object.resource_version = "41";
  object.status = std::move(status);
  return object;
}

std::string ObjectText(const std::string& name, const std::string& version) {
  return absl::StrCat(R"({"metadata":{"name":")", name, R"(","uid":"u-1","resourceVersion":")",
                      version, R"("},"status":{"state":"RUNNING"}})");
}

std::string RequestText(const std::string& line, const std::string& host,
                        const std::string& headers, const std::string& body = "") {
  return absl::StrCat(line, " HTTP/1.1\r\nHost: ", host, "\r\nUser-Agent: evergrad\r\n", headers,
                      body.empty() ? "" : absl::StrCat("Content-Length: ", body.size(), "\r\n"),
                      "\r\n", body);
}

constexpr char kJobs[] = "/apis/evergrad.dev/v1alpha1/namespaces/team-a/trainingjobs";

TEST_CASE("a list is fetched page by page, with the token of the server between the pages") {
  ScriptedServer server(
      {ResponseOf(200, absl::StrCat(R"({"metadata":{"resourceVersion":"7","continue":"a/+="},)",
                                    R"("items":[)", ObjectText("a", "1"), ",", ObjectText("b", "2"),
                                    "]}")),
       ResponseOf(200,
                  absl::StrCat(R"({"metadata":{"resourceVersion":"7","continue":""},)",
                               R"("items":[)", ObjectText("c", "3"), R"(,{"metadata":5}]})"))});
  const auto list = server.MakeApi()->List();
  REQUIRE(list.status() == absl::OkStatus());
  REQUIRE(list->objects.size() == 3);
  CHECK(list->objects[2].name == "c");
  CHECK(list->resource_version == "7");
  CHECK(list->unreadable == 1);
  CHECK(server.requests() ==
        std::vector<std::string>{
            RequestText(absl::StrCat("GET ", kJobs, "?limit=50"), server.Host(),
                        "Accept: application/json\r\n"),
            RequestText(absl::StrCat("GET ", kJobs, "?limit=50&continue=a%2F%2B%3D"), server.Host(),
                        "Accept: application/json\r\n")});
}

TEST_CASE("an empty list is a list, and an answer without items or a version is none") {
  {
    ScriptedServer server({ResponseOf(200, R"({"metadata":{"resourceVersion":"1"},"items":[]})")});
    const auto list = server.MakeApi()->List();
    REQUIRE(list.ok());
    CHECK(list->objects.empty());
  }
  for (const char* body :
       {R"({"metadata":{"resourceVersion":"1"}})",
        R"({"metadata":{"resourceVersion":"1"},"items":null})", R"({"metadata":{},"items":[]})",
        R"({"metadata":{"resourceVersion":5},"items":[]})",
        R"({"metadata":{"resourceVersion":"1"},"items":{}})", "[]", "null"}) {
    CAPTURE(body);
    ScriptedServer server({ResponseOf(200, body)});
    CHECK(server.MakeApi()->List().status() ==
          absl::UnavailableError("the API server sent a list without items or resourceVersion"));
  }
}

TEST_CASE("a list fails as a whole if one of its pages fails") {
  const std::string page =
      ResponseOf(200, R"({"metadata":{"resourceVersion":"7","continue":"x"},"items":[]})");
  ScriptedServer server(
      {page, ResponseOf(410, R"({"reason":"Expired","message":"too old","code":410})")});
  CHECK(server.MakeApi()->List().status() ==
        absl::OutOfRangeError("the API server answered status=410 reason=Expired: too old"));
}

TEST_CASE("a page that is too large is requested again with fewer objects") {
  ScriptedServer server({"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n"});
  CHECK(server.MakeApi()->List().status().code() == StatusCode::kUnavailable);  // no second answer
  const std::vector<std::string> requests = server.requests();
  REQUIRE(!requests.empty());
  CHECK(absl::StrContains(requests[0], "?limit=50 "));
}

TEST_CASE("a list that never ends is cut off") {
  TestServer server(http::Always(
      ResponseOf(200, R"({"metadata":{"resourceVersion":"7","continue":"x"},"items":[]})")));
  ApiOptions options;
  options.server = server.Url("");
  options.name_space = "team-a";
  CHECK((*MakeHttpApi(options))->List().ok());
  CHECK(server.requests().size() == 1000);
}

TEST_CASE("finalizers are replaced with the version that they change") {
  ScriptedServer server({ResponseOf(200, ObjectText("mlp.a", "42"))});
  const auto changed =
      server.MakeApi()->SetFinalizers(Object(), {"x/y", "evergrad.dev/cancel-job"});
  REQUIRE(changed.status() == absl::OkStatus());
  CHECK(changed->resource_version == "42");
  CHECK(server.requests() ==
        std::vector<std::string>{RequestText(
            absl::StrCat("PATCH ", kJobs, "/mlp.a"), server.Host(),
            "Accept: application/json\r\nContent-Type: application/merge-patch+json\r\n",
            R"({"metadata":{"finalizers":["x/y","evergrad.dev/cancel-job"],)"
            R"("resourceVersion":"41"}})")});
}

TEST_CASE("the last finalizer is removed as an empty list") {
  ScriptedServer server({ResponseOf(200, ObjectText("mlp.a", "42"))});
  REQUIRE(server.MakeApi()->SetFinalizers(Object(), {}).ok());
  CHECK(absl::StrContains(server.requests()[0], R"({"metadata":{"finalizers":[],"resour)"));
}

TEST_CASE("a status is replaced, and members that it no longer has are removed") {
  ScriptedServer server({ResponseOf(200, ObjectText("mlp.a", "42"))});
  const auto changed = server.MakeApi()->SetStatus(
      Object({{"state", "QUEUED"}, {"message", "waits"}, {"loss", "1"}}),
      {{"state", "RUNNING"}, {"conditions", Json::array({{{"type", "Running"}}})}});
  REQUIRE(changed.status() == absl::OkStatus());
  CHECK(changed->status["state"] == "RUNNING");
  CHECK(server.requests() ==
        std::vector<std::string>{RequestText(
            absl::StrCat("PATCH ", kJobs, "/mlp.a/status"), server.Host(),
            "Accept: application/json\r\nContent-Type: application/merge-patch+json\r\n",
            R"({"metadata":{"resourceVersion":"41"},"status":{"conditions":[{"type":"Running"}],)"
            R"("loss":null,"message":null,"state":"RUNNING"}})")});
}

TEST_CASE("a status with bytes that are not UTF-8 is sent with replacements") {
  ScriptedServer server({ResponseOf(200, ObjectText("mlp.a", "42"))});
  REQUIRE(server.MakeApi()->SetStatus(Object("odd"), {{"message", "a\xff"}}).ok());
  CHECK(absl::StrContains(server.requests()[0], "{\"message\":\"a\xef\xbf\xbd\"}"));
}

TEST_CASE("an Event is posted to the Events of the namespace") {
  ScriptedServer server(
      {ResponseOf(201, "{}"), ResponseOf(409, R"({"reason":"AlreadyExists","message":"exists"})")});
  const auto api = server.MakeApi();
  CHECK(api->CreateEvent({{"kind", "Event"}}) == absl::OkStatus());
  CHECK(api->CreateEvent({{"kind", "Event"}}).code() == StatusCode::kAlreadyExists);
  CHECK(server.requests()[0] ==
        RequestText("POST /api/v1/namespaces/team-a/events", server.Host(),
                    "Accept: application/json\r\nContent-Type: application/json\r\n",
                    R"({"kind":"Event"})"));
}

TEST_CASE("each refusal of the API server has its code") {
  const struct {
    int status;
    const char* body;
    StatusCode code;
  } cases[] = {{401, R"({"reason":"Unauthorized"})", StatusCode::kUnauthenticated},
               {403, R"({"reason":"Forbidden"})", StatusCode::kPermissionDenied},
               {404, R"({"reason":"NotFound"})", StatusCode::kNotFound},
               {409, R"({"reason":"Conflict"})", StatusCode::kAborted},
               {410, R"({"reason":"Gone"})", StatusCode::kOutOfRange},
               {422, R"({"reason":"Invalid"})", StatusCode::kInvalidArgument},
               {429, R"({"reason":"TooManyRequests"})", StatusCode::kResourceExhausted},
               {500, R"({"reason":"InternalError"})", StatusCode::kUnavailable},
               {503, "<html>", StatusCode::kUnavailable},
               {302, "", StatusCode::kUnavailable}};
  for (const auto& one : cases) {
    CAPTURE(one.status);
    ScriptedServer server(std::vector<std::string>(5, ResponseOf(one.status, one.body)));
    const auto api = server.MakeApi();
    CHECK(api->List().status().code() == one.code);
    CHECK(api->SetStatus(Object(), Json::object()).status().code() == one.code);
    CHECK(api->SetFinalizers(Object(), {}).status().code() == one.code);
    CHECK(api->CreateEvent(Json::object()).code() == one.code);
    int events = 0;
    CHECK(api->Watch("1", [&](const WatchEvent&) { ++events; }).code() == one.code);
    CHECK(events == 0);
  }
}

TEST_CASE("answers that are no objects are errors of the server, and never end the process") {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  for (const std::string& body :
       {std::string(), std::string("hello"), std::string("[]"), std::string("{}"), deep,
        std::string("\"\xff\""), std::string(R"({"metadata":{"name":"a"}})")}) {
    ScriptedServer server({ResponseOf(200, body)});
    CHECK(server.MakeApi()->SetStatus(Object(), Json::object()).status().code() ==
          StatusCode::kUnavailable);
  }
  ScriptedServer server({"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n"});
  CHECK(server.MakeApi()->SetStatus(Object(), Json::object()).status().code() ==
        StatusCode::kResourceExhausted);
}

TEST_CASE("the token is read anew for each request") {
  const test::TempFolder folder;
  const std::string path = folder / "token";
  ScriptedServer server(std::vector<std::string>(5, ResponseOf(201, "{}")));
  const auto write = [&](const std::string& text) { std::ofstream(path, std::ios::trunc) << text; };
  write("first\n");
  const auto api = server.MakeApi(path);
  const auto post = [&] { return api->CreateEvent(Json::object()); };
  std::filesystem::remove(path);
  CHECK(post().code() == StatusCode::kNotFound);
  write("first\n");
  CHECK(post().ok());
  write(" second ");
  CHECK(post().ok());
  for (const char* wrong : {"", " \n", "a\nb", "a\rX: y"}) {
    CAPTURE(wrong);
    write(wrong);
    const absl::Status status = post();
    CHECK(status.code() == StatusCode::kUnauthenticated);
    CHECK(absl::StrContains(status.message(), path));
  }
  const std::vector<std::string> requests = server.requests();
  REQUIRE(requests.size() == 2);
  CHECK(absl::StrContains(requests[0], "\r\nAuthorization: Bearer first\r\n"));
  CHECK(absl::StrContains(requests[1], "\r\nAuthorization: Bearer second\r\n"));
}

TEST_CASE("a missing file of the token or of the authority is named with its flag") {
  const test::TempFolder folder;
  ApiOptions options;
  options.server = "https://127.0.0.1:1";
  options.name_space = "team-a";
  options.token_file = folder / "none";
  const absl::Status token = MakeHttpApi(options).status();
  CHECK(BlameOf(token) == Blame::kUser);
  CHECK(absl::StartsWith(token.message(), "--api-token: "));
  options.token_file = "";
  options.ca_file = folder / "none";
  const absl::Status authority = MakeHttpApi(options).status();
  CHECK(BlameOf(authority) == Blame::kUser);
  CHECK(absl::StartsWith(authority.message(), "--api-ca: "));
}

TEST_CASE("no error repeats the token") {
  const test::TempFolder folder;
  std::ofstream(folder / "token") << "hunter2";
  ScriptedServer server({"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n"});
  const absl::Status status = server.MakeApi(folder / "token")->List().status();
  CHECK_FALSE(status.ok());
  CHECK_FALSE(absl::StrContains(status.ToString(), "hunter2"));
}

std::string ChunkOf(const std::string& text) {
  return absl::StrCat(absl::Hex(text.size()), "\r\n", text, "\r\n");
}

TEST_CASE("a watch reports each event while the server still sends") {
  runtime::WaitableEvent first;
  bool in_time = false;
  const std::string one = absl::StrCat(R"({"type":"ADDED","object":)", ObjectText("a", "8"), "}\n");
  TestServer server([&](Peer& peer, int) {
    peer.ReadRequest();
    peer.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    peer.Send(ChunkOf(one.substr(0, 20)) + ChunkOf(one.substr(20)));
    in_time = first.WaitFor(std::chrono::seconds(20));
    peer.Send(ChunkOf(R"({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}})"
                      "\n") +
              ChunkOf(R"({"type":"DELETED","obj)") + "0\r\n\r\n");
    peer.AwaitEnd();
  });
  ApiOptions options;
  options.server = server.Url("");
  options.name_space = "team-a";
  std::vector<std::string> versions;
  const absl::Status status = (*MakeHttpApi(options))->Watch("7 &", [&](WatchEvent event) {
    versions.push_back(event.resource_version);
    if (versions.size() == 1) first.Set();
  });
  CHECK(status == absl::OkStatus());
  CHECK(in_time);
  CHECK(versions == std::vector<std::string>{"8", "9"});
  CHECK(server.requests() ==
        std::vector<std::string>{RequestText(
            absl::StrCat("GET ", kJobs, "?watch=1&allowWatchBookmarks=true&resourceVersion=7%20%26",
                         "&timeoutSeconds=240"),
            server.host_port(), "Accept: application/json\r\n")});
}

TEST_CASE("a watch that is cut, or sends an endless line, ends with an error after its events") {
  const std::string one = absl::StrCat(R"({"type":"ADDED","object":)", ObjectText("a", "8"), "}\n");
  for (const bool endless : {false, true}) {
    TestServer server([&](Peer& peer, int) {
      peer.ReadRequest();
      peer.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + ChunkOf(one));
      const std::string piece = ChunkOf(std::string(1 << 20, 'x'));
      while (endless && peer.Send(piece)) {
      }
    });
    ApiOptions options;
    options.server = server.Url("");
    options.name_space = "team-a";
    int events = 0;
    const absl::Status status =
        (*MakeHttpApi(options))->Watch("7", [&](const WatchEvent&) { ++events; });
    CHECK(status.code() == (endless ? StatusCode::kCancelled : StatusCode::kUnavailable));
    CHECK(events == 1);
  }
}

TEST_CASE("the interruption ends a watch") {
  http::Interruption interruption;
  runtime::WaitableEvent asked;
  TestServer server([&](Peer& peer, int) {
    peer.ReadRequest();
    peer.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    asked.Set();
    peer.AwaitEnd();
  });
  ApiOptions options;
  options.server = server.Url("");
  options.name_space = "team-a";
  options.interruption = &interruption;
  const auto api = MakeHttpApi(options);
  std::thread interrupter([&] {
    asked.Wait();
    interruption.Interrupt();
  });
  CHECK((*api)->Watch("7", [](const WatchEvent&) {}).code() == StatusCode::kCancelled);
  interrupter.join();
}

}  // namespace
}  // namespace evergrad::kubernetes
