// Copies of rows of a table: pieces of a cut, and rows that are restored from a snapshot file.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace evergrad::ps_server::storage {

// The bytes of the id, stamp and count of a row or waiting id in a slice.
inline constexpr std::uint64_t kSliceIdBytes = sizeof(std::int64_t) + 2 * sizeof(std::uint32_t);

// A piece of a cut: rows, and ids that wait for their admission, in no particular order. The count
// of a row is the number of gradients that were applied to it, or 0 if the optimizer does not need
// the number. The count of a waiting id is the number of pushes that named it. A stamp is the
// global step of the last push, or 0 without TTL and LRU.
struct TableSlice {
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> stamps, counts;
  std::vector<float> values;  // ids.size() x dimension
  std::vector<float> state;   // ids.size() x state_per_row
  std::vector<std::int64_t> waiting_ids;
  std::vector<std::uint32_t> waiting_stamps, waiting_counts;
  std::uint64_t bytes() const;
  void clear();
};

// Rows and waiting ids from a snapshot file. A restore checks all numbers.
struct RestoredRows {
  std::span<const std::int64_t> ids;
  std::span<const std::uint64_t> stamps, counts;  // ids.size() each
  std::span<const float> values, state;           // ids.size() x dimension, x state_per_row
};
struct RestoredWaiting {
  std::span<const std::int64_t> ids;
  std::span<const std::uint64_t> stamps, counts;  // ids.size() each
};

}  // namespace evergrad::ps_server::storage
