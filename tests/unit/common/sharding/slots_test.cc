#include <vector>

#include <catch2/catch.hpp>

#include "common/sharding/slots.h"

namespace evergrad::sharding {
namespace {

TEST_CASE("ids of any pattern are spread evenly over slots") {
  const std::uint64_t key = SlotKey("user_embedding");
  const auto spread = [&](auto id_of) {
    std::vector<int> counts(kSlotsDefault);
    for (std::int64_t i = 0; i < 128'000; ++i) ++counts[SlotOf(key, id_of(i), kSlotsDefault)];
    int most = 0, least = 1 << 30;
    for (const int count : counts) most = std::max(most, count), least = std::min(least, count);
    // Each slot gets 1,000 ids on average, with a standard deviation of 32. The bound is five
    // standard deviations.
    CHECK(most < 1160);
    CHECK(least > 840);
  };
  spread([](std::int64_t i) { return i; });
  spread([](std::int64_t i) { return -i; });
  spread([](std::int64_t i) { return i * 4096; });
  spread([](std::int64_t i) { return i << 40; });
}

TEST_CASE("the slot of an id is constant, because checkpoints depend on it") {
  CHECK(SlotKey("user_embedding") == 0x86f181c3341febcdull);
  CHECK(SlotOf(SlotKey("user_embedding"), 0, 128) == 85);
  CHECK(SlotOf(SlotKey("user_embedding"), 1, 128) == 25);
  CHECK(SlotOf(SlotKey("user_embedding"), -1, 128) == 87);
  CHECK(SlotOf(SlotKey("item_embedding"), 1, 128) == 79);
  CHECK(SlotOf(SlotKey("item_embedding"), 1, 1) == 0);
  CHECK(SlotOf(SlotKey("item_embedding"), INT64_MIN, kSlotsMax) == 28809);
}

}  // namespace
}  // namespace evergrad::sharding
