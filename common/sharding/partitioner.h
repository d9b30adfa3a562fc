// The partitioning of a dense variable by rows. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tensor/tensor.h"

namespace evergrad::sharding {

// The number of partitions is min(num_shards, rows).
struct FixedShards {
  std::uint64_t num_shards = 1;
};
// The number of partitions is max(1, min(rows, max_shards if given, floor(bytes /
// min_shard_bytes))).
struct MinSize {
  std::uint64_t min_shard_bytes = 256 * 1024;
  std::optional<std::uint64_t> max_shards;
};
// With rows_per_shard = max(1, floor(max_shard_bytes / row_bytes)), the number of partitions is
// ceil(rows / rows_per_shard), limited by max_shards.
struct MaxSize {
  std::uint64_t max_shard_bytes = 0;
  std::optional<std::uint64_t> max_shards;
};
using Partitioner = std::variant<FixedShards, MinSize, MaxSize>;

struct RowRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(const RowRange&, const RowRange&) = default;
};

inline constexpr std::uint64_t kPartitionBytesMax = 64ull << 20;
inline constexpr std::uint64_t kPartitionsMax = 65536;  // limit for one variable

// Partitions `shape` (float32). The first (rows mod n) partitions get one more row. Scalars have
// one partition. A partition above `partition_bytes_max` (at most kPartitionBytesMax) is divided
// further. Returns a user error for a row above `partition_bytes_max`, a size or count < 1, a
// variable without elements, or more than kPartitionsMax partitions.
absl::StatusOr<std::vector<RowRange>> PartitionRows(
    const Partitioner& partitioner, const tensor::Shape& shape,
    std::uint64_t partition_bytes_max = kPartitionBytesMax);

}  // namespace evergrad::sharding
