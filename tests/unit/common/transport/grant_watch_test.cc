#include "common/transport/session/grant_watch.h"

#include <catch2/catch.hpp>
#include <map>
#include <vector>

namespace evergrad::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A peer whose only stream has grants. Another peer may wait for bytes. The budget has 1000 bytes.
struct Stream {
  explicit Stream(std::uint32_t unused_in_a_row_max = 100)
      : watch({seconds(30), seconds(1), unused_in_a_row_max}, *budget, peer) {}
  void Grant(std::uint64_t request, std::uint64_t bytes, MonoTime now) {
    budget->Advance(now);
    REQUIRE(budget->AskLarge(peer, 1, request, bytes) == CreditCore::Answer::kGranted);
    tokens[request] = budget->MakeToken(peer, bytes, false);
    watch.OnGranted(request, &grants[request], now);
  }
  void OtherWaits() {
    REQUIRE(budget->AskLarge(other, 2, 1000, 900) == CreditCore::Answer::kWaiting);
  }
  // Lets the watch check the stream at this time. Returns the requests whose grants were withdrawn.
  std::vector<std::uint64_t> Tick(MonoTime now) {
    std::vector<std::uint64_t> taken;
    budget->Advance(now);
    status = watch.Tick(now, [&](std::uint64_t request) {
      taken.push_back(request);
      watch.Remove(request, grants.at(request));
      tokens.erase(request);
    });
    return taken;
  }

  const std::shared_ptr<Budget> budget =
      std::make_shared<Budget>(CreditCore::Options{.budget_bytes_max = 1000}, [] {});
  const std::uint64_t peer = budget->Join("a"), other = budget->Join("b");
  std::map<std::uint64_t, GrantWatch::Grant> grants;
  std::map<std::uint64_t, std::unique_ptr<Budget::Token>> tokens;
  GrantWatch watch;
  absl::Status status;
};

using Requests = std::vector<std::uint64_t>;

TEST_CASE("a grant without a piece for the whole time is withdrawn even if no peer waits") {
  Stream stream;
  stream.Grant(1, 10, seconds(100));
  stream.Grant(2, 10, seconds(110));
  stream.watch.OnPiece(1, &stream.grants[1], seconds(115));
  CHECK(stream.Tick(seconds(130)).empty());
  CHECK(stream.Tick(seconds(140)) == Requests{2});
  CHECK(stream.Tick(seconds(144)).empty());
  CHECK(stream.Tick(seconds(145)) == Requests{1});
  CHECK(stream.watch.empty());
  CHECK(stream.status.ok());
}

TEST_CASE("grants of a silent stream are withdrawn once another peer waits, the newest first") {
  Stream stream;
  stream.Grant(1, 100, seconds(100));
  stream.Grant(2, 100, seconds(100) + milliseconds(500));
  CHECK(stream.Tick(seconds(102)).empty());  // no peer waits
  stream.OtherWaits();
  // If the grant of request 2 is withdrawn, the other peer's request fits.
  CHECK(stream.Tick(seconds(103)) == Requests{2});
  CHECK(stream.budget->TakeAdmitted().size() == 1);
  CHECK(stream.Tick(seconds(104)).empty());
}

TEST_CASE("a stream that sends payload keeps unused grants up to its share") {
  Stream stream;
  stream.Grant(1, 10, seconds(100));
  stream.Grant(2, 100, seconds(100));
  stream.OtherWaits();
  for (int second = 101; second < 110; ++second) {
    stream.watch.OnPiece(1, &stream.grants[1], seconds(second));
    CHECK(stream.Tick(seconds(second)).empty());
  }
  CHECK(stream.Tick(seconds(110)) == Requests{2});  // the stream has been silent for a second
}

TEST_CASE("a peer above its share loses a grant whose request has begun and is late") {
  Stream stream;
  stream.Grant(1, 600, seconds(100));
  stream.OtherWaits();
  for (int second = 101; second < 130; ++second) {
    stream.watch.OnPiece(1, &stream.grants[1], seconds(second));
    CHECK(stream.Tick(seconds(second)).empty());
  }
  stream.watch.OnPiece(1, &stream.grants[1], seconds(130));
  CHECK(stream.Tick(seconds(130)) == Requests{1});
}

TEST_CASE(
    "a stream is refused after too many consecutive unused grants, and a whole request resets the "
    "count") {
  for (const bool used : {false, true}) {
    Stream stream(2);
    stream.Grant(1, 10, seconds(100));
    CHECK(stream.Tick(seconds(130)) == Requests{1});
    CHECK(stream.status.ok());
    stream.Grant(2, 10, seconds(131));
    if (used) {
      stream.watch.OnComplete(2, stream.grants[2], 10, seconds(132));
      CHECK(stream.watch.empty());
    }
    stream.Grant(3, 10, seconds(140));
    stream.Tick(seconds(170));
    CHECK(stream.status.ok() == used);
    if (!used) CHECK(absl::IsResourceExhausted(stream.status));
  }
}

TEST_CASE("a grant that is returned late while another peer waits counts as unused") {
  for (const bool late : {false, true}) {
    Stream stream(1);
    stream.Grant(1, 200, seconds(100));
    stream.OtherWaits();
    stream.watch.OnReturned(stream.grants[1], seconds(100) + milliseconds(late ? 250 : 249));
    stream.watch.Remove(1, stream.grants[1]);
    CHECK(stream.Tick(seconds(101)).empty());
    CHECK(absl::IsResourceExhausted(stream.status) == late);
  }
}

TEST_CASE("the next tick is the next check for others, or the end of the oldest grant") {
  Stream stream;
  stream.Grant(1, 10, seconds(100));
  CHECK(stream.watch.Due() == seconds(101));
  stream.Tick(seconds(129) + milliseconds(500));
  CHECK(stream.watch.Due() == seconds(130));
}

}  // namespace
}  // namespace evergrad::transport
