// Tests one connection of a scraper, over a socket pair and with a clock that the test advances. No
// call blocks.
#include "common/metrics/scrape_connection.h"
#include "tests/support/manual_executor.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

namespace evergrad::metrics {
namespace {

using State = ScrapeConnection::State;

struct Pair {
  Pair() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    ours = fds[0];
    peer = fds[1];
  }
  ~Pair() { ::close(peer); }
  void Send(const std::string& text) const {
    REQUIRE(::send(peer, text.data(), text.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(text.size()));
  }
  int ours = -1, peer = -1;  // the tested connection owns and closes `ours`
};

TEST_CASE("a request is complete with its empty line, in whatever pieces it arrives") {
  Pair pair;
  ManualClock clock;
  ScrapeConnection connection(pair.ours, &clock, {}, nullptr);
  const std::string request = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
  CHECK(connection.Proceed() == State::kAsking);
  for (std::size_t i = 0; i < request.size(); ++i) {
    CHECK(connection.state() == State::kAsking);
    pair.Send(request.substr(i, 1));
    connection.Proceed();
  }
  CHECK(connection.state() == State::kAsked);
  CHECK(connection.request() == request);
  CHECK(connection.Answer("here") == State::kOver);
  char piece[8];
  CHECK(::recv(pair.peer, piece, sizeof piece, MSG_DONTWAIT) == 4);
}

TEST_CASE(
    "a request that arrives slowly is abandoned at its deadline, however short its pauses are") {
  Pair pair;
  ManualClock clock;
  ConnectionLimits limits;
  limits.request_time_max = std::chrono::seconds(5);
  ScrapeConnection connection(pair.ours, &clock, limits, nullptr);
  int taken = 0;
  for (; taken < 100; ++taken) {
    pair.Send("x");
    if (connection.Proceed() != State::kAsking) break;
    clock.Advance(std::chrono::seconds(1));
  }
  CHECK(taken == 5);
  CHECK(connection.state() == State::kOver);
}

TEST_CASE("at most the limit and one buffer of a request are read") {
  Pair pair;
  ManualClock clock;
  ConnectionLimits limits;
  limits.request_bytes_max = 1000;
  ScrapeConnection connection(pair.ours, &clock, limits, nullptr);
  pair.Send(std::string(20000, 'x'));
  CHECK(connection.Proceed() == State::kOver);
  CHECK(connection.request().size() >= 1000);
  CHECK(connection.request().size() <= 1000 + 4096);
}

TEST_CASE(
    "an answer that its client does not read is abandoned at its deadline, which begins with the "
    "answer") {
  Pair pair;
  ManualClock clock;
  ConnectionLimits limits;
  limits.answer_time_max = std::chrono::seconds(10);
  ScrapeConnection connection(pair.ours, &clock, limits, nullptr);
  pair.Send("GET / HTTP/1.1\r\n\r\n");
  REQUIRE(connection.Proceed() == State::kAsked);
  clock.Advance(std::chrono::hours(1));      // The exporter took an hour for the answer.
  constexpr std::size_t kBytes = 64u << 20;  // more than the buffers of a socket hold
  REQUIRE(connection.Answer(std::string(kBytes, 'y')) == State::kAnswering);
  CHECK(connection.events() == POLLOUT);
  clock.Advance(std::chrono::milliseconds(9'999));
  CHECK(connection.Proceed() == State::kAnswering);
  SECTION("the client reads nothing") {
    clock.Advance(std::chrono::milliseconds(1));
    CHECK(connection.Proceed() == State::kOver);
    CHECK(connection.unsent_bytes() > 0);
  }
  SECTION("the client reads late") {
    std::size_t taken = 0;
    std::string piece(1u << 20, 0);
    while (connection.Proceed() == State::kAnswering) {
      for (ssize_t n; (n = ::recv(pair.peer, piece.data(), piece.size(), MSG_DONTWAIT)) > 0;)
        taken += static_cast<std::size_t>(n);
    }
    for (ssize_t n; (n = ::recv(pair.peer, piece.data(), piece.size(), MSG_DONTWAIT)) > 0;)
      taken += static_cast<std::size_t>(n);
    CHECK(taken == kBytes);
    CHECK(connection.unsent_bytes() == 0);
  }
}

TEST_CASE("a client that disconnects before its request is complete ends the connection") {
  Pair pair;
  ManualClock clock;
  ScrapeConnection connection(pair.ours, &clock, {}, nullptr);
  pair.Send("ab");
  CHECK(connection.Proceed() == State::kAsking);
  ::shutdown(pair.peer, SHUT_WR);
  CHECK(connection.Proceed() == State::kOver);
}

}  // namespace
}  // namespace evergrad::metrics
