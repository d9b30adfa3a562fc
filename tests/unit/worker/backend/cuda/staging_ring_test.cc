#include "worker/backend/cuda/staging_ring.h"

#include <catch2/catch.hpp>
#include <vector>

#include "common/random/philox.h"

namespace evergrad::worker {
namespace {

TEST_CASE("blocks are contiguous, are allocated in turn, and are freed with their tickets") {
  StagingRing ring(1024 + 100);
  CHECK(ring.capacity() == 1024);
  const auto a = ring.Acquire(512), b = ring.Acquire(200);
  REQUIRE((a && b));
  CHECK(a->offset == 0);
  CHECK(b->offset == 512);
  CHECK_FALSE(ring.Acquire(300).has_value());  // only 256 bytes are left
  CHECK(ring.stats().refused == 1);
  CHECK_FALSE(ring.oldest().has_value());  // nothing was submitted, so a wait would never end
  ring.Submit(a->ticket);
  CHECK(ring.oldest() == a->ticket);
  ring.Reached(a->ticket);
  const auto c = ring.Acquire(500);  // the 256 bytes at the end are skipped
  REQUIRE(c);
  CHECK(c->offset == 0);
  CHECK(ring.stats().in_use == 1024);
  ring.Submit(b->ticket);
  ring.Submit(c->ticket);
  ring.Reached(b->ticket);
  ring.Reached(c->ticket);
  ring.Reached(a->ticket);  // a repeated call changes nothing
  CHECK(ring.stats().in_use == 0);
  const auto all = ring.Acquire(1024);
  REQUIRE(all);
  CHECK(all->offset == 0);
}

TEST_CASE("the block after the end of the ring is at its beginning") {
  StagingRing ring(1024);
  const auto a = ring.Acquire(512), b = ring.Acquire(512);
  REQUIRE((a && b));
  ring.Submit(a->ticket);
  ring.Reached(a->ticket);
  CHECK(ring.Acquire(256)->offset == 0);
}

TEST_CASE("ring: random blocks never overlap while they are held, and the ring never deadlocks") {
  const std::uint64_t seed = random::EntropyFromOs();
  INFO("seed " << seed);
  std::uint64_t at = 0;
  const auto draw = [&](std::uint64_t n) { return random::Bits64(seed, at++) % n; };
  StagingRing ring(64 * 1024);
  std::vector<StagingRing::StagingBlock> held;
  std::uint64_t submitted = 0, refused = 0;
  for (int step = 0; step < 20000; ++step) {
    const std::uint64_t what = draw(5);
    if (what < 2) {
      const std::uint64_t bytes = 1 + draw(1ull << (1 + draw(16)));
      const auto block = ring.Acquire(bytes);
      if (!block) {
        ++refused;
        // Memory that was acquired and submitted must become available again when the device has
        // reached its ticket.
        while (submitted < (held.empty() ? submitted : held.back().ticket))
          ring.Submit(++submitted);
        ring.Reached(submitted);
        held.clear();
        const auto again = ring.Acquire(bytes);
        REQUIRE(again);
        held.push_back(*again);
        continue;
      }
      REQUIRE(block->offset + block->bytes <= ring.capacity());
      for (const auto& other : held)
        REQUIRE((block->offset >= other.offset + other.bytes ||
                 other.offset >= block->offset + block->bytes));
      held.push_back(*block);
    } else if (what < 4) {
      if (!held.empty() && submitted < held.back().ticket) ring.Submit(++submitted);
    } else if (const auto oldest = ring.oldest()) {
      ring.Reached(*oldest);
      REQUIRE(held.front().ticket == *oldest);
      held.erase(held.begin());
    }
  }
  CHECK(refused > 0);
  CHECK(ring.stats().in_use_peak <= ring.capacity());
}

}  // namespace
}  // namespace evergrad::worker
