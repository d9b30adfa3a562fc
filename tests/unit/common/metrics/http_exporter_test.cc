// Over a real socket on loopback, port 0, with a client of its own: thirty lines are cheaper than httplib's header.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "common/metrics/metrics.h"

namespace evergrad::metrics {
namespace {

std::string Get(const std::string& address, const std::string& path) {
  const std::size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::atoi(address.c_str() + colon + 1)));
  REQUIRE(::inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) == 1);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(fd >= 0);
  std::string answer;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) {
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    REQUIRE(::send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()));
    char piece[4096];
    for (ssize_t n; (n = ::recv(fd, piece, sizeof(piece), 0)) > 0;) answer.append(piece, static_cast<std::size_t>(n));
  }
  ::close(fd);
  return answer;
}

TEST_CASE("a scrape over HTTP gives the registry's text, and the port is free afterwards") {
  Registry registry;
  registry.GetCounter("evergrad_worker_steps_total", "Steps.").Add(7);
  std::string address;
  {
    auto exporter = HttpExporter::Start("127.0.0.1:0", &registry);
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
    CHECK(HttpExporter::Start(address, &registry).status().code() == absl::StatusCode::kUnavailable);
  }
  CHECK(Get(address, "/metrics").empty());
  CHECK(HttpExporter::Start(address, &registry).ok());
}

TEST_CASE("an exporter that is never asked ends at once") {
  Registry registry;
  for (int i = 0; i < 5; ++i) CHECK(HttpExporter::Start("127.0.0.1:0", &registry).ok());
}

TEST_CASE("metrics are not served off loopback unless that was asked for, and bad addresses are refused") {
  Registry registry;
  const auto open = HttpExporter::Start("0.0.0.0:0", &registry);
  CHECK(open.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(open.status().message()), Catch::Contains("--insecure-listen"));
  CHECK(HttpExporter::Start("0.0.0.0:0", &registry, true).ok());
  for (const char* bad : {"", "localhost", ":1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:-1"}) {
    CAPTURE(bad);
    CHECK(HttpExporter::Start(bad, &registry).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace evergrad::metrics
