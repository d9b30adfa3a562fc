// Compares HotIds with the same algorithm without its two optimizations, which are tags and a
// cached minimum.
#include "ps_server/storage/hot_ids.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <vector>

#include "common/sharding/slots.h"

namespace evergrad::ps_server::storage {
namespace {

struct Plain {
  std::int64_t id;
  std::uint64_t count, error;
};

void AddPlainly(std::vector<Plain>* kept, std::int64_t id) {
  auto at = std::find_if(kept->begin(), kept->end(), [id](const Plain& p) { return p.id == id; });
  if (at == kept->end()) {
    if (kept->size() < HotIds::kIds) {
      at = kept->insert(at, {id, 0, 0});
    } else {
      at = std::min_element(kept->begin(), kept->end(),
                            [](const Plain& a, const Plain& b) { return a.count < b.count; });
      *at = {id, at->count, at->count};
    }
  }
  ++at->count;
}

TEST_CASE("hot ids equal those of Space-Saving, also where two ids have equal tags") {
  // Each id has a partner with the same tag, so that the two can be confused.
  std::map<std::uint16_t, std::int64_t> of_tag;
  std::vector<std::int64_t> ids;
  for (std::int64_t id = -50000; ids.size() < 1400; ++id) {
    const auto [first, fresh] = of_tag.try_emplace(
        static_cast<std::uint16_t>(sharding::Mix64(static_cast<std::uint64_t>(id))), id);
    if (fresh) continue;
    ids.push_back(first->second);
    ids.push_back(id);
    of_tag.erase(first);
  }
  const unsigned seed = 7;
  INFO("seed " << seed);
  std::mt19937 draw(seed);
  HotIds hot;
  std::vector<Plain> plain;
  for (int i = 0; i < 30000; ++i) {
    const auto u = static_cast<double>(draw()) / 4294967296.0;
    const std::int64_t id =
        ids[static_cast<std::size_t>(u * u * u * static_cast<double>(ids.size()))];
    // HotIds samples one of kSampledEvery ids, so this call samples the id once.
    hot.Add(HotIds::kSampledEvery, [id](std::size_t) { return id; });
    AddPlainly(&plain, id);
  }
  REQUIRE(hot.size() == plain.size());
  REQUIRE(hot.size() == HotIds::kIds);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    INFO("place " << i);
    CHECK(hot.id(i) == plain[i].id);
    CHECK(hot.count(i) == plain[i].count);
    CHECK(hot.error(i) == plain[i].error);
  }
}

}  // namespace
}  // namespace evergrad::ps_server::storage
