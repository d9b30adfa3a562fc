// The digest of an embedding table's rows: a sum over the rows, mod 2^64. The digest depends
// neither on the order of the rows nor on their distribution; the digests of partitions add up.
// Pure.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "common/base/mix.h"
#include "common/sharding/slots.h"

namespace evergrad::sharding {

// Returns the digest of a part of a row: `floats` are the elements from `first` on. In a row, the
// optimizer state follows the values, so `first` of the optimizer state is the table's dimension.
inline std::uint64_t DigestOfRow(std::int64_t id, std::uint32_t first,
                                 std::span<const float> floats) {
  const std::uint64_t row = Mix64(static_cast<std::uint64_t>(id)) + first;
  std::uint64_t sum = 0;
  for (std::size_t j = 0; j < floats.size(); ++j)
    sum += Mix(row + j, std::bit_cast<std::uint32_t>(floats[j]));
  return sum;
}

inline std::uint64_t DigestOfCounters(std::int64_t id, std::uint32_t stamp, std::uint32_t count,
                                      bool waiting) {
  return Mix(Mix(Mix64(static_cast<std::uint64_t>(id)) + waiting, stamp), count);
}

}  // namespace evergrad::sharding
