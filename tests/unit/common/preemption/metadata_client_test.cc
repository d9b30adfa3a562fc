// Tests requests over loopback. The service answers, is silent, is absent, or sends an answer that
// never ends.
#include "common/preemption/metadata_client.h"

#include <catch2/catch.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "common/preemption/http_response.h"

namespace evergrad::preemption {
namespace {

// A listener on loopback. Until Serve is called, the system accepts connections but no code answers
// them.
struct Service {
  int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  MetadataAddress address;
  std::thread thread;

  Service() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
    REQUIRE(::listen(listener, 8) == 0);
    REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size) == 0);
    address = {"127.0.0.1", ntohs(at.sin_port), false};
  }
  ~Service() {
    if (thread.joinable()) thread.join();
    ::close(listener);
  }
  // Accepts one connection, reads its request into `request`, and calls `answer` with the socket.
  void Serve(std::string* request, std::function<void(int)> answer) {
    thread = std::thread([this, request, answer = std::move(answer)] {
      const int peer = ::accept(listener, nullptr, nullptr);
      char bytes[4096];
      while (request->find("\r\n\r\n") == std::string::npos) {
        const ssize_t count = ::recv(peer, bytes, sizeof(bytes), 0);
        if (count <= 0) break;
        request->append(bytes, static_cast<std::size_t>(count));
      }
      answer(peer);
      ::close(peer);
    });
  }
};

void SendText(int peer, const std::string& text) {
  [[maybe_unused]] const auto sent = ::send(peer, text.data(), text.size(), MSG_NOSIGNAL);
}

Request Post() {
  Request request;
  request.method = "POST";
  request.path = "/a?b=c";
  request.headers = {{"Metadata", "true"}};
  request.body = "{}";
  return request;
}

TEST_CASE("a request reaches the service as HTTP, and its answer is returned") {
  RealClock clock;
  Service service;
  MetadataClient client(service.address, &clock);
  std::string request;
  service.Serve(&request, [](int peer) {
    SendText(peer, "HTTP/1.1 200 OK\r\nETag: 5a\r\n");
    SendText(peer, "Content-Length: 4\r\n\r\nTRUE");
  });
  const auto answer = client.Send(Post());
  service.thread.join();
  REQUIRE(answer);
  CHECK(answer->status == 200);
  CHECK(answer->body == "TRUE");
  CHECK(answer->Header("etag") == "5a");
  CHECK(request ==
        "POST /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(service.address.port) +
            "\r\nUser-Agent: evergrad\r\nConnection: close\r\nMetadata: true\r\n"
            "Content-Length: 2\r\n\r\n{}");
}

TEST_CASE("a service that is silent or absent, or resets, is a failure with the reason") {
  RealClock clock;
  Request request = Post();
  request.timeout = std::chrono::milliseconds(20);
  MetadataAddress closed;
  {
    Service service;
    MetadataClient client(service.address, &clock);
    const auto answer = client.Send(request);
    REQUIRE(answer);
    CHECK(answer->status == 0);
    CHECK(answer->failure == "no answer within 20 ms");
    CHECK(answer->took >= request.timeout);
    closed = service.address;
  }
  MetadataClient client(closed, &clock);
  request.timeout = std::chrono::seconds(60);
  const auto answer = client.Send(request);
  REQUIRE(answer);
  CHECK(answer->failure == "cannot connect: reason=Connection refused");
}

TEST_CASE("an answer without end is refused after 64 KiB") {
  RealClock clock;
  Service service;
  MetadataClient client(service.address, &clock);
  std::string request;
  service.Serve(&request, [](int peer) {
    const std::string block(4096, 'x');
    SendText(peer, "HTTP/1.1 200 OK\r\n\r\n");
    while (::send(peer, block.data(), block.size(), MSG_NOSIGNAL) > 0) {
    }
  });
  const auto answer = client.Send(Post());
  REQUIRE(answer);
  CHECK(answer->status == 0);
  CHECK(answer->failure == "the response is longer than 65536 bytes");
}

TEST_CASE("a wake-up ends a request and a wait, once each, and may come first") {
  RealClock clock;
  Service service;
  MetadataClient client(service.address, &clock);
  Request request = Post();
  request.timeout = std::chrono::hours(1);
  client.Wake();
  CHECK_FALSE(client.Send(request));
  client.Wake();
  client.Wake();
  CHECK_FALSE(client.Wait(std::nullopt));
  CHECK(client.Wait(std::chrono::milliseconds(1)));
  std::thread waker([&] { client.Wake(); });
  CHECK_FALSE(client.Send(request));
  waker.join();
}

}  // namespace
}  // namespace evergrad::preemption
