// Tests the allocator of device memory. The device is a map of numbers. Blocks that the allocator
// returns must never overlap. Freed blocks must be merged again. They must not be given to another
// stream before the streams that used them have reached their marks.
#include "worker/backend/cuda/block_cache.h"

#include <catch2/catch.hpp>
#include <map>

#include "absl/strings/match.h"
#include "common/random/philox.h"

namespace evergrad::worker {
namespace {

struct Device {
  std::uint64_t total, next = 4096, taken = 0;
  std::map<std::uint64_t, std::uint64_t> segments;
  std::string releases_fail;
  explicit Device(std::uint64_t bytes) : total(bytes) {}
  BlockCache::Driver driver() {
    return {[this](std::uint64_t bytes) -> absl::StatusOr<std::uint64_t> {
              if (taken + bytes > total) return absl::ResourceExhaustedError("out of memory");
              taken += bytes;
              segments[next] = bytes;
              next += bytes + 4096;  // segments are never adjacent
              return next - bytes - 4096;
            },
            [this](std::uint64_t address) {
              if (!releases_fail.empty()) return absl::InternalError(releases_fail);
              REQUIRE(segments.count(address) == 1);
              taken -= segments[address];
              segments.erase(address);
              return absl::OkStatus();
            },
            [this] { return total - taken; }};
  }
};

constexpr std::uint64_t kMiB = 1 << 20;

TEST_CASE(
    "a block comes from a segment, is reused on the same stream at once, and is merged with its "
    "neighbours") {
  Device device(100 * kMiB);
  BlockCache cache(device.driver());
  const auto a = cache.Allocate(1000, 1), b = cache.Allocate(1000, 1), c = cache.Allocate(1000, 1);
  REQUIRE((a.ok() && b.ok() && c.ok()));
  CHECK(*b == *a + 1024);
  CHECK(*c == *b + 1024);
  CHECK(device.segments.size() == 1);
  CHECK(cache.stats().in_use == 3 * 1024);
  CHECK(cache.stats().reserved == 2 * kMiB);
  cache.Free(*b);
  CHECK(cache.stats().fragmentation > 0);
  CHECK(*cache.Allocate(900, 1) == *b);  // the block that fits best, and not the large remainder
  cache.Free(*a);
  cache.Free(*b);
  cache.Free(*c);
  CHECK(cache.stats().in_use == 0);
  CHECK(cache.stats().largest_free == 2 * kMiB);
  CHECK(cache.stats().fragmentation == 0);
  CHECK(cache.Audit() == "");
  CHECK(cache.ReleaseCached().ok());
  CHECK(device.taken == 0);
}

TEST_CASE(
    "memory in use by another stream is held back until it has passed, and its blocks are not "
    "shared") {
  Device device(100 * kMiB);
  BlockCache cache(device.driver());
  const auto a = *cache.Allocate(4096, 1);
  cache.UsedOn(a, 2, 7);
  cache.UsedOn(a, 3, 1);
  cache.Free(a);
  CHECK(cache.stats().held_back == 4096);
  CHECK(*cache.Allocate(4096, 1) != a);
  cache.Reached(3, 1);
  cache.Reached(2, 6);
  CHECK(cache.stats().held_back == 4096);
  cache.Reached(2, 7);
  CHECK(cache.stats().held_back == 0);
  CHECK(*cache.Allocate(4096, 2) != a);  // that block belongs to stream 1
  CHECK(*cache.Allocate(4096, 1) == a);
  // A mark that was already reached does not delay the next use of the block.
  cache.UsedOn(a, 2, 5);
  cache.Free(a);
  CHECK(cache.stats().held_back == 0);
  CHECK(cache.Audit() == "");
}

TEST_CASE(
    "a full device is asked again after cached memory was freed, then the error names requested "
    "and free bytes") {
  Device device(64 * kMiB);
  BlockCache cache(device.driver());
  const auto a = *cache.Allocate(40 * kMiB, 1);
  cache.Free(a);
  const auto b = cache.Allocate(50 * kMiB, 1);  // 40 MiB are cached and must be freed first
  REQUIRE(b.ok());
  CHECK(cache.stats().device_releases == 1);
  const auto refused = cache.Allocate(30 * kMiB, 1);
  CHECK(refused.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(
      refused.status().message() ==
      "out of device memory: asked=31457280 free=14680064 in_use=52428800 cached=0 largest_free=0");
  CHECK(cache.Allocate(0, 1).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_FALSE(cache.Allocate(~0ull, 1).ok());
  CHECK(cache.Audit() == "");
  cache.Free(*b);
  device.releases_fail = "device lost";
  CHECK(cache.Allocate(60 * kMiB, 1).status().message() == "device lost");
  device.releases_fail.clear();
}

TEST_CASE("allocator: ten thousand random calls keep the accounts correct, and no blocks overlap") {
  const std::uint64_t seed = random::EntropyFromOs();
  INFO("seed " << seed);
  std::uint64_t at = 0;
  const auto draw = [&](std::uint64_t n) { return random::Bits64(seed, at++) % n; };
  Device device(512 * kMiB);
  BlockCache cache(device.driver());
  // address -> (bytes, stream)
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint32_t>> live;
  // For freed memory: the marks of other streams that still use it. The memory must not be
  // allocated again before these marks are reached.
  std::map<std::uint64_t, std::pair<std::uint64_t, std::map<std::uint32_t, std::uint64_t>>> held;
  std::map<std::uint32_t, std::uint64_t> reached;
  std::uint64_t exhausted = 0;
  for (int step = 0; step < 10000; ++step) {
    const std::uint64_t what = draw(10);
    if (what < 5) {
      const std::uint64_t bytes = 1 + draw(1ull << draw(27));
      const std::uint32_t stream = static_cast<std::uint32_t>(draw(3));
      const auto given = cache.Allocate(bytes, stream);
      if (!given.ok()) {
        CHECK(absl::IsResourceExhausted(given.status()));
        ++exhausted;
        continue;
      }
      REQUIRE(*given % BlockCache::kAlignment == 0);
      const auto next = live.lower_bound(*given);
      if (next != live.end()) REQUIRE(*given + bytes <= next->first);
      if (next != live.begin())
        REQUIRE(std::prev(next)->first + std::prev(next)->second.first <= *given);
      for (const auto& [address, use] : held) {
        if (address + use.first <= *given || *given + bytes <= address) continue;
        for (const auto& [other, mark] : use.second) REQUIRE(reached[other] >= mark);
      }
      std::erase_if(held, [&](const auto& h) {
        return !(h.first + h.second.first <= *given || *given + bytes <= h.first);
      });
      live[*given] = {bytes, stream};
    } else if (what < 9 && !live.empty()) {
      auto chosen = live.begin();
      std::advance(chosen, static_cast<std::ptrdiff_t>(draw(live.size())));
      std::map<std::uint32_t, std::uint64_t> uses;
      if (draw(3) == 0) {
        const std::uint32_t other = static_cast<std::uint32_t>(draw(3));
        const std::uint64_t mark = reached[other] + draw(3);
        cache.UsedOn(chosen->first, other, mark);
        if (other != chosen->second.second) uses[other] = mark;
      }
      cache.Free(chosen->first);
      if (!uses.empty()) held[chosen->first] = {chosen->second.first, uses};
      live.erase(chosen);
    } else {
      const std::uint32_t stream = static_cast<std::uint32_t>(draw(3));
      cache.Reached(stream, reached[stream] += draw(3));
    }
    if (step % 64 == 0) REQUIRE(cache.Audit() == "");
  }
  CHECK(exhausted > 0);  // the device is small enough to be full at times
  CHECK(cache.stats().joins > 100);
  for (const auto& [address, use] : live) cache.Free(address);
  for (std::uint32_t stream = 0; stream < 3; ++stream) cache.Reached(stream, reached[stream] + 10);
  CHECK(cache.stats().in_use == 0);
  CHECK(cache.stats().held_back == 0);
  CHECK(cache.Audit() == "");
  REQUIRE(cache.ReleaseCached().ok());
  CHECK(cache.stats().reserved == 0);
  CHECK(device.segments.empty());
}

TEST_CASE(
    "allocator: equal steps get equal addresses, and memory does not grow over ten thousand "
    "steps") {
  Device device(1024 * kMiB);
  BlockCache cache(device.driver());
  std::vector<std::uint64_t> first;
  std::uint64_t reserved = 0;
  for (int step = 0; step < 10000; ++step) {
    std::vector<std::uint64_t> now;
    for (const std::uint64_t bytes :
         {3 * kMiB, 40 * kMiB, 700 * 1024ul, 513ul, 12 * kMiB, 2 * kMiB})
      now.push_back(*cache.Allocate(bytes, 1));
    for (const std::size_t i : {1u, 4u, 0u, 5u, 2u, 3u}) cache.Free(now[i]);
    if (step == 1) first = now, reserved = cache.stats().reserved;
    if (step > 1) REQUIRE(now == first);
  }
  CHECK(cache.stats().reserved == reserved);
}

}  // namespace
}  // namespace evergrad::worker
