// Tests requests that fail: refused ones, and servers that are slow, silent, absent or hostile.
#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/http/client.h"
#include "common/runtime/executor.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/common/http/client_fixture.h"
#include "tests/unit/common/http/server_fixture.h"

namespace evergrad::http {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;

std::string TextOf(const absl::StatusOr<Response>& response) {
  return std::string(response.status().message());
}

TEST_CASE("a malformed URL is refused and not repeated") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"http://user:secret@127.0.0.1/k", "the URL has a user name or a password"},
      {"http://secret@127.0.0.1/k", "the URL has a user name or a password"},
      {"http://@secret/k", "the URL has a user name or a password"},
      {"http://user:secret@x@127.0.0.1?k", "the URL has a user name or a password"},
      {"user:secret@127.0.0.1/k", "the URL is not http:// or https://"},
      {"secret/k", "the URL is not http:// or https://"},
      {"/secret", "the URL is not http:// or https://"},
      {"http:/secret", "the URL is not http:// or https://"},
      {"", "the URL is not http:// or https://"},
      {"http://", "the URL has no host"},
      {"http:///secret", "the URL has no host"},
      {"http://?secret", "the URL has no host"},
      {"http://secret:99999/", "the URL is malformed: "},
      {"http://[::1/secret", "the URL is malformed: "},
      {"ftp://secret/k", "the URL is not http:// or https://"},
      {"file:///secret", "the URL is not http:// or https://"},
      {"http://secret/a b", "the URL has a space, "},
      {"http://secret/a\r\nHost: b", "the URL has a space, "},
      {std::string("http://secret/\0k", 16), "the URL has a space, "},
      {"http://secret/\xc3\xa4", "the URL has a space, "},
      {"http://secret/k#fragment", "the URL has a space, "},
      {"http://secret/" + std::string(20'000, 'a'), "the URL has more than 16384 bytes"},
  };
  const auto client = MakeClient();
  for (const auto& [url, reason] : cases) {
    CAPTURE(url);
    const auto response = Get(client.get(), url);
    CHECK(response.status().code() == StatusCode::kInvalidArgument);
    CHECK_THAT(TextOf(response),
               Catch::StartsWith("HTTP request failed: method=GET reason=" + reason));
    CHECK_THAT(TextOf(response), !Catch::Contains("secret"));
  }
}

TEST_CASE("a request with a wrong method, body or header is refused and not sent") {
  TestServer server(Always("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
  const auto client = MakeClient();
  struct Case {
    std::string method, body;
    std::vector<Header> headers;
    std::string reason;
  };
  const std::string malformed = "a header of the request is malformed";
  const std::string reserved = "only the client writes this header: header=";
  for (const Case& refused : std::vector<Case>{
           {"OPTIONS", "", {}, "unknown method"},
           {"get", "", {}, "unknown method"},
           {"", "", {}, "unknown method"},
           {"GET", "secret", {}, "a request with this method has no body"},
           {"HEAD", "secret", {}, "a request with this method has no body"},
           {"DELETE", "secret", {}, "a request with this method has no body"},
           {"PUT", "", {{"a", "secret\r\nb: c"}}, malformed},
           {"PUT", "", {{"a", std::string("secret\0", 7)}}, malformed},
           {"PUT", "", {{"secret:", "c"}}, malformed},
           {"PUT", "", {{"secret\n", "c"}}, malformed},
           {"PUT", "", {{"", "secret"}}, malformed},
           {"PUT", "", {{"content-length", "3"}}, reserved + "Content-Length"},
           {"PUT", "", {{"Transfer-Encoding", "chunked"}}, reserved + "Transfer-Encoding"},
           {"PUT", "", {{"Expect", "100-continue"}}, reserved + "Expect"},
           {"GET", "", {{"connection", "close"}}, reserved + "Connection"},
       }) {
    Request request = MakeRequest(refused.method, server.Url("/k?secret"));
    request.body = refused.body;
    request.headers = refused.headers;
    const auto response = client->Send(request);
    CHECK(response.status() ==
          absl::InvalidArgumentError("HTTP request failed: method=" + refused.method +
                                     " url=" + server.Url("/k") + " reason=" + refused.reason));
  }
  CHECK(server.connections() == 0);
}

TEST_CASE("a response above its limit is refused, with and without Content-Length") {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  const std::string many = [] {
    std::string headers;
    for (int i = 0; i < 300; ++i) headers += "a: b\r\n";
    return headers;
  }();
  struct Case {
    std::string response, reason;
  };
  for (const Case& refused :
       std::vector<Case>{// The body does not follow. The client must not wait for it.
                         {ok + "Content-Length: 11\r\n\r\n",
                          "the response has 11 bytes, and the limit is 10 bytes"},
                         {ok + "\r\n0123456789a", "the response exceeds its limit of 10 bytes"},
                         {ok + "Transfer-Encoding: chunked\r\n\r\nb\r\n0123456789a\r\n",
                          "the response exceeds its limit of 10 bytes"},
                         {ok + many + "\r\n", "the response has more than 200 headers"},
                         {ok + "a: " + std::string(70'000, 'x') + "\r\n\r\n",
                          "the headers of the response exceed 65536 bytes"}}) {
    TestServer server([&](Peer& peer, int) {
      peer.ReadRequest();
      peer.Send(refused.response);
      peer.AwaitEnd();
    });
    const auto client = MakeClient();
    Request request = MakeRequest("GET", server.Url("/k"));
    request.response_bytes_max = 10;
    CHECK(client->Send(request).status() ==
          absl::ResourceExhaustedError("HTTP request failed: method=GET url=" + server.Url("/k") +
                                       " reason=" + refused.reason));
  }
}

TEST_CASE("a server that never stops to send interim responses is refused") {
  TestServer server([](Peer& peer, int) {
    peer.ReadRequest();
    while (peer.Send("HTTP/1.1 100 Continue\r\n\r\n")) {
    }
  });
  CHECK(Get(MakeClient().get(), server.Url("/k")).status().code() ==
        StatusCode::kResourceExhausted);
}

TEST_CASE("a connection that ends within the response, and a malformed response, are Unavailable") {
  for (const char* answer :
       {"", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n012345678",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n",
        "hello\r\n\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabc", "\x16\x03\x01"}) {
    CAPTURE(answer);
    TestServer server([&](Peer& peer, int) {
      if (peer.ReadRequest().empty()) return;
      peer.Send(answer);
    });
    const auto client = MakeClient();
    const auto response = Get(client.get(), server.Url("/k?secret"));
    CHECK(response.status().code() == StatusCode::kUnavailable);
    CHECK_THAT(
        TextOf(response),
        Catch::StartsWith("HTTP request failed: method=GET url=" + server.Url("/k") + " reason="));
    // A new connection that fails is not repeated: only the caller knows whether it may be.
    CHECK(server.requests().size() == 1);
  }
}

TEST_CASE("an absent server is Unavailable, and the error has no query and no header") {
  const std::string host_port = ClosedHostPort();
  Request request = MakeRequest("PUT", "http://" + host_port + "/b/k?X-Amz-Signature=secret");
  request.headers = {{"Authorization", "secret"}};
  request.body = "secret";
  const auto response = MakeClient()->Send(request);
  CHECK(response.status().code() == StatusCode::kUnavailable);
  CHECK_THAT(TextOf(response), Catch::StartsWith("HTTP request failed: method=PUT url=http://" +
                                                 host_port + "/b/k reason=Failed to connect"));
  CHECK_THAT(TextOf(response), !Catch::Contains("secret"));
}

TEST_CASE("the password of a proxy is in no error") {
  const TestVariable none("no_proxy", nullptr);
  const TestVariable none_upper("NO_PROXY", nullptr);
  for (const std::string& proxy :
       {std::string("bad://user:secret@127.0.0.1:1"), std::string("http://user:secret@[1"),
        "http://user:secret@" + ClosedHostPort()}) {
    CAPTURE(proxy);
    const TestVariable http("http_proxy", proxy.c_str());
    const auto response = Get(MakeClient().get(), "http://store.invalid/k");
    CHECK(response.status().code() == StatusCode::kUnavailable);
    CHECK_THAT(TextOf(response), !Catch::Contains("secret"));
  }
}

TEST_CASE("a transfer without any byte for the stall timeout is Unavailable") {
  ClientOptions options = Patient();
  options.stall_timeout = milliseconds(100);
  const std::string body(32u << 20, 'x');  // more than the buffers of a connection hold
  Request request = MakeRequest("PUT", "");
  std::function<void(Peer&)> serve;
  SECTION("the server sends nothing") {
    serve = [](Peer& peer) {
      peer.ReadRequest();
      peer.AwaitEnd();
    };
  }
  SECTION("the server stops within the body") {
    serve = [](Peer& peer) {
      peer.ReadRequest();
      peer.Send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234");
      peer.AwaitEnd();
    };
  }
  SECTION("the server stops to read the request") {
    request.body = body;
    serve = [](Peer& peer) {
      peer.ReadHeaders();
      peer.AwaitEnd();
    };
  }
  TestServer server([&](Peer& peer, int) { serve(peer); });
  request.url = server.Url("/k");
  const auto client = MakeClient(options);
  CHECK(client->Send(request).status() ==
        absl::UnavailableError("HTTP request failed: method=PUT url=" + server.Url("/k") +
                               " reason=no bytes moved for 100 ms"));
}

TEST_CASE("bytes that arrive slowly do not stall, but the total timeout ends the request") {
  ClientOptions options = Patient();
  options.stall_timeout = milliseconds(2'000);
  options.total_timeout = milliseconds(3'500);
  TestServer server([](Peer& peer, int) {
    peer.ReadRequest();
    peer.Send("HTTP/1.1 200 OK\r\n");
    for (int i = 0; i < 100 && !peer.AwaitEnd(milliseconds(20)); ++i) peer.Send("a: b\r\n");
    peer.Send("\r\n");
    while (!peer.AwaitEnd(milliseconds(20))) peer.Send("x");
  });
  const auto client = MakeClient(options);
  const auto response = Get(client.get(), server.Url("/k"));
  CHECK(response.status().code() == StatusCode::kUnavailable);
  CHECK_THAT(TextOf(response), Catch::Contains("timed out after"));
}

TEST_CASE("a TLS handshake that does not end is limited by the connect timeout") {
  ClientOptions options = Patient();
  options.connect_timeout = milliseconds(200);
  options.stall_timeout = milliseconds(1);  // counts only once there is a connection
  TestServer server([](Peer& peer, int) { peer.AwaitEnd(); });
  const auto client = MakeClient(options);
  const auto response = Get(client.get(), "https://" + server.host_port() + "/k");
  CHECK(response.status().code() == StatusCode::kUnavailable);
  CHECK_THAT(TextOf(response), Catch::Contains("timeout"));
}

TEST_CASE("an interruption ends a waiting request and all later ones") {
  Interruption interruption;
  ClientOptions options = Patient();
  options.interruption = &interruption;
  runtime::WaitableEvent asked;
  TestServer server([&](Peer& peer, int) {
    peer.ReadRequest();
    asked.Set();
    peer.AwaitEnd();
  });
  const auto client = MakeClient(options);
  const absl::Status expected = absl::CancelledError(
      "HTTP request failed: method=GET url=" + server.Url("/k") + " reason=interrupted");
  std::thread interrupter([&] {
    asked.Wait();
    interruption.Interrupt();
  });
  CHECK(Get(client.get(), server.Url("/k")).status() == expected);
  interrupter.join();
  CHECK(Get(client.get(), server.Url("/k")).status() == expected);
  CHECK(server.connections() == 1);
}

TEST_CASE("a file of authorities that is absent or has no certificate is refused by its name") {
  test::TempFolder folder;
  ClientOptions options;
  options.ca_file = folder / "absent.pem";
  CHECK(MakeCurlClient(options).status() ==
        absl::InvalidArgumentError("cannot read certificates of authorities: file=" +
                                   options.ca_file + " reason=No such file or directory"));
  for (const char* text :
       {"", "hello", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}) {
    options.ca_file = folder / "wrong.pem";
    std::ofstream(options.ca_file, std::ios::trunc) << text;
    CHECK(MakeCurlClient(options).status() ==
          absl::InvalidArgumentError("cannot read certificates of authorities: file=" +
                                     options.ca_file + " reason=the file has no PEM certificate"));
  }
}

}  // namespace
}  // namespace evergrad::http
