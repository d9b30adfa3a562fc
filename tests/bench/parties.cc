#include "tests/bench/parties.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <memory>

namespace evergrad::bench {
namespace {

constexpr std::size_t kLargest = 64u << 20;

void ReadAll(int fd, void* out, std::size_t n) {
  auto* p = static_cast<char*>(out);
  while (n > 0) {
    const ssize_t k = recv(fd, p, n, 0);
    if (k <= 0) _exit(0);
    p += k;
    n -= static_cast<std::size_t>(k);
  }
}
void WriteAll(int fd, const void* from, std::size_t n) {
  const auto* p = static_cast<const char*>(from);
  while (n > 0) {
    const ssize_t k = send(fd, p, std::min<std::size_t>(n, 1 << 20), MSG_NOSIGNAL);
    if (k <= 0) _exit(0);
    p += k;
    n -= static_cast<std::size_t>(k);
  }
}

struct Request {
  std::uint64_t push = 0, pull = 0;
};

void NoDelay(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

}  // namespace

std::string CongestionOf(int socket) {
  char name[32] = {};
  socklen_t size = sizeof name;
  getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &size);
  return name;
}

void ServeRaw(int out) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EG_CHECK(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(listener, 4) == 0);
  socklen_t size = sizeof address;
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  SayLine(out, std::to_string(ntohs(address.sin_port)));
  const int fd = accept(listener, nullptr, nullptr);
  NoDelay(fd);
  const std::vector<char> source(kLargest, 1);
  std::vector<char> sink(kLargest, 1);
  for (;;) {
    Request request;
    ReadAll(fd, &request, sizeof request);
    ReadAll(fd, sink.data(), request.push);
    WriteAll(fd, &request, sizeof request);
    WriteAll(fd, source.data(), request.pull);
  }
}

Client ConnectRaw(const std::string& line) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(line)));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EG_CHECK(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  NoDelay(fd);
  std::fprintf(stderr, "raw TCP: congestion control %s\n", CongestionOf(fd).c_str());
  const auto source = std::make_shared<std::vector<char>>(kLargest, 1), sink = std::make_shared<std::vector<char>>(kLargest, 1);
  return [=](const Wish& wish) {
    const Request request{wish.push, wish.pull};
    const auto start = Steady::now();
    const auto end = start + std::chrono::nanoseconds(static_cast<std::int64_t>(wish.seconds * 1e9));
    Measured measured;
    int flying = 0;
    const auto send_one = [&] {
      WriteAll(fd, &request, sizeof request);
      WriteAll(fd, source->data(), wish.push);
      ++flying;
    };
    // Pulls are asked for ahead, and pushes are simply written: both keep the wire full.
    for (int i = 0; i < wish.in_flight; ++i) send_one();
    while (flying > 0) {
      Request answer;
      ReadAll(fd, &answer, sizeof answer);
      ReadAll(fd, sink->data(), wish.pull);
      --flying;
      ++measured.calls;
      if (Steady::now() < end) send_one();
    }
    measured.seconds = std::chrono::duration<double>(Steady::now() - start).count();
    return measured;
  };
}

}  // namespace evergrad::bench
