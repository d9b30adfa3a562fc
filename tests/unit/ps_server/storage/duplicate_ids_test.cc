// Compares the duplicate ids that DuplicateIds finds in a push with those that a map of all
// positions shows.
#include "ps_server/storage/duplicate_ids.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "common/sharding/slots.h"

namespace evergrad::ps_server::storage {
namespace {

void CheckPush(const std::vector<std::uint64_t>& hashes, DuplicateIds* duplicates) {
  duplicates->Begin(hashes.size());
  DuplicateIds::Marker marker = duplicates->marker();
  for (std::size_t i = 0; i < hashes.size(); ++i) marker.Mark(hashes[i], i);
  duplicates->Find(hashes, marker.count);

  std::map<std::uint64_t, std::uint32_t> last;
  std::vector<std::uint32_t> later, next(hashes.size(), DuplicateIds::kNone);
  for (std::uint32_t i = 0; i < hashes.size(); ++i) {
    const auto [at, first] = last.try_emplace(hashes[i], i);
    if (first) continue;
    later.push_back(i);
    next[at->second] = i;
    at->second = i;
  }
  CHECK(duplicates->any() == !later.empty());
  CHECK(std::vector(duplicates->positions().begin(), duplicates->positions().end()) == later);
  if (!duplicates->any()) return;
  for (std::size_t i = 0; i < hashes.size(); ++i) CHECK(duplicates->NextOf(i) == next[i]);
}

TEST_CASE("the duplicate ids of a push equal those of a map, push after push") {
  std::mt19937_64 random(11);
  DuplicateIds duplicates;
  for (const std::size_t size : {0u, 1u, 2u, 100u, 5000u, 3u, 20000u, 40u}) {
    for (const std::uint64_t different : {std::uint64_t{1}, std::uint64_t{50}, ~std::uint64_t{0}}) {
      std::vector<std::uint64_t> hashes(size);
      for (std::uint64_t& hash : hashes) hash = sharding::Mix64(random() % different);
      CheckPush(hashes, &duplicates);
    }
  }
}

TEST_CASE("different ids with equal hashes in the filter are not duplicates") {
  // The filter uses bits 0 to 11 of a hash and some bits above them. These hashes differ only in
  // bits that the filter does not use.
  std::vector<std::uint64_t> hashes;
  for (std::uint64_t i = 0; i < 300; ++i) hashes.push_back(i << 40 | 0x123);
  hashes.push_back(hashes[7]);
  DuplicateIds duplicates;
  CheckPush(hashes, &duplicates);
  CHECK(duplicates.positions().size() == 1);
}

}  // namespace
}  // namespace evergrad::ps_server::storage
