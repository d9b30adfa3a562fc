// Tests bodies that are passed on piece by piece while they arrive.
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "common/http/client.h"
#include "common/runtime/executor.h"
#include "tests/unit/common/http/client_fixture.h"
#include "tests/unit/common/http/server_fixture.h"

namespace evergrad::http {
namespace {

using absl::StatusCode;
using std::chrono::seconds;

constexpr char kChunked[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

Request Receiving(const std::string& url, std::function<bool(absl::string_view)> receive) {
  Request request = MakeRequest("GET", url);
  request.receive_body = std::move(receive);
  return request;
}

TEST_CASE("a receiver gets each piece of a body before the server sends the next one") {
  runtime::WaitableEvent first, second;
  bool in_time = true;
  TestServer server([&](Peer& peer, int) {
    peer.ReadRequest();
    peer.Send(kChunked);
    peer.Send("4\r\none\n\r\n");
    in_time = first.WaitFor(seconds(20)) && in_time;
    peer.Send("3\r\ntwo\r\n");
    in_time = second.WaitFor(seconds(20)) && in_time;
    peer.Send("0\r\n\r\n");
    peer.AwaitEnd();
  });
  std::string received;
  const auto client = MakeClient();
  const auto response = client->Send(Receiving(server.Url("/watch"), [&](absl::string_view bytes) {
    received.append(bytes.data(), bytes.size());
    if (received == "one\n") first.Set();
    if (received == "one\ntwo") second.Set();
    return true;
  }));
  REQUIRE(response.status() == absl::OkStatus());
  CHECK(in_time);
  CHECK(received == "one\ntwo");
  CHECK(response->status == 200);
  CHECK(response->body == "");
  CHECK(response->Find("transfer-encoding") == "chunked");
}

TEST_CASE("a receiver gets a body that is longer than the limit of collected bodies") {
  const std::string piece(1000, 'x');
  TestServer server([&](Peer& peer, int) {
    peer.ReadRequest();
    peer.Send(kChunked);
    for (int i = 0; i < 100; ++i) peer.Send("3e8\r\n" + piece + "\r\n");
    peer.Send("0\r\n\r\n");
    peer.AwaitEnd();
  });
  std::size_t received = 0;
  Request request = Receiving(server.Url("/watch"), [&](absl::string_view bytes) {
    received += bytes.size();
    return true;
  });
  request.response_bytes_max = 10;
  const auto response = MakeClient()->Send(request);
  REQUIRE(response.status() == absl::OkStatus());
  CHECK(received == 100'000);
}

TEST_CASE("the body of a response with another status than 200 is collected, within its limit") {
  for (const char* status : {"410 Gone", "403 Forbidden", "500 Error", "201 Created"}) {
    CAPTURE(status);
    TestServer server(
        Always("HTTP/1.1 " + std::string(status) + "\r\nContent-Length: 5\r\n\r\nerror"));
    const auto client = MakeClient();
    int calls = 0;
    Request request =
        Receiving(server.Url("/watch"), [&](absl::string_view) { return ++calls > 0; });
    const auto response = client->Send(request);
    REQUIRE(response.status() == absl::OkStatus());
    CHECK(response->body == "error");
    request.response_bytes_max = 4;
    CHECK(client->Send(request).status().code() == StatusCode::kResourceExhausted);
    CHECK(calls == 0);
  }
}

TEST_CASE("a receiver that returns false ends the transfer, and gets no further piece") {
  runtime::WaitableEvent ended;
  TestServer server([&](Peer& peer, int) {
    peer.ReadRequest();
    peer.Send(kChunked);
    peer.Send("1\r\na\r\n");
    // The client disconnects although the body has not ended.
    if (peer.AwaitEnd()) ended.Set();
  });
  int calls = 0;
  const auto client = MakeClient();
  const auto response = client->Send(Receiving(server.Url("/watch?secret"), [&](absl::string_view) {
    ++calls;
    return false;
  }));
  CHECK(response.status() ==
        absl::CancelledError("HTTP request failed: method=GET url=" + server.Url("/watch") +
                             " reason=the receiver of the body ended the transfer"));
  CHECK(calls == 1);
  CHECK(ended.WaitFor(seconds(20)));
}

TEST_CASE("after a connection that is cut within a body the receiver has the pieces before it") {
  for (const char* headers : {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
                              "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"}) {
    CAPTURE(headers);
    TestServer server([&](Peer& peer, int) {
      peer.ReadRequest();
      peer.Send(headers);
    });
    std::string received;
    const auto client = MakeClient();
    const auto response = client->Send(Receiving(server.Url("/watch"), [&](absl::string_view b) {
      received.append(b.data(), b.size());
      return true;
    }));
    CHECK(response.status().code() == StatusCode::kUnavailable);
    CHECK(received == "abc");
    CHECK(server.connections() == 1);  // the request is not repeated
  }
}

TEST_CASE("an interruption ends a transfer whose receiver waits for the next piece") {
  Interruption interruption;
  ClientOptions options = Patient();
  options.interruption = &interruption;
  runtime::WaitableEvent received;
  TestServer server([&](Peer& peer, int) {
    peer.ReadRequest();
    peer.Send(kChunked);
    peer.Send("1\r\na\r\n");
    peer.AwaitEnd();
  });
  std::thread interrupter([&] {
    received.Wait();
    interruption.Interrupt();
  });
  const auto client = MakeClient(options);
  const auto response = client->Send(Receiving(server.Url("/watch"), [&](absl::string_view) {
    received.Set();
    return true;
  }));
  interrupter.join();
  CHECK(response.status().code() == StatusCode::kCancelled);
  CHECK(absl::StrContains(response.status().message(), "reason=interrupted"));
}

TEST_CASE("a receiver of one request gets no body of the next one") {
  TestServer server(Always("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"));
  const auto client = MakeClient();
  std::string received;
  REQUIRE(client
              ->Send(Receiving(server.Url("/watch"),
                               [&](absl::string_view bytes) {
                                 received.append(bytes.data(), bytes.size());
                                 return true;
                               }))
              .ok());
  const auto second = Get(client.get(), server.Url("/k"));
  REQUIRE(second.ok());
  CHECK(second->body == "abc");
  CHECK(received == "abc");
  CHECK(server.connections() == 1);
}

}  // namespace
}  // namespace evergrad::http
