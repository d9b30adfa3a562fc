// Over a real socket on loopback, port 0, with a client of its own: thirty lines are cheaper than httplib's header.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "common/metrics/http_exporter.h"

namespace evergrad::metrics {
namespace {

int Dial(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::atoi(address.c_str() + colon + 1)));
  REQUIRE(::inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) == 1);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(fd >= 0);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return fd;
  ::close(fd);
  return -1;
}

std::string ReadAll(int fd) {
  std::string text;
  char piece[4096];
  for (ssize_t n; (n = ::recv(fd, piece, sizeof(piece), 0)) > 0;) text.append(piece, static_cast<std::size_t>(n));
  return text;
}

std::string Get(const std::string& address, const std::string& path) {
  const int fd = Dial(address);
  std::string answer;
  if (fd >= 0) {
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    REQUIRE(::send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()));
    answer = ReadAll(fd);
    ::close(fd);
  }
  return answer;
}

absl::StatusOr<std::unique_ptr<HttpExporter>> Start(const std::string& listen, Registry* registry, bool plain_off_loopback = false,
                                                    ConnectionLimits limits = {}) {
  static RealClock clock;
  ExporterOptions options;
  options.listen = listen;
  options.plain_off_loopback = plain_off_loopback;
  options.limits = limits;
  return HttpExporter::Start(std::move(options), registry, &clock);
}

TEST_CASE("a scrape over HTTP gives the registry's text, and the port is free afterwards") {
  Registry registry;
  registry.GetCounter("evergrad_worker_steps_total", "Steps.").Add(7);
  std::string address;
  {
    auto exporter = Start("127.0.0.1:0", &registry);
    REQUIRE(exporter.ok());
    address = (*exporter)->address();
    CHECK(address != "127.0.0.1:0");
    const std::string metrics = Get(address, "/metrics");
    CHECK_THAT(metrics, Catch::StartsWith("HTTP/1.1 200"));
    CHECK_THAT(metrics, Catch::Contains("text/plain; version=0.0.4"));
    CHECK_THAT(metrics, Catch::EndsWith("evergrad_worker_steps_total 7\n"));
    CHECK_THAT(Get(address, "/healthz"), Catch::EndsWith("ok\n"));
    CHECK_THAT(Get(address, "/nothing"), Catch::StartsWith("HTTP/1.1 404"));
    // Two daemons never share a port in silence.
    CHECK(Start(address, &registry).status().code() == absl::StatusCode::kUnavailable);
  }
  CHECK(Get(address, "/metrics").empty());
  CHECK(Start(address, &registry).ok());
}

TEST_CASE("an exporter that is never asked ends at once") {
  Registry registry;
  for (int i = 0; i < 5; ++i) CHECK(Start("127.0.0.1:0", &registry).ok());
}

TEST_CASE("metrics are not served off loopback unless that was asked for, and bad addresses are refused") {
  Registry registry;
  const auto open = Start("0.0.0.0:0", &registry);
  CHECK(open.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(open.status().message()), Catch::Contains("--insecure-metrics"));
  CHECK(Start("0.0.0.0:0", &registry, true).ok());
  for (const char* bad : {"", "localhost", ":1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:-1"}) {
    CAPTURE(bad);
    CHECK(Start(bad, &registry).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("a client that is slow to send its request does not delay the end of the exporter") {
  Registry registry;
  ConnectionLimits patient;
  patient.request_time_max = std::chrono::hours(1);
  auto exporter = Start("127.0.0.1:0", &registry, false, patient);
  REQUIRE(exporter.ok());
  std::vector<int> slow;
  // More than there are threads, so that some wait in the queue.
  for (int i = 0; i < 5; ++i) {
    slow.push_back(Dial((*exporter)->address()));
    REQUIRE(slow.back() >= 0);
    CHECK(::send(slow.back(), "GET /metr", 9, MSG_NOSIGNAL) == 9);
  }
  exporter->reset();  // Would last an hour.
  for (const int fd : slow) {
    CHECK_THAT(ReadAll(fd), !Catch::Contains("200"));
    ::close(fd);
  }
}

TEST_CASE("a request that is larger than its bound is not read to its end") {
  Registry registry;
  auto exporter = Start("127.0.0.1:0", &registry);
  REQUIRE(exporter.ok());
  const int fd = Dial((*exporter)->address());
  REQUIRE(fd >= 0);
  const std::string header = "GET /metrics HTTP/1.1\r\n";
  CHECK(::send(fd, header.data(), header.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(header.size()));
  // Many short headers: no line of them is too long.
  std::string more;
  for (int i = 0; i < 4000; ++i) more += "a: b\r\n";
  (void)::send(fd, more.data(), more.size(), MSG_NOSIGNAL);
  CHECK_THAT(ReadAll(fd), !Catch::Contains("200 OK"));
  ::close(fd);
  CHECK_THAT(Get((*exporter)->address(), "/healthz"), Catch::EndsWith("ok\n"));
}

}  // namespace
}  // namespace evergrad::metrics
