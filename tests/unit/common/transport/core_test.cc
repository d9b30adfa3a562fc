// Tests the pure parts that both transports use: credit, outbox, reassembly and watchdog. It also
// connects a client session directly with a server session, with a clock that the test advances.
#include <catch2/catch.hpp>

#include <algorithm>
#include <deque>
#include <random>
#include <set>

#include "common/base/status.h"
#include "common/transport/frames/buffer_pool.h"
#include "common/transport/frames/message_reader.h"
#include "common/transport/frames/outbox.h"
#include "common/transport/frames/reassembly.h"
#include "common/transport/session/budget.h"
#include "common/transport/session/client_session.h"
#include "common/transport/session/credit.h"
#include "common/transport/session/liveness.h"
#include "common/transport/session/server_session.h"
#include "common/transport/status_detail.h"
#include "tests/unit/common/transport/transport_fixture.h"

namespace evergrad::transport {
namespace {

using namespace test;
using wire::MessageKind;
using Answer = CreditCore::Answer;

std::vector<std::uint64_t> RequestsOf(const std::vector<CreditCore::Admitted>& admitted) {
  std::vector<std::uint64_t> ids;
  for (const auto& a : admitted) ids.push_back(a.request);
  return ids;
}

// ---------------------------------------------------------------- credit

// The peers of a credit core, with the numbers that the test gives them. Each peer has one stream,
// whose number is that of the peer.
struct Peers {
  explicit Peers(CreditCore::Options options, int count = 5) : core(options) {
    for (int i = 1; i <= count; ++i)
      REQUIRE(core.Join("peer " + std::to_string(i)) == static_cast<std::uint64_t>(i));
  }
  Answer Ask(std::uint64_t peer, std::uint64_t request, std::uint64_t bytes) {
    return core.AskLarge(peer, peer, request, bytes);
  }
  std::vector<std::uint64_t> Admitted() { return RequestsOf(core.TakeAdmitted()); }
  CreditCore core;
};
using Requests = std::vector<std::uint64_t>;

TEST_CASE(
    "large requests of one peer are admitted in order, and small ones do not starve a large one") {
  Peers peers({.budget_bytes_max = 100});
  CHECK(peers.Ask(1, 1, 60) == Answer::kGranted);
  CHECK(peers.Ask(1, 2, 80) == Answer::kWaiting);
  // The free bytes are given to the other peer, although the first peer waits for more.
  CHECK(peers.Ask(2, 3, 10) == Answer::kGranted);
  // This request would fit, but must wait behind the first one of the same peer.
  CHECK(peers.Ask(1, 4, 10) == Answer::kWaiting);
  CHECK(peers.core.waiting_bytes() == 90);
  CHECK(peers.Admitted().empty());
  peers.core.ReleaseLarge(1, 60);
  CHECK(peers.Admitted() == Requests{2});  // The other bytes are left to the other peer.
  CHECK(peers.core.used() == 90);
  peers.core.ReleaseLarge(1, 80);
  CHECK(peers.Admitted() == Requests{4});
}

TEST_CASE(
    "a request above the budget and a request at a full waiting list are refused, and one peer "
    "fills an eighth of the list") {
  Peers peers({.budget_bytes_max = 100, .waiting_max = 16});
  CHECK(peers.Ask(1, 1, 101) == Answer::kOverBudget);
  CHECK(peers.Ask(1, 2, 100) == Answer::kGranted);
  CHECK(peers.Ask(1, 3, 1) == Answer::kWaiting);
  CHECK(peers.Ask(1, 4, 1) == Answer::kWaiting);
  CHECK(peers.Ask(1, 5, 1) == Answer::kFull);
  CHECK(peers.Ask(2, 6, 1) == Answer::kWaiting);
  Peers full({.budget_bytes_max = 100, .waiting_max = 2}, 3);
  CHECK(full.Ask(1, 1, 100) == Answer::kGranted);
  CHECK(full.Ask(1, 2, 1) == Answer::kWaiting);
  CHECK(full.Ask(2, 3, 1) == Answer::kWaiting);
  CHECK(full.Ask(3, 4, 1) == Answer::kFull);
}

TEST_CASE(
    "a single peer may use the whole budget, and waiting peers are served in turns up to their "
    "shares") {
  Peers peers({.budget_bytes_max = 100});
  for (std::uint64_t i = 1; i <= 10; ++i) CHECK(peers.Ask(1, i, 10) == Answer::kGranted);
  for (std::uint64_t i = 11; i <= 20; ++i) CHECK(peers.Ask(1, i, 10) == Answer::kWaiting);
  CHECK_FALSE(peers.core.OverShare(1));  // no other peer waits
  for (std::uint64_t i = 21; i <= 30; ++i) CHECK(peers.Ask(2, i, 10) == Answer::kWaiting);
  CHECK(peers.core.OverShare(1));
  CHECK(peers.core.share() == 50);
  // Released bytes go to the second peer until each peer has half. After that they go to both in
  // turns.
  Requests admitted;
  for (int i = 0; i < 5; ++i) {
    peers.core.ReleaseLarge(1, 10);
    for (const std::uint64_t id : peers.Admitted()) admitted.push_back(id);
  }
  CHECK(admitted == Requests{21, 22, 23, 24, 25});
  CHECK_FALSE(peers.core.OverShare(1));
  peers.core.ReleaseLarge(1, 10);
  peers.core.ReleaseLarge(2, 10);
  CHECK(peers.Admitted() == Requests{11, 26});
  // A third peer has requested less than the others hold. It gets the bytes that are released next.
  CHECK(peers.Ask(3, 31, 30) == Answer::kWaiting);
  CHECK(peers.core.share() == 33);
  for (const std::uint64_t peer : {1, 2, 1}) peers.core.ReleaseLarge(peer, 10);
  CHECK(peers.Admitted() == Requests{31});
}

TEST_CASE("a request above its peer's share has its turn when the peer holds nothing") {
  Peers peers({.budget_bytes_max = 100});
  CHECK(peers.Ask(1, 1, 90) == Answer::kGranted);
  CHECK(peers.Ask(2, 2, 90) == Answer::kWaiting);
  CHECK(peers.Ask(1, 3, 90) == Answer::kWaiting);
  // The free bytes are kept for the second peer, whose turn is next.
  CHECK(peers.Ask(3, 4, 5) == Answer::kWaiting);
  peers.core.ReleaseLarge(1, 90);
  CHECK(peers.Admitted() == Requests{2});
  peers.core.ReleaseLarge(2, 90);
  CHECK(peers.Admitted() == Requests{3, 4});
}

TEST_CASE("a peer with many streams has one share") {
  CreditCore core(
      {.budget_bytes_max = 100, .small_reserve_bytes_max = 100, .peer_small_bytes_max = 10});
  const std::uint64_t thief = core.Join("thief"), other = core.Join("other");
  for (std::uint64_t stream = 1; stream < 100; ++stream) CHECK(core.Join("thief") == thief);
  for (std::uint64_t stream = 0; stream < 100; ++stream) (void)core.AskLarge(thief, stream, 1, 10);
  CHECK(core.used() == 100);
  CHECK(core.AskLarge(other, 500, 1, 10) == Answer::kWaiting);
  CHECK(core.AskLarge(other, 500, 2, 10) == Answer::kWaiting);
  core.ReleaseLarge(thief, 20);
  const auto admitted = core.TakeAdmitted();
  REQUIRE(admitted.size() == 2);
  for (const auto& a : admitted) CHECK(a.peer == other);
  CHECK(core.TakeSmall(thief, 10));
  CHECK_FALSE(core.TakeSmall(thief, 1));
  CHECK(core.TakeSmall(other, 10));
  // A peer that has left and holds no bytes is forgotten after a while.
  for (std::uint64_t stream = 0; stream < 100; ++stream) core.Leave(thief, stream);
  CHECK(core.peers() == 2);
  core.ReleaseSmall(thief, 10);
  core.ReleaseLarge(thief, 80);
  core.Advance(9s);
  CHECK(core.peers() == 2);
  core.Advance(10s);
  CHECK(core.peers() == 1);
  CHECK(core.Join("thief") != thief);
}

TEST_CASE(
    "a peer gets at most half of the budget if another peer was active lately, and all of it "
    "otherwise") {
  Peers peers({.budget_bytes_max = 100});
  peers.core.Advance(1s);
  CHECK(peers.Ask(2, 1, 10) == Answer::kGranted);
  peers.core.ReleaseLarge(2, 10);  // Peer 2 now neither holds nor wants anything.
  for (std::uint64_t i = 11; i <= 15; ++i) CHECK(peers.Ask(1, i, 10) == Answer::kGranted);
  for (std::uint64_t i = 16; i <= 20; ++i) CHECK(peers.Ask(1, i, 10) == Answer::kWaiting);
  CHECK(peers.Ask(2, 2, 50) == Answer::kGranted);
  peers.core.ReleaseLarge(2, 50);
  peers.core.Advance(10s);
  CHECK(peers.Admitted().empty());
  peers.core.Advance(11s);
  CHECK(peers.Admitted() == Requests{16, 17, 18, 19, 20});
}

TEST_CASE(
    "a peer that leaves grants unused gets less each time, and its full share again after it uses "
    "one") {
  Peers peers({.budget_bytes_max = 1000});
  CreditCore& core = peers.core;
  core.Advance(1s);
  CHECK(peers.Ask(2, 1, 10) == Answer::kGranted);
  CHECK(peers.Ask(1, 2, 900) == Answer::kGranted);
  core.LeftUnused(1);
  core.LeftUnused(1);  // Both grants were left unused in the same pause.
  core.ReleaseLarge(1, 900);
  CHECK(peers.Ask(1, 3, 251) == Answer::kWaiting);
  CHECK(peers.Ask(2, 4, 800) == Answer::kGranted);  // It fits without a release by another peer.
  core.ReleaseLarge(2, 800);
  core.Withdraw(1, 1, 3);
  CHECK(peers.Ask(1, 5, 250) == Answer::kGranted);
  core.Advance(2s);
  core.LeftUnused(1);
  core.ReleaseLarge(1, 250);
  CHECK(peers.Ask(1, 6, 126) == Answer::kWaiting);
  CHECK(peers.Admitted().empty());
  SECTION("only the use of a large enough grant raises the limit") {
    core.Used(1, 1);
    CHECK(peers.Admitted().empty());
    core.Withdraw(1, 1, 6);
    CHECK(peers.Ask(1, 7, 125) == Answer::kGranted);
    core.Used(1, 125);
    CHECK(peers.Ask(1, 8, 375) == Answer::kGranted);
  }
  SECTION("time raises the limit, so that no peer starves") {
    core.Advance(5s);
    CHECK(peers.Admitted().empty());
    core.Advance(6s);
    CHECK(peers.Admitted() == Requests{6});
  }
  SECTION("the absence of other peers lifts the limit") {
    core.ReleaseLarge(2, 10);
    core.Withdraw(1, 1, 6);
    core.Advance(11s);
    core.LeftUnused(1);
    core.Advance(12s);
    CHECK(peers.Ask(1, 9, 1000) == Answer::kGranted);
  }
}

TEST_CASE("a peer keeps its history of unused grants when it opens another stream") {
  CreditCore core({.budget_bytes_max = 1000});
  core.Advance(1s);
  const std::uint64_t other = core.Join("other"), thief = core.Join("thief");
  CHECK(core.AskLarge(other, 1, 1, 10) == Answer::kGranted);
  CHECK(core.AskLarge(thief, 2, 1, 900) == Answer::kGranted);
  core.LeftUnused(thief);
  core.Leave(thief, 2);
  core.ReleaseLarge(thief, 900);
  CHECK(core.Join("thief") == thief);
  CHECK(core.AskLarge(thief, 3, 1, 900) == Answer::kWaiting);
}

TEST_CASE("small requests have a reserve with a share for each peer") {
  Peers peers({.budget_bytes_max = 0, .small_reserve_bytes_max = 100, .peer_small_bytes_max = 60});
  CreditCore& core = peers.core;
  CHECK(core.TakeSmall(1, 60));
  CHECK_FALSE(core.TakeSmall(1, 1));
  CHECK(core.TakeSmall(2, 40));
  CHECK_FALSE(core.TakeSmall(3, 1));
  CHECK(core.TakeSmall(3, 0));
  core.ReleaseSmall(1, 60);
  CHECK(core.TakeSmall(3, 60));
  CHECK(core.small_used() == 100);
}

TEST_CASE(
    "a withdrawn request or an ended stream frees its place for the next, whether it waited or was "
    "admitted") {
  Peers peers({.budget_bytes_max = 100});
  CreditCore& core = peers.core;
  CHECK(peers.Ask(1, 1, 100) == Answer::kGranted);
  CHECK(peers.Ask(2, 2, 90) == Answer::kWaiting);
  CHECK(peers.Ask(3, 3, 25) == Answer::kWaiting);
  CHECK(core.AskLarge(3, 33, 4, 25) == Answer::kWaiting);  // The request comes on another stream.
  CHECK(peers.Ask(5, 6, 50) == Answer::kWaiting);
  core.Withdraw(2, 2, 2);
  core.ReleaseLarge(1, 100);
  CHECK(core.used() == 100);
  CHECK(peers.Ask(4, 5, 20) == Answer::kWaiting);
  core.Leave(3, 3);  // The request was admitted, but the stream ends before it uses the bytes.
  CHECK(peers.Admitted() == Requests{6, 4, 5});
  CHECK(core.used() == 95);
  core.Withdraw(9, 9, 9);  // An unknown request changes nothing.
  CHECK(core.used() == 95);
}

TEST_CASE(
    "after random operations the credit equals the held sum, never exceeds the budget, and is not "
    "kept from all waiters") {
  const unsigned seed = 3;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  Peers peers({.budget_bytes_max = 1000, .waiting_max = 40});
  CreditCore& core = peers.core;
  struct Held {
    std::uint64_t peer = 0, bytes = 0;
  };
  std::map<std::uint64_t, Held> held, waiting;
  for (std::uint64_t id = 1; id < 20000; ++id) {
    const std::uint64_t peer = 1 + id % 5;
    switch (random() % 3) {
      case 0: {
        const std::uint64_t bytes = random() % 1200;
        const auto answer = peers.Ask(peer, id, bytes);
        if (answer == Answer::kGranted) held[id] = {peer, bytes};
        if (answer == Answer::kWaiting) waiting[id] = {peer, bytes};
        REQUIRE((answer == Answer::kOverBudget) == (bytes > 1000));
        break;
      }
      case 1:
        if (!held.empty()) {
          core.ReleaseLarge(held.begin()->second.peer, held.begin()->second.bytes);
          held.erase(held.begin());
        }
        break;
      case 2:
        if (!waiting.empty()) {
          const auto it =
              std::next(waiting.begin(), static_cast<std::ptrdiff_t>(random() % waiting.size()));
          core.Withdraw(it->second.peer, it->second.peer, it->first);
          waiting.erase(it);
        }
        break;
    }
    for (const auto& a : core.TakeAdmitted()) {
      for (const auto& [earlier, w] : waiting) {
        if (earlier >= a.request) break;
        REQUIRE(w.peer != a.peer);  // The requests of one peer are served in their order.
      }
      REQUIRE(waiting.erase(a.request) == 1);
      held[a.request] = {a.peer, a.bytes};
    }
    std::uint64_t sum = 0;
    std::map<std::uint64_t, std::uint64_t> wanted;
    for (const auto& [_, h] : held) sum += h.bytes;
    // Only the oldest waiting request of each peer counts.
    for (const auto& [_, w] : waiting) wanted.try_emplace(w.peer, w.bytes);
    REQUIRE(core.used() == sum);
    REQUIRE(core.used() <= 1000);
    REQUIRE(core.waiting() == waiting.size());
    // No request may wait without a reason. Either the request that is next does not fit, or each
    // waiting peer holds bytes and would have more than half of the budget.
    std::map<std::uint64_t, std::uint64_t> has;
    for (const auto& [_, h] : held) has[h.peer] += h.bytes;
    bool one_blocks = false, all_beyond = true;
    for (const auto& [p, bytes] : wanted) {
      one_blocks = one_blocks || sum + bytes > 1000;
      all_beyond = all_beyond && has[p] > 0 && has[p] + bytes > 500;
    }
    REQUIRE((one_blocks || all_beyond));
  }
}

TEST_CASE(
    "a token releases its credit once, at its end or when it shrinks, and wakes the budget if a "
    "peer waits") {
  int woken = 0;
  auto budget = std::make_shared<Budget>(
      CreditCore::Options{
          .budget_bytes_max = 100, .small_reserve_bytes_max = 10, .peer_small_bytes_max = 10},
      [&] { ++woken; });
  REQUIRE(budget->Join("peer") == 1);
  REQUIRE(budget->AskLarge(1, 1, 1, 100) == Answer::kGranted);
  auto token = budget->MakeToken(1, 100, false);
  CHECK(budget->AskLarge(1, 1, 2, 30) == Answer::kWaiting);
  token->Shrink(80);
  CHECK(woken == 0);
  token->Shrink(50);
  CHECK(woken == 1);
  CHECK(RequestsOf(budget->TakeAdmitted()) == std::vector<std::uint64_t>{2});
  token.reset();
  CHECK(budget->levels().used == 30);
  REQUIRE(budget->TakeSmall(1, 10));
  auto small = budget->MakeToken(1, 10, true);
  std::weak_ptr<Budget> alive = budget;
  budget.reset();
  CHECK_FALSE(alive.expired());  // The last token keeps the budget alive.
  small.reset();
  CHECK(alive.expired());
}

// ---------------------------------------------------------------- outbox, reassembly

TEST_CASE("at each message boundary the frame with the smallest remainder continues") {
  Outbox outbox(100);
  outbox.AddFrame(MessageKind::kRequest, 1, 0, Patterned(1000, 1));
  CHECK(outbox.Next()->header.request_id == 1);
  outbox.AddFrame(MessageKind::kRequest, 2, 0, Patterned(250, 2));
  outbox.AddFrame(MessageKind::kRequest, 3, 0, Patterned(250, 3));
  outbox.AddControl({.kind = MessageKind::kPing});
  CHECK(outbox.Next()->header.kind == MessageKind::kPing);
  for (const std::uint64_t want : {2, 2, 2, 3, 3, 3, 1})
    CHECK(outbox.Next()->header.request_id == want);
  // An empty frame is one message without a payload.
  outbox.AddFrame(MessageKind::kRequest, 4, 0, {});
  const auto empty = outbox.Next();
  CHECK(empty->header.request_id == 4);
  CHECK(empty->last);
  CHECK(outbox.Drop(1));
  CHECK_FALSE(outbox.Drop(1));
  CHECK_FALSE(outbox.Next());
}

TEST_CASE("interleaved pieces of many frames are assembled with one copy each") {
  std::mt19937_64 random(5);
  Outbox outbox(777);
  std::map<std::uint64_t, std::size_t> sizes;
  for (std::uint64_t id = 1; id <= 40; ++id) {
    sizes[id] = random() % 20000;
    outbox.AddFrame(MessageKind::kRequest, id, 0, Patterned(sizes[id], static_cast<unsigned>(id)));
  }
  std::map<std::uint64_t, Reassembly> frames;
  std::size_t complete = 0;
  while (auto message = outbox.Next()) {
    if (random() % 5 == 0 &&
        sizes.size() < 60) {  // A smaller frame is added while others are in progress.
      const std::uint64_t id = 100 + sizes.size();
      sizes[id] = random() % 500;
      outbox.AddFrame(MessageKind::kRequest, id, 0,
                      Patterned(sizes[id], static_cast<unsigned>(id)));
    }
    // The bytes arrive as from a network, in slices of any length.
    std::string bytes;
    for (const auto& piece : message->pieces)
      bytes.append(reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size());
    std::vector<std::span<const std::byte>> slices;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t n = std::min<std::size_t>(1 + random() % 100, bytes.size() - at);
      slices.push_back(std::as_bytes(std::span(bytes)).subspan(at, n));
      at += n;
    }
    MessageReader reader(slices);
    const auto header = reader.Next();
    REQUIRE(header.ok());
    REQUIRE(reader.done());
    auto& frame = frames.try_emplace(header->request_id, 20000u).first->second;
    REQUIRE(frame.Add(*header, reader.payload()).ok());
    REQUIRE(frame.complete() == message->last);
    if (frame.complete()) {
      ++complete;
      REQUIRE(IsPatterned(View(frame.Take()), sizes[header->request_id],
                          static_cast<unsigned>(header->request_id)));
    }
  }
  CHECK(complete == sizes.size());
}

TEST_CASE(
    "a copy that bypasses the caches equals its source at any alignment and length, and writes "
    "nothing beside it") {
  std::mt19937_64 random(11);
  std::vector<std::byte> from(40000), to(from.size() + 256);
  for (auto& byte : from) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 300; ++round) {
    const std::size_t begin = random() % 64, room = random() % 128,
                      bytes = random() % (from.size() - begin);
    std::vector<std::span<const std::byte>> slices;
    for (std::size_t at = 0; at < bytes;) {
      const std::size_t n =
          std::min<std::size_t>(random() % (round % 2 == 0 ? 300 : 9000), bytes - at);
      slices.push_back(std::span(from).subspan(begin + at, n));
      at += n;
    }
    if (round == 0) slices.push_back({});
    std::vector<std::byte> want(to.size(), std::byte{7});
    std::fill(to.begin(), to.end(), std::byte{7});
    std::copy_n(from.data() + begin, bytes, want.data() + room);
    StreamPayload(slices, to.data() + room);
    REQUIRE(to == want);
  }
}

TEST_CASE("a frame large enough to bypass the caches is assembled like any other") {
  std::mt19937_64 random(12);
  for (const std::uint64_t bytes :
       {kStreamedBytesMin - 1, kStreamedBytesMin, kStreamedBytesMin + 4093}) {
    Outbox outbox(512u << 10);
    outbox.AddFrame(MessageKind::kRequest, 1, 0, Patterned(bytes, 9));
    Reassembly frame(bytes);
    while (auto message = outbox.Next()) {
      std::string text;
      for (const auto& piece : message->pieces)
        text.append(reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size());
      std::vector<std::span<const std::byte>> slices;
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t n = std::min<std::size_t>(1 + random() % 16384, text.size() - at);
        slices.push_back(std::as_bytes(std::span(text)).subspan(at, n));
        at += n;
      }
      MessageReader reader(slices);
      const auto header = reader.Next();
      REQUIRE(header.ok());
      REQUIRE(frame.Add(*header, reader.payload()).ok());
    }
    REQUIRE(frame.complete());
    REQUIRE(IsPatterned(View(frame.Take()), bytes, 9));
  }
}

// ---------------------------------------------------------------- memory for frames

// A former bug: two frames of 64 MiB take 72 MiB of memory each, with their headers, and only half
// of the budget was kept. If two frames were released at once, the memory of one was unmapped, and
// the next push had to begin with 72 MiB of zeroed pages.
TEST_CASE(
    "a pool keeps all returned buffers that fit the budget, even if each is a quarter of it") {
  constexpr std::size_t kBudget = 256u << 20, kFrame = (64u << 20) + 128;
  const auto pool = std::make_shared<BufferPool>(kBudget);
  std::set<const std::byte*> places;
  for (int round = 0; round < 10; ++round) {
    std::vector<tensor::AlignedBuffer> out;
    for (int i = 0; i < 3; ++i) {
      out.push_back(pool->Take(kFrame));
      if (round == 0) places.insert(out.back().data());
      REQUIRE(places.contains(out.back().data()));
    }
    REQUIRE(pool->out_bytes() == 3 * BufferPool::Capacity(kFrame));
  }
  CHECK(pool->free_bytes() == 3 * BufferPool::Capacity(kFrame));
}

TEST_CASE(
    "after random operations a pool keeps at most half of its bytes beside those in use, and more "
    "only within the budget") {
  constexpr std::uint64_t kBytesMax = 64u << 20;
  for (std::uint32_t seed = 1; seed <= 5; ++seed) {
    INFO("seed=" << seed);
    std::mt19937 random(seed);
    const auto pool = std::make_shared<BufferPool>(kBytesMax);
    std::vector<tensor::AlignedBuffer> out;
    std::uint64_t free_most = 0;
    for (int i = 0; i < 3000; ++i) {
      if (out.empty() || random() % 100 < (i / 300 % 2 == 0 ? 60u : 40u)) {
        if (out.size() < 60) out.push_back(pool->Take(1 + random() % (4u << 20)));
      } else {
        std::swap(out[random() % out.size()], out.back());
        out.pop_back();
      }
      std::uint64_t bytes = 0;
      for (const auto& buffer : out)
        bytes +=
            buffer.size() < BufferPool::kPooledBytesMin ? 0 : BufferPool::Capacity(buffer.size());
      REQUIRE(pool->out_bytes() == bytes);
      REQUIRE(
          (pool->free_bytes() <= kBytesMax / 2 || pool->free_bytes() + bytes <= kBytesMax / 8 * 9));
      free_most = std::max(free_most, pool->free_bytes());
    }
    CHECK(free_most > kBytesMax / 4);
    out.clear();
    CHECK(pool->out_bytes() == 0);
  }
}

TEST_CASE(
    "a piece that leaves a gap, repeats, enlarges its frame or exceeds the limit is refused") {
  const std::string payload(10, 'x');
  const std::vector<std::span<const std::byte>> message = {std::as_bytes(std::span(payload))};
  const auto piece = [&](Reassembly& frame, std::uint64_t frame_bytes, std::uint64_t offset,
                         std::uint64_t bytes) {
    return frame.Add({.kind = MessageKind::kRequest,
                      .request_id = 1,
                      .frame_bytes = frame_bytes,
                      .offset = offset,
                      .bytes = bytes},
                     message);
  };
  Reassembly frame(30);
  CHECK_FALSE(piece(frame, 31, 0, 10).ok());
  CHECK_FALSE(piece(frame, 30, 10, 10).ok());
  CHECK_FALSE(piece(frame, 30, 0, 0).ok());
  CHECK(piece(frame, 30, 0, 10).ok());
  CHECK_FALSE(piece(frame, 30, 0, 10).ok());
  CHECK_FALSE(piece(frame, 30, 20, 10).ok());
  CHECK_FALSE(piece(frame, 29, 10, 10).ok());
  CHECK(piece(frame, 30, 10, 10).ok());
  CHECK(piece(frame, 30, 20, 10).ok());
  CHECK(frame.complete());
}

TEST_CASE("messages of one write are read one by one, whatever slices they arrive in") {
  Outbox outbox(5000);
  for (std::uint64_t id = 1; id <= 20; ++id)
    outbox.AddFrame(MessageKind::kRequest, id, 0, Patterned(id * 100, static_cast<unsigned>(id)));
  outbox.AddControl({.kind = MessageKind::kPing});
  std::string bytes;
  while (auto message = outbox.Next()) {
    for (const auto& piece : message->pieces)
      bytes.append(reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size());
  }
  std::mt19937_64 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::span<const std::byte>> slices;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t n = std::min<std::size_t>(random() % 3000, bytes.size() - at);
      slices.push_back(std::as_bytes(std::span(bytes)).subspan(at, n));
      at += n;
    }
    MessageReader reader(slices);
    CHECK(reader.Next()->kind == MessageKind::kPing);
    for (std::uint64_t id = 1; id <= 20; ++id) {
      const auto header = reader.Next();
      REQUIRE(header.ok());
      REQUIRE(header->request_id == id);
      Reassembly frame(5000);
      REQUIRE(frame.Add(*header, reader.payload()).ok());
      REQUIRE(IsPatterned(View(frame.Take()), id * 100, static_cast<unsigned>(id)));
    }
    CHECK(reader.done());
    CHECK_FALSE(reader.Next().ok());
  }
}

// ---------------------------------------------------------------- watchdog, status

TEST_CASE(
    "the watchdog pings a silent peer, abandons it, and excuses it when our own process was "
    "stopped") {
  using Step = Liveness::Step;
  Liveness liveness(3s);
  liveness.OnWork(10s);
  CHECK(liveness.Tick(10900ms) == Step::kNothing);
  CHECK(liveness.Tick(11s) == Step::kSendPing);
  CHECK(liveness.Due() == 13s);
  SECTION("an answer restarts the time") {
    liveness.OnReceived(12s);
    CHECK(liveness.Tick(13s) == Step::kSendPing);
  }
  SECTION("silence ends the peer") { CHECK(liveness.Tick(13s) == Step::kDead); }
  SECTION("a late tick means that our own process was stopped") {
    CHECK(liveness.Tick(20s) == Step::kNothing);
    CHECK(liveness.Tick(21s) == Step::kSendPing);
    CHECK(liveness.Tick(23s) == Step::kDead);
  }
}

TEST_CASE("a status keeps code, message, blame and origin on the wire, within 4 KiB") {
  const auto status =
      WithOrigin(UserError(absl::InvalidArgumentError("bad record: line=7")), "worker/1#3");
  const auto read = DecodeStatus(EncodeStatus(status));
  CHECK(read.code() == absl::StatusCode::kInvalidArgument);
  CHECK(read.message() == "bad record: line=7");
  CHECK(BlameOf(read) == Blame::kUser);
  CHECK(OriginOf(read) == "worker/1#3");
  const auto huge = EncodeStatus(
      WithOrigin(absl::InternalError(std::string(100000, '\xff')), std::string(100000, 'x')));
  CHECK(huge.size() <= wire::kErrorBytesMax);
  CHECK(DecodeStatus(huge).code() == absl::StatusCode::kInternal);
  CHECK(DecodeStatus("garbage").code() == absl::StatusCode::kInternal);
  CHECK(DecodeStatus("").code() == absl::StatusCode::kInternal);
  CHECK(DecodeStatus(EncodeStatus(absl::OkStatus())).code() == absl::StatusCode::kInternal);
}

// ---------------------------------------------------------------- the two sessions

// A client session and a server session. The test passes the messages between them.
struct Pair {
  explicit Pair(ServerSession::Options server_options = {},
                CreditCore::Options credit = {.budget_bytes_max = 1u << 20,
                                              .small_reserve_bytes_max = 1u << 20,
                                              .peer_small_bytes_max = 200000})
      : budget(std::make_shared<Budget>(credit, [] {})),
        server(std::in_place, server_options, 1, "client", budget) {}

  static std::string Flat(const Outbox::Message& message) {
    std::string bytes;
    for (const auto& piece : message.pieces)
      bytes.append(reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size());
    return bytes;
  }
  // Passes at most one message in each direction. Returns false if there was none.
  bool Step() {
    bool moved = false;
    if (auto up = client.NextMessage(); up && !to_server_blocked) {
      const std::string bytes = Flat(*up);
      client.OnSent(now);
      const std::vector<std::span<const std::byte>> view = {std::as_bytes(std::span(bytes))};
      const auto status = server->OnMessage(view, now);
      INFO(status.ToString());
      REQUIRE(status.ok());
      moved = true;
    }
    if (auto down = server->NextMessage()) {
      const std::string bytes = Flat(*down);
      server->OnSent(now);
      const std::vector<std::span<const std::byte>> view = {std::as_bytes(std::span(bytes))};
      const auto status = client.OnMessage(view, now);
      INFO(status.ToString());
      REQUIRE(status.ok());
      moved = true;
    }
    for (const auto& a : budget->TakeAdmitted()) {
      server->OnAdmitted(a.request, a.bytes, now);
      moved = true;
    }
    for (auto& ready : server->TakeReady()) arrived.push_back(std::move(ready));
    for (auto& finished : client.TakeFinished()) finished.done(std::move(finished.result));
    return moved;
  }
  void Settle() {
    while (Step()) {
    }
  }
  DataDone Keep(std::vector<absl::Status>* out) {
    return [out](DataResult result) { out->push_back(result.status()); };
  }

  MonoTime now{1s};
  std::shared_ptr<Budget> budget;
  ClientSession client{{.message_bytes_max = 256u << 10}};
  std::optional<ServerSession> server;
  std::deque<ServerSession::Ready> arrived;
  bool to_server_blocked = false;
};

TEST_CASE(
    "calls wait until the link is up for the first time, and fail at once after the link is lost") {
  Pair pair;
  std::vector<absl::Status> done;
  pair.client.Call(1, TextFrame("early"), {}, pair.Keep(&done), pair.now);
  CHECK(pair.client.TakeFinished().empty());
  pair.Settle();
  CHECK(pair.arrived.size() == 1);
  pair.client.OnLinkDown(absl::UnavailableError("cut"), pair.now);
  pair.client.Call(2, TextFrame("late"), {}, pair.Keep(&done), pair.now);
  for (auto& f : pair.client.TakeFinished()) f.done(std::move(f.result));
  REQUIRE(done.size() == 2);
  CHECK(done[0].code() == absl::StatusCode::kUnavailable);
  CHECK(done[1].message() == "cut");
}

TEST_CASE("a client that cannot send answers many PINGs with one PONG, also after a lost link") {
  Pair pair;
  const auto ping = [&] {
    const auto header = wire::EncodeStreamHeader({.kind = MessageKind::kPing});
    const std::span<const std::byte> message(header);
    REQUIRE(pair.client.OnMessage({&message, 1}, pair.now).ok());
  };
  const auto pongs = [&] {
    int count = 0;
    while (const auto message = pair.client.NextMessage())
      count += message->header.kind == MessageKind::kPong;
    return count;
  };
  pair.Settle();
  for (int i = 0; i < 1000; ++i) ping();
  CHECK(pongs() == 1);
  ping();
  pair.client.OnLinkDown(absl::UnavailableError("cut"), pair.now);
  CHECK(pongs() == 0);
  const auto hello = wire::EncodeStreamHeader(
      {.kind = MessageKind::kHello, .frame_bytes = 1u << 20, .response_bytes_max = 1u << 20});
  const std::span<const std::byte> message(hello);
  REQUIRE(pair.client.OnMessage({&message, 1}, pair.now).ok());
  ping();
  CHECK(pongs() == 1);
}

TEST_CASE(
    "a call ends when none of its bytes moved for its deadline, and not while it is sent or "
    "answered") {
  Pair pair;
  std::vector<absl::Status> done;
  const DataOptions options{.response_bytes_max = 400000, .deadline = 100ms};
  pair.Settle();
  // Each message takes most of the deadline, and each direction needs several messages.
  const auto step = [&] {
    pair.now += 80ms;
    REQUIRE(pair.client.Tick(pair.now).ok());
    return pair.Step();
  };
  pair.client.Call(1, Patterned(600000, 1), options, pair.Keep(&done), pair.now);
  SECTION("a call that is sent and answered slowly succeeds") {
    int steps = 0;
    for (; pair.arrived.empty(); ++steps) REQUIRE(step());
    pair.server->Answer(pair.arrived.front().request, Patterned(400000, 2), pair.now);
    pair.arrived.clear();
    for (; done.empty(); ++steps) REQUIRE(step());
    CHECK(steps > 4);
    CHECK(done[0].ok());
  }
  SECTION("a call in the handler ends after the deadline, counted from its last part") {
    while (pair.arrived.empty()) REQUIRE(step());
    pair.now += 90ms;
    REQUIRE(pair.client.Tick(pair.now).ok());
    pair.Settle();
    CHECK(done.empty());
    pair.now += 20ms;
    REQUIRE(pair.client.Tick(pair.now).ok());
    pair.Settle();
    REQUIRE(done.size() == 1);
    CHECK(done[0].code() == absl::StatusCode::kDeadlineExceeded);
  }
}

TEST_CASE("a call waits for its grant for six deadlines while the server responds") {
  Pair pair;
  std::vector<absl::Status> done;
  pair.Settle();
  pair.client.Call(1, Patterned(900000, 1), {.response_bytes_max = 100000, .deadline = 10000ms},
                   pair.Keep(&done), pair.now);
  pair.Settle();
  REQUIRE(pair.arrived.size() == 1);  // this request holds the whole budget
  pair.client.Call(2, Patterned(900000, 1), {.response_bytes_max = 100000, .deadline = 100ms},
                   pair.Keep(&done), pair.now);
  pair.Settle();
  const auto wait = [&](MonoTime time) {
    pair.now += time;
    REQUIRE(pair.client.Tick(pair.now).ok());
    pair.Settle();
  };
  wait(590ms);
  CHECK(done.empty());
  SECTION("no memory becomes free") {
    wait(20ms);
    REQUIRE(done.size() == 1);
    CHECK(done[0].code() == absl::StatusCode::kDeadlineExceeded);
  }
  SECTION("the grant restarts the deadline") {
    pair.server->Answer(pair.arrived.front().request, {}, pair.now);
    pair.arrived.clear();
    pair.Settle();
    REQUIRE(pair.arrived.size() == 1);
    wait(90ms);
    pair.server->Answer(pair.arrived.front().request, {}, pair.now);
    pair.arrived.clear();
    pair.Settle();
    REQUIRE(done.size() == 2);
    CHECK(done[0].ok());
    CHECK(done[1].ok());
  }
}

TEST_CASE("a call without a connection at its deadline fails with that reason") {
  Pair pair;
  std::vector<absl::Status> done;
  pair.client.Call(1, TextFrame("early"), {.deadline = 100ms}, pair.Keep(&done), pair.now);
  pair.now += 110ms;
  REQUIRE(pair.client.Tick(pair.now).ok());
  for (auto& f : pair.client.TakeFinished()) f.done(std::move(f.result));
  REQUIRE(done.size() == 1);
  CHECK(done[0].code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("a cancelled request is removed at the server in whatever state it is") {
  Pair pair;
  std::vector<absl::Status> done;
  const DataOptions quick{.response_bytes_max = 100000, .deadline = 100ms};
  pair.Settle();
  SECTION("the request waits for credit") {
    pair.client.Call(1, Patterned(900000, 1), {}, pair.Keep(&done), pair.now);
    pair.client.Call(2, Patterned(900000, 1), quick, pair.Keep(&done), pair.now);
    pair.Settle();
    CHECK(pair.budget->levels().waiting_bytes == 1000000);
    pair.now += 500ms;  // it waits for credit for longer than its deadline
  }
  SECTION("the request is granted and nothing is sent") {
    pair.client.Announce(2, 900000, quick, pair.now);
    pair.Settle();
    CHECK(pair.budget->levels().used == 1000000);
  }
  SECTION("a part of the pieces is sent") {
    pair.client.Call(2, Patterned(900000, 1), quick, pair.Keep(&done), pair.now);
    for (int i = 0; i < 3; ++i) pair.Step();
    CHECK(pair.arrived.empty());
  }
  SECTION("the request is in the handler, whose late answer is dropped") {
    pair.client.Call(2, Patterned(900000, 1), quick, pair.Keep(&done), pair.now);
    pair.Settle();
    REQUIRE(pair.arrived.size() == 1);
  }
  pair.now += 200ms;
  CHECK(pair.client.Tick(pair.now).ok());
  pair.Settle();
  for (auto& ready : pair.arrived) pair.server->Answer(ready.request, {}, pair.now);
  pair.arrived.clear();
  pair.Settle();
  CHECK(pair.budget->levels().used == 0);
  CHECK(pair.budget->levels().waiting_bytes == 0);
  CHECK(pair.server->requests() == 0);
  CHECK(pair.client.outstanding() == 0);
}

TEST_CASE(
    "pieces that were sent before a withdrawal arrived are dropped, and the stream continues") {
  Pair pair({.grant_unused_max = 1s});
  std::vector<absl::Status> done;
  pair.Settle();
  const DataOptions options{};
  pair.client.Announce(1, 600000, options, pair.now);
  pair.Settle();
  CHECK(pair.budget->levels().used == 600000);
  pair.now += 1100ms;
  CHECK(pair.server->Tick(pair.now).ok());
  CHECK(pair.budget->levels().used == 0);
  // The ERROR message of the first call is still in flight.
  pair.client.Call(1, Patterned(600000, 1), options, pair.Keep(&done), pair.now);
  pair.Settle();
  REQUIRE(done.size() == 1);
  CHECK(done[0].code() == absl::StatusCode::kAborted);
  CHECK(IsRetryable(done[0]));
  pair.client.Call(2, Patterned(600000, 1), options, pair.Keep(&done), pair.now);
  pair.Settle();
  CHECK(pair.arrived.size() == 1);
}

// Two clients of one server. Only the server's sessions exist; the test acts as the clients.
struct Rivals {
  Rivals()
      : budget(std::make_shared<Budget>(CreditCore::Options{.budget_bytes_max = 1000000}, [] {})) {
    ServerSession::Options options{.progress_timeout = 1000s,
                                   .grant_unused_max = 30s,
                                   .grant_idle_max = 1s,
                                   .unused_in_a_row_max = 4};
    thief.emplace(options, 1, "thief", budget);
    other.emplace(options, 2, "other", budget);
  }
  void Say(ServerSession& session, wire::StreamHeader header, const std::string& payload = {}) {
    header.bytes = payload.size();
    const auto bytes = wire::EncodeStreamHeader(header);
    const std::vector<std::span<const std::byte>> view = {std::span<const std::byte>(bytes),
                                                          std::as_bytes(std::span(payload))};
    REQUIRE(session.OnMessage(view, now).ok());
    Admit();
  }
  void Announce(ServerSession& session, std::uint64_t id, std::uint64_t bytes) {
    Say(session, {.kind = MessageKind::kAnnounce, .request_id = id, .frame_bytes = bytes});
  }
  void Admit() {
    for (const auto& a : budget->TakeAdmitted())
      (a.stream == 1 ? thief : other)->OnAdmitted(a.request, a.bytes, now);
  }
  // Returns the messages that wait to be sent to the client of `session`, as (kind, request).
  std::vector<std::pair<MessageKind, std::uint64_t>> Heard(ServerSession& session) {
    std::vector<std::pair<MessageKind, std::uint64_t>> heard;
    while (const auto message = session.NextMessage())
      heard.emplace_back(message->header.kind, message->header.request_id);
    session.OnSent(now);
    return heard;
  }
  // Advances the clock by a second, in which the other client requests more credit. Then the
  // thief's session checks how many bytes the thief holds.
  absl::Status Round() {
    now += 1s;
    Announce(*other, ++others, 100000);
    const absl::Status status = thief->Tick(now);
    Admit();
    return status;
  }
  // The other client sends the bytes that it was granted, and gets an answer. Returns false if
  // nothing was granted.
  bool Work(std::uint64_t id, std::uint64_t bytes) {
    const auto heard = Heard(*other);
    if (std::find(heard.begin(), heard.end(), std::pair(MessageKind::kGrant, id)) == heard.end())
      return false;
    Say(*other, {.kind = MessageKind::kRequest, .request_id = id, .frame_bytes = bytes},
        std::string(bytes, 'x'));
    {
      const auto ready = other->TakeReady();
      REQUIRE(ready.size() == 1);
      other->Answer(id, {}, now);
      Heard(*other);
    }
    Admit();
    return true;
  }
  MonoTime now{1s};
  std::shared_ptr<Budget> budget;
  std::optional<ServerSession> thief, other;
  std::uint64_t others = 0;
};

TEST_CASE(
    "unused credit above a peer's share is withdrawn while others wait, the newest first and only "
    "as much as they need") {
  Rivals rivals;
  for (std::uint64_t id = 1; id <= 10; ++id) rivals.Announce(*rivals.thief, id, 100000);
  rivals.Heard(*rivals.thief);
  rivals.now += 10s;
  CHECK(rivals.thief->Tick(rivals.now).ok());
  CHECK(rivals.budget->levels().used == 1000000);  // the other client wants no bytes
  rivals.Announce(*rivals.other, 1, 300000);
  rivals.Announce(*rivals.other, 2, 100000);
  rivals.Heard(*rivals.other);
  rivals.now += 1s;
  CHECK(rivals.thief->Tick(rivals.now).ok());
  rivals.Admit();
  const std::vector<std::pair<MessageKind, std::uint64_t>> ended = {{MessageKind::kError, 10},
                                                                    {MessageKind::kError, 9},
                                                                    {MessageKind::kError, 8},
                                                                    {MessageKind::kError, 7}},
                                                           granted = {{MessageKind::kGrant, 1},
                                                                      {MessageKind::kGrant, 2}};
  CHECK(rivals.Heard(*rivals.thief) == ended);
  CHECK(rivals.Heard(*rivals.other) == granted);
  CHECK(rivals.budget->levels().used == 1000000);
  // A peer that sends nothing loses those grants for which others wait, and gets no new grants.
  rivals.Announce(*rivals.thief, 11, 100000);
  rivals.Announce(*rivals.other, 3, 200000);
  rivals.now += 5s;
  CHECK(rivals.thief->Tick(rivals.now).ok());
  rivals.Admit();
  CHECK(rivals.thief->TakeCounters().taken_back == 4 + 2);
  CHECK(rivals.budget->levels().used == 1000000);
  CHECK(rivals.budget->levels().waiting_bytes == 100000);
  // A grant for which no other peer waits is withdrawn after grant_unused_max.
  rivals.now += 30s;
  CHECK(rivals.thief->Tick(rivals.now).ok());
  CHECK(rivals.thief->TakeCounters().taken_back == 4);
}

TEST_CASE(
    "a stream that leaves grants unused repeatedly is ended by name, and the count restarts when "
    "it uses one") {
  Rivals rivals;
  for (std::uint64_t id = 1; id <= 100; ++id) rivals.Announce(*rivals.thief, id, 100000);
  for (int i = 0; i < 3; ++i) CHECK(rivals.Round().ok());
  SECTION("the stream continues to leave grants unused") {
    const absl::Status status = rivals.Round();
    CHECK(status.code() == absl::StatusCode::kResourceExhausted);
    CHECK(status.message() == "the peer has left too many grants unused in a row: grants=4");
  }
  SECTION("the stream returns its grants late") {
    rivals.now += 500ms;
    rivals.Announce(*rivals.other, 1000, 300000);
    rivals.Say(*rivals.thief, {.kind = MessageKind::kCancel, .request_id = 1});
    CHECK(rivals.thief->Tick(rivals.now).code() == absl::StatusCode::kResourceExhausted);
  }
  SECTION("the stream uses one grant") {
    rivals.Say(*rivals.thief,
               {.kind = MessageKind::kRequest, .request_id = 1, .frame_bytes = 100000},
               std::string(100000, 'x'));
    const auto ready = rivals.thief->TakeReady();
    REQUIRE(ready.size() == 1);
    for (int i = 0; i < 3; ++i) CHECK(rivals.Round().ok());
    CHECK(rivals.Round().code() == absl::StatusCode::kResourceExhausted);
  }
}

// Between two requests of a worker, no peer waits for the budget. Without this rule, an attacker
// with many announcements would get the whole budget at each such moment.
TEST_CASE(
    "a stream that uses none of its grants leaves half of the budget to active peers, even if they "
    "do not wait") {
  Rivals rivals;
  rivals.Announce(*rivals.other, 1, 300000);
  REQUIRE(rivals.Work(1, 300000));
  for (std::uint64_t id = 1; id <= 100; ++id) rivals.Announce(*rivals.thief, id, 100000);
  for (std::uint64_t id = 2; id <= 40; ++id) {
    rivals.now += 250ms;
    rivals.Announce(*rivals.other, id, 300000);
    REQUIRE(rivals.Work(id, 300000));
    CHECK(rivals.thief->Tick(rivals.now).ok());
    rivals.Admit();
    REQUIRE(rivals.budget->levels().used == 500000);
  }
}

TEST_CASE(
    "a stream that leaves grants of the whole budget unused delays active peers for a second at a "
    "time") {
  Rivals rivals;
  for (std::uint64_t id = 1; id <= 100; ++id) rivals.Announce(*rivals.thief, id, 1000000);
  std::uint64_t id = 0, worked = 0;
  int rounds = 0;
  bool waits = false;
  for (; rivals.thief->Tick(rivals.now).ok() && rounds < 300; ++rounds) {
    rivals.Admit();
    if (!waits) rivals.Announce(*rivals.other, ++id, 300000);
    waits = !rivals.Work(id, 300000);
    if (!waits) ++worked;
    rivals.now += 100ms;
  }
  CHECK(rounds > 100);
  CHECK(worked > static_cast<std::uint64_t>(rounds) / 2);
}

TEST_CASE(
    "a peer that left a grant unused and requests much is admitted after a while without another "
    "event") {
  Rivals rivals;
  rivals.Announce(*rivals.thief, 1, 900000);
  rivals.Announce(*rivals.other, 1, 100000);
  rivals.Announce(*rivals.other, 2, 100000);
  rivals.now += 1s;
  CHECK(rivals.thief->Tick(rivals.now).ok());
  rivals.Admit();
  CHECK(rivals.budget->levels().used == 200000);
  rivals.Announce(*rivals.thief, 2, 800000);
  CHECK(rivals.budget->levels().waiting_bytes == 800000);
  for (int i = 0; i < 10 && rivals.budget->levels().waiting_bytes > 0; ++i) {
    REQUIRE(rivals.thief->NextTick().has_value());
    rivals.now = std::max(rivals.now, *rivals.thief->NextTick());
    CHECK(rivals.thief->Tick(rivals.now).ok());
    rivals.Admit();
  }
  CHECK(rivals.budget->levels().used == 1000000);
  CHECK(rivals.now < 10s);
}

TEST_CASE(
    "a peer that ends its stream with unused grants while others wait keeps this record on its "
    "next stream") {
  Rivals rivals;
  rivals.Announce(*rivals.thief, 1, 1000000);
  rivals.Announce(*rivals.other, 1, 300000);
  rivals.thief.emplace(ServerSession::Options{}, 1, "thief", rivals.budget);
  rivals.Announce(*rivals.thief, 1, 600000);
  REQUIRE(rivals.Work(1, 300000));
  CHECK(rivals.budget->levels().used == 0);
  CHECK(rivals.budget->levels().waiting_bytes == 600000);
}

TEST_CASE(
    "a slow sender keeps its share while others wait, and the rest for as long as an unused grant "
    "may last") {
  Rivals rivals;
  const auto send = [&](int i) {
    rivals.Say(*rivals.thief,
               {.kind = MessageKind::kRequest,
                .request_id = 1,
                .frame_bytes = 300000,
                .offset = static_cast<std::uint64_t>(i)},
               "x");
    rivals.now += 500ms;
    CHECK(rivals.thief->Tick(rivals.now).ok());
    rivals.Admit();
  };
  rivals.Announce(*rivals.thief, 1, 300000);
  rivals.Announce(*rivals.thief, 2, 100000);
  SECTION("the grant is within the peer's share") {
    rivals.Announce(*rivals.other, 1, 700000);
    for (int i = 0; i < 58; ++i) send(i);
    // The unused grant is kept while the stream sends, because its request may have to wait until
    // the payload of the first request is sent.
    CHECK(rivals.budget->levels().used == 400000);
    rivals.now += 1s;
    CHECK(rivals.thief->Tick(rivals.now).ok());
    rivals.Admit();
    // The second grant is withdrawn once the stream no longer sends.
    CHECK(rivals.thief->TakeCounters().taken_back == 1);
    CHECK(rivals.budget->levels().used == 300000 + 700000);
  }
  SECTION("the grant is above the share") {
    rivals.Announce(*rivals.thief, 3, 500000);
    rivals.Announce(*rivals.other, 1, 400000);
    send(0);
    send(1);
    CHECK(rivals.budget->levels().used == 300000 + 100000 + 400000);
    rivals.Announce(*rivals.other, 2, 300000);
    for (int i = 2; i < 58; ++i) send(i);
    CHECK(rivals.thief->TakeCounters().taken_back == 1);
  }
  SECTION("a single request is above the share") {
    rivals.Say(*rivals.thief, {.kind = MessageKind::kCancel, .request_id = 2});
    rivals.Say(*rivals.thief, {.kind = MessageKind::kCancel, .request_id = 1});
    rivals.Announce(*rivals.thief, 4, 900000);
    rivals.Announce(*rivals.other, 1, 300000);
    for (int i = 0; i < 30; ++i) {
      CHECK(rivals.budget->levels().used == 900000);
      rivals.Say(*rivals.thief,
                 {.kind = MessageKind::kRequest,
                  .request_id = 4,
                  .frame_bytes = 900000,
                  .offset = static_cast<std::uint64_t>(i)},
                 "x");
      rivals.now += 1s;
      CHECK(rivals.thief->Tick(rivals.now).ok());
      rivals.Admit();
    }
    CHECK(rivals.budget->levels().used == 300000);
  }
}

TEST_CASE("a peer that pings but does not read what it is sent is abandoned") {
  Rivals rivals;
  rivals.Announce(*rivals.thief, 1, 100000);
  CHECK(rivals.thief->NextMessage().has_value());
  absl::Status status;
  for (int i = 0; i < 40 && status.ok(); ++i) {
    rivals.Say(*rivals.thief, {.kind = MessageKind::kPing});
    rivals.Say(*rivals.thief,
               {.kind = MessageKind::kRequest,
                .request_id = 1,
                .frame_bytes = 100000,
                .offset = static_cast<std::uint64_t>(i)},
               "x");
    rivals.now += 1s;
    status = rivals.thief->Tick(rivals.now);
  }
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK(status.message() == "peer reads none of the data sent to it");
}

TEST_CASE(
    "pings keep a call alive during a long wait in a handler, and a peer that does not read is "
    "abandoned") {
  Pair pair;
  std::vector<absl::Status> done;
  pair.Settle();
  pair.client.Call(1, TextFrame("at a gate"), {.deadline = 100000ms}, pair.Keep(&done), pair.now);
  pair.Settle();
  REQUIRE(pair.arrived.size() == 1);
  for (int i = 0; i < 40; ++i) {
    pair.now = *pair.client.NextTick();
    REQUIRE(pair.client.Tick(pair.now).ok());
    REQUIRE(pair.server->Tick(pair.now).ok());
    pair.Settle();
  }
  CHECK(pair.now > 40s);
  pair.to_server_blocked = true;
  absl::Status given_up;
  for (int i = 0; i < 5 && given_up.ok(); ++i) {
    pair.now = *pair.client.NextTick();
    given_up = pair.client.Tick(pair.now);
  }
  CHECK(given_up.code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("a ticket is valid for one call of at most the announced size") {
  Pair pair;
  std::vector<absl::Status> done;
  pair.Settle();
  pair.client.Announce(1, 100000, {}, pair.now);
  pair.client.Call(1, Patterned(100001, 1), {}, pair.Keep(&done), pair.now);
  pair.client.Call(1, Patterned(10, 1), {.response_bytes_max = 1}, pair.Keep(&done), pair.now);
  pair.client.Call(1, Patterned(100000, 1), {}, pair.Keep(&done), pair.now);
  pair.client.Call(1, Patterned(100000, 1), {}, pair.Keep(&done), pair.now);
  for (auto& f : pair.client.TakeFinished()) f.done(std::move(f.result));
  REQUIRE(done.size() == 3);
  for (const auto& status : done) CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  pair.Settle();
  CHECK(pair.arrived.size() == 1);
}

TEST_CASE("a client that floods a server without reading is ended, and its memory is bounded") {
  auto budget = std::make_shared<Budget>(CreditCore::Options{.budget_bytes_max = 1000}, [] {});
  ServerSession server({.requests_max = 10}, 1, "client", budget);
  absl::Status status;
  int sent = 0;
  for (; sent < 1000 && status.ok(); ++sent) {
    const auto bytes = wire::EncodeStreamHeader({.kind = MessageKind::kAnnounce,
                                                 .request_id = static_cast<std::uint64_t>(sent + 1),
                                                 .frame_bytes = 1u << 20});
    const std::vector<std::span<const std::byte>> view = {std::span<const std::byte>(bytes)};
    status = server.OnMessage(view, 1s);
  }
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(sent < 100);
}

TEST_CASE(
    "random messages never break a session: they are refused or understood, and the credit adds "
    "up") {
  std::mt19937_64 random(13);
  for (int round = 0; round < 300; ++round) {
    auto budget = std::make_shared<Budget>(CreditCore::Options{.budget_bytes_max = 1u << 20,
                                                               .small_reserve_bytes_max = 1u << 20,
                                                               .peer_small_bytes_max = 1u << 19},
                                           [] {});
    std::vector<ServerSession::Ready> ready;
    {
      ServerSession server({.requests_max = 50}, 7, "client", budget);
      MonoTime now{1s};
      for (int i = 0; i < 60; ++i) {
        wire::StreamHeader header{.kind = static_cast<MessageKind>(2 + random() % 10),
                                  .request_id = 1 + random() % 4};
        if (header.kind >= MessageKind::kPing) header.request_id = 0;
        if (header.kind == MessageKind::kAnnounce || header.kind == MessageKind::kRequest) {
          header.frame_bytes = random() % 3 == 0 ? 400 : 100000;
          header.response_bytes_max = random() % 2 * 100000;
        }
        std::string payload;
        if (header.kind == MessageKind::kRequest) {
          header.offset = random() % 3 == 0 ? 50000 : 0;
          payload.resize(std::min<std::uint64_t>(header.frame_bytes, 50000));
          if (header.offset + payload.size() > header.frame_bytes) header.offset = 0;
        }
        header.bytes = payload.size();
        auto bytes = wire::EncodeStreamHeader(header);
        if (random() % 20 == 0) bytes[random() % bytes.size()] ^= std::byte(1 + random() % 255);
        const std::vector<std::span<const std::byte>> view = {std::span<const std::byte>(bytes),
                                                              std::as_bytes(std::span(payload))};
        if (!server.OnMessage(view, now).ok()) break;
        for (auto& r : server.TakeReady()) ready.push_back(std::move(r));
        for (const auto& a : budget->TakeAdmitted()) server.OnAdmitted(a.request, a.bytes, now);
        if (!ready.empty() && random() % 2 == 0) {
          server.Answer(ready.back().request, Patterned(random() % 1000, 1), now);
          ready.pop_back();
        }
        if (random() % 2 == 0 && server.NextMessage()) server.OnSent(now);
        now += 1ms;
        REQUIRE(budget->levels().used <= 1u << 20);
      }
    }
    ready.clear();
    REQUIRE(budget->levels().used == 0);
    REQUIRE(budget->levels().small_used == 0);
    REQUIRE(budget->levels().waiting_bytes == 0);
  }
}

}  // namespace
}  // namespace evergrad::transport
