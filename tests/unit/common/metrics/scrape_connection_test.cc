// Over a socket pair and a clock that moves when told: nothing here waits.
#include "common/metrics/scrape_connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

namespace evergrad::metrics {
namespace {

struct Pair {
  Pair() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    ours = fds[0];
    peer = fds[1];
  }
  ~Pair() { ::close(peer); }
  void Send(const std::string& text) const { REQUIRE(::send(peer, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size())); }
  int ours = -1, peer = -1;  // `ours` is the connection's to close
};

TEST_CASE("a request that trickles in is given up at its deadline, however short each pause is") {
  Pair pair;
  ManualClock clock;
  ConnectionLimits limits;
  limits.request_time_max = std::chrono::seconds(5);
  ScrapeConnection connection(pair.ours, &clock, limits, nullptr);
  char byte;
  int taken = 0;
  for (; taken < 100; ++taken) {
    pair.Send("x");
    if (connection.Read(&byte, 1) != 1) break;
    clock.Advance(std::chrono::seconds(1));
  }
  CHECK(taken == 5);
}

TEST_CASE("no more of a request is read than its bound and one buffer") {
  Pair pair;
  ManualClock clock;
  ConnectionLimits limits;
  limits.request_bytes_max = 1000;
  ScrapeConnection connection(pair.ours, &clock, limits, nullptr);
  pair.Send(std::string(20000, 'x'));
  std::size_t taken = 0;
  char piece[512];
  for (ssize_t n; (n = connection.Read(piece, sizeof piece)) > 0;) taken += static_cast<std::size_t>(n);
  CHECK(taken >= 1000);
  CHECK(taken <= 1000 + 4096);
}

TEST_CASE("an answer that its reader does not take is given up at its deadline, which begins with the answer") {
  Pair pair;
  ManualClock clock;
  ConnectionLimits limits;
  limits.answer_time_max = std::chrono::seconds(10);
  ScrapeConnection connection(pair.ours, &clock, limits, nullptr);
  clock.Advance(std::chrono::hours(1));  // The request took its time.
  const std::string text(1024, 'y');
  CHECK(connection.Write(text.data(), text.size()) == 1024);
  clock.Advance(std::chrono::seconds(10));
  ssize_t n = 1;
  // Until the buffers of the socket are full; from there on it would wait, and its time is over.
  for (int i = 0; i < 100000 && n > 0; ++i) n = connection.Write(text.data(), text.size());
  CHECK(n == -1);
}

TEST_CASE("a peer that hangs up ends the request") {
  Pair pair;
  ManualClock clock;
  ScrapeConnection connection(pair.ours, &clock, {}, nullptr);
  pair.Send("ab");
  ::shutdown(pair.peer, SHUT_WR);
  char piece[8];
  CHECK(connection.Read(piece, sizeof piece) == 2);
  CHECK(connection.Read(piece, sizeof piece) == 0);
}

}  // namespace
}  // namespace evergrad::metrics
