// The slot of a job that holds a row of an embedding table. Pure.
//
// Slot i of all tables is one shard, and the number of slots is fixed for the job. Therefore a
// change of servers moves shards and never rehashes rows.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/random/philox.h"

namespace evergrad::sharding {

inline constexpr std::uint32_t kSlotsDefault = 128, kSlotsMax = 65536;

// Applies the SplitMix64 finalizer (Steele et al., "Fast splittable pseudorandom number
// generators", OOPSLA'14), a bijection in which each input bit changes about half of the output
// bits on average.
constexpr std::uint64_t Mix64(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Returns the key of a table's name. The key distributes the ids of each table differently.
// Therefore an id that all tables have, such as 0 for "unseen", is not in the same slot for all of
// them.
inline std::uint64_t SlotKey(absl::string_view table) { return random::KeyOf(0, table); }

// Returns the slot of `id`, a number in [0, slots), from the upper bits of the id's hash. A hash
// table inside a slot must use lower bits of the hash, because all its ids have similar upper bits.
// `slots` is at most kSlotsMax.
constexpr std::uint32_t SlotOf(std::uint64_t slot_key, std::int64_t id, std::uint32_t slots) {
  return static_cast<std::uint32_t>(
      ((Mix64(static_cast<std::uint64_t>(id) ^ slot_key) >> 32) * slots) >> 32);
}

}  // namespace evergrad::sharding
