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

bool Parse(const std::string& address, sockaddr_in* to) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return false;
  to->sin_family = AF_INET;
  to->sin_port = htons(static_cast<std::uint16_t>(std::atoi(address.c_str() + colon + 1)));
  return inet_pton(AF_INET, address.substr(0, colon).c_str(), &to->sin_addr) == 1;
}

// Serves one connection, and ends the process when the connection ends.
[[noreturn]] void ServeConnection(int fd) {
  NoDelay(fd);
  const std::vector<char> source(kLargest, 1);
  std::vector<char> sink(kLargest, 1);
  for (;;) {
    Request request;
    ReadAll(fd, &request, sizeof request);
    if (request.push > kLargest || request.pull > kLargest) _exit(1);
    ReadAll(fd, sink.data(), request.push);
    WriteAll(fd, &request, sizeof request);
    WriteAll(fd, source.data(), request.pull);
  }
}

}  // namespace

std::string CongestionOf(int socket) {
  char name[32] = {};
  socklen_t size = sizeof name;
  getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &size);
  return name;
}

void ServeRaw(int out) {
  const int listener = ListenRaw("127.0.0.1:0");
  EG_CHECK(listener >= 0);
  SayLine(out, AddressOf(listener));
  ServeConnection(accept(listener, nullptr, nullptr));
}

void ServeRawForEver(int listener) {
  signal(SIGCHLD, SIG_IGN);
  for (;;) {
    const int fd = accept(listener, nullptr, nullptr);
    if (fd < 0) continue;
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      ServeConnection(fd);
    }
    close(fd);
  }
}

int ListenRaw(const std::string& address) {
  sockaddr_in to{};
  if (!Parse(address, &to)) return -1;
  const int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0 && listen(listener, 4) == 0)
    return listener;
  close(listener);
  return -1;
}

std::string AddressOf(int listener) {
  sockaddr_in at{};
  socklen_t size = sizeof at;
  getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size);
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &at.sin_addr, text, sizeof text);
  return std::string(text) + ":" + std::to_string(ntohs(at.sin_port));
}

Client ConnectRaw(const std::string& line) {
  sockaddr_in address{};
  EG_CHECK_MSG(Parse(line, &address), line + " is no IPv4 address with a port");
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  EG_CHECK_MSG(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0,
               "no raw stream at " + line);
  NoDelay(fd);
  std::fprintf(stderr, "raw TCP: congestion control %s\n", CongestionOf(fd).c_str());
  const auto source = std::make_shared<std::vector<char>>(kLargest, 1),
             sink = std::make_shared<std::vector<char>>(kLargest, 1);
  return [=](const Wish& wish) {
    const Request request{wish.push, wish.pull};
    const auto start = Steady::now();
    const auto end =
        start + std::chrono::nanoseconds(static_cast<std::int64_t>(wish.seconds * 1e9));
    Measured measured;
    int flying = 0;
    const auto send_one = [&] {
      WriteAll(fd, &request, sizeof request);
      WriteAll(fd, source->data(), wish.push);
      ++flying;
    };
    // Requests are sent ahead of the answers, and pushes are written without waiting. Both keep the
    // connection full.
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
