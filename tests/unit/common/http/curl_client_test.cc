// Tests complete exchanges over loopback: the bytes of requests, responses, connections and
// proxies.
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/http/client.h"
#include "tests/unit/common/http/client_fixture.h"
#include "tests/unit/common/http/server_fixture.h"

namespace evergrad::http {
namespace {

constexpr char kEmptyOk[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

TEST_CASE("each method has the request line, headers and body of this transcript") {
  TestServer server(Always(kEmptyOk));
  const auto client = MakeClient();
  const std::string common =
      "Host: " + server.host_port() + "\r\nUser-Agent: evergrad\r\nAccept: */*\r\n";
  struct Case {
    std::string method, path;
    std::vector<Header> headers;
    std::string body, line, rest;
  };
  const std::vector<Case> cases = {
      {"GET",
       "/bucket/key?list-type=2&prefix=a%2Fb",
       {{"Range", "bytes=0-9"}, {"x-amz-date", "20261127T000000Z"}},
       "",
       "GET /bucket/key?list-type=2&prefix=a%2Fb HTTP/1.1\r\n",
       "Range: bytes=0-9\r\nx-amz-date: 20261127T000000Z\r\n\r\n"},
      {"GET", "", {}, "", "GET / HTTP/1.1\r\n", "\r\n"},
      {"GET", "?versioning", {}, "", "GET /?versioning HTTP/1.1\r\n", "\r\n"},
      {"HEAD", "/k", {{"x-empty", ""}}, "", "HEAD /k HTTP/1.1\r\n", "x-empty:\r\n\r\n"},
      {"PUT",
       "/k",
       {{"If-None-Match", "*"}},
       "abc",
       "PUT /k HTTP/1.1\r\n",
       "If-None-Match: *\r\nContent-Length: 3\r\n\r\nabc"},
      {"PUT", "/k", {}, "", "PUT /k HTTP/1.1\r\n", "Content-Length: 0\r\n\r\n"},
      {"POST", "/k?uploads", {}, "", "POST /k?uploads HTTP/1.1\r\n", "Content-Length: 0\r\n\r\n"},
      {"POST",
       "/k",
       {{"content-type", "application/xml"}},
       "<a/>",
       "POST /k HTTP/1.1\r\n",
       "content-type: application/xml\r\nContent-Length: 4\r\n\r\n<a/>"},
      {"PATCH",
       "/k",
       {{"Content-Type", "application/merge-patch+json"}},
       "{}",
       "PATCH /k HTTP/1.1\r\n",
       "Content-Type: application/merge-patch+json\r\nContent-Length: 2\r\n\r\n{}"},
      {"PATCH", "/k", {}, "", "PATCH /k HTTP/1.1\r\n", "Content-Length: 0\r\n\r\n"},
      {"DELETE", "/k", {}, "", "DELETE /k HTTP/1.1\r\n", "\r\n"},
      // The path is not normalized: an object's key may have such segments.
      {"GET", "/a/../b%2Fc//./d", {}, "", "GET /a/../b%2Fc//./d HTTP/1.1\r\n", "\r\n"},
  };
  for (const Case& expected : cases) {
    CAPTURE(expected.method, expected.path);
    Request request = MakeRequest(expected.method, server.Url(expected.path));
    request.headers = expected.headers;
    request.body = expected.body;
    const auto response = client->Send(request);
    REQUIRE(response.status() == absl::OkStatus());
    CHECK(response->status == 200);
    CHECK(server.requests().back() == expected.line + common + expected.rest);
  }
  CHECK(server.requests().size() == cases.size());
  CHECK(server.connections() == 1);
}

TEST_CASE("a caller's own User-Agent and Accept replace those of the client") {
  TestServer server(Always(kEmptyOk));
  Request request = MakeRequest("GET", server.Url("/"));
  request.headers = {{"user-agent", "x"}, {"accept", "application/json"}};
  REQUIRE(MakeClient()->Send(request).ok());
  CHECK(server.requests().back() == "GET / HTTP/1.1\r\nHost: " + server.host_port() +
                                        "\r\nuser-agent: x\r\naccept: application/json\r\n\r\n");
}

TEST_CASE("a large body arrives unchanged in both directions") {
  std::string body(5'000'000, '\0');
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>(i * i % 251);
  TestServer server([](Peer& peer, int) {
    for (std::string request; !(request = peer.ReadRequest()).empty();)
      peer.Answer(request.substr(request.find("\r\n\r\n") + 4));
  });
  const auto client = MakeClient();
  for (const char* method : {"PUT", "POST", "PATCH"}) {
    Request request = MakeRequest(method, server.Url("/k"));
    request.body = body;
    request.response_bytes_max = body.size();
    const auto response = client->Send(request);
    REQUIRE(response.status() == absl::OkStatus());
    CHECK(response->body == body);
    const std::string sent = server.requests().back();
    CHECK(sent == std::string(method) + " /k HTTP/1.1\r\nHost: " + server.host_port() +
                      "\r\nUser-Agent: evergrad\r\nAccept: */*\r\nContent-Length: 5000000" +
                      "\r\n\r\n" + body);
  }
}

TEST_CASE("responses in chunks, until the end of the connection, and of HEAD are read") {
  struct Case {
    std::string method, response, body;
  };
  const std::vector<Case> cases = {
      {"GET",
       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n"
       "etag: trailer\r\n\r\n",
       "abcde"},
      {"GET", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc", "abc"},
      {"GET", "HTTP/1.1 100 Continue\r\nx: y\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
       "a"},
      {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", ""},
      // The body is not decoded: it would otherwise be refused, because it is not of gzip.
      {"GET", "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", "abc"},
      {"DELETE", "HTTP/1.1 204 No Content\r\n\r\n", ""},
  };
  for (const Case& expected : cases) {
    CAPTURE(expected.response);
    TestServer server([&](Peer& peer, int) {
      peer.ReadRequest();
      peer.Send(expected.response);
    });
    const auto client = MakeClient();
    const auto response = client->Send(MakeRequest(expected.method, server.Url("/k")));
    REQUIRE(response.status() == absl::OkStatus());
    CHECK(response->body == expected.body);
    CHECK(response->Find("x") == "");
    CHECK(response->Find("etag") == "");
  }
}

TEST_CASE("a response has its status and headers, whatever the status is") {
  TestServer server(
      Always("HTTP/1.1 404 Not Found\r\nX-Amz-Request-Id: 7\r\nContent-Length: 5\r\n\r\n<no/>"));
  const auto response = Get(MakeClient().get(), server.Url("/k"));
  REQUIRE(response.ok());
  CHECK(response->status == 404);
  CHECK(response->body == "<no/>");
  CHECK(response->headers ==
        std::vector<Header>{{"x-amz-request-id", "7"}, {"content-length", "5"}});
}

TEST_CASE("a redirect is returned and not followed") {
  TestServer other(Always(kEmptyOk));
  TestServer server(Always("HTTP/1.1 307 Temporary Redirect\r\nLocation: " + other.Url("/k") +
                           "\r\nContent-Length: 0\r\n\r\n"));
  const auto client = MakeClient();
  for (const char* method : {"GET", "PUT", "POST"}) {
    const auto response = client->Send(MakeRequest(method, server.Url("/k")));
    REQUIRE(response.ok());
    CHECK(response->status == 307);
    CHECK(response->Find("location") == other.Url("/k"));
  }
  CHECK(server.requests().size() == 3);
  CHECK(other.connections() == 0);
}

TEST_CASE("a cookie of a response is not sent with the next request") {
  TestServer server(
      Always("HTTP/1.1 200 OK\r\nSet-Cookie: a=b; Path=/\r\nContent-Length: 0\r\n\r\n"));
  const auto client = MakeClient();
  REQUIRE(Get(client.get(), server.Url("/")).ok());
  REQUIRE(Get(client.get(), server.Url("/")).ok());
  CHECK(server.requests()[0] == server.requests()[1]);
}

TEST_CASE("an option of one request does not remain for the next one") {
  TestServer server(Always(kEmptyOk));
  const auto client = MakeClient();
  REQUIRE(Get(client.get(), server.Url("/k")).ok());
  Request put = MakeRequest("PUT", server.Url("/k"));
  put.headers = {{"content-type", "text/plain"}};
  put.body = "abc";
  REQUIRE(client->Send(put).ok());
  REQUIRE(client->Send(MakeRequest("HEAD", server.Url("/k"))).ok());
  REQUIRE(Get(client.get(), server.Url("/k")).ok());
  CHECK(server.requests().front() == server.requests().back());
  CHECK(server.connections() == 1);
}

TEST_CASE("a request is sent again on a new connection if the server has closed an idle one") {
  SECTION("before the request") {
    TestServer server([](Peer& peer, int) {
      if (!peer.ReadRequest().empty()) peer.Answer("a");
    });
    const auto client = MakeClient();
    Request put = MakeRequest("PUT", server.Url("/k"));
    put.body = "abc";
    for (int i = 1; i <= 3; ++i) {
      REQUIRE(client->Send(put).status() == absl::OkStatus());
      CHECK(server.connections() == i);
    }
    CHECK(server.requests().size() == 3);
  }
  SECTION("while the request arrives") {
    const std::string body(200'000, 'b');
    TestServer server([](Peer& peer, int connection) {
      if (!peer.ReadRequest().empty()) peer.Answer("a");
      if (connection == 0) peer.ReadRequest();
    });
    const auto client = MakeClient();
    REQUIRE(Get(client.get(), server.Url("/first")).ok());
    Request put = MakeRequest("PUT", server.Url("/k"));
    put.body = body;
    REQUIRE(client->Send(put).status() == absl::OkStatus());
    REQUIRE(server.requests().size() == 3);
    CHECK(server.requests()[1] == server.requests()[2]);
    CHECK(server.requests()[2].substr(server.requests()[2].find("\r\n\r\n") + 4) == body);
  }
}

TEST_CASE("threads share a client, and each gets the response to its own request") {
  TestServer server([](Peer& peer, int) {
    for (std::string request; !(request = peer.ReadRequest()).empty();)
      peer.Answer(request.substr(0, request.find("\r\n")));
  });
  const auto client = MakeClient();
  constexpr int kThreads = 20;
  constexpr int kRequests = 20;
  std::vector<int> right(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRequests; ++i) {
        const std::string path = "/" + std::to_string(t) + "/" + std::to_string(i);
        const auto response = Get(client.get(), server.Url(path));
        if (response.ok() && response->body == "GET " + path + " HTTP/1.1")
          ++right[static_cast<std::size_t>(t)];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == std::vector<int>(kThreads, kRequests));
}

TEST_CASE("requests to this machine do not use the proxy of the environment, and others do") {
  TestServer server(Always(kEmptyOk));
  TestServer proxy(Always(kEmptyOk));
  const TestVariable http("http_proxy", proxy.Url("").c_str());
  const TestVariable all("all_proxy", proxy.Url("").c_str());
  const TestVariable none("no_proxy", nullptr);
  const TestVariable none_upper("NO_PROXY", nullptr);
  const auto client = MakeClient();
  REQUIRE(Get(client.get(), server.Url("/k")).ok());
  REQUIRE(Get(client.get(), "http://" + server.host_port("localhost") + "/k").ok());
  // libcurl's parser of URLs takes this for 127.0.0.1.
  REQUIRE(Get(client.get(), "http://" + server.host_port("0x7f.1") + "/k").ok());
  CHECK(server.requests().size() == 3);
  CHECK(proxy.connections() == 0);
  REQUIRE(Get(client.get(), "http://store.invalid/k").ok());
  REQUIRE(proxy.requests().size() == 1);
  CHECK_THAT(proxy.requests()[0], Catch::StartsWith("GET http://store.invalid/k HTTP/1.1\r\n"));
  REQUIRE(Get(client.get(), server.Url("/k")).ok());
  CHECK(server.requests().size() == 4);
}

}  // namespace
}  // namespace evergrad::http
