#include "common/sharding/partitioner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"
#include "common/base/status.h"

namespace evergrad::sharding {
namespace {

std::uint64_t CeilDiv(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

absl::Status AtLeastOne(absl::string_view name, std::uint64_t value) {
  if (value >= 1) return absl::OkStatus();
  return UserError(absl::InvalidArgumentError(
      absl::StrCat("a value of the partitioner must be at least 1: ", name, "=", value)));
}

absl::Status Check(const Partitioner& partitioner) {
  if (const auto* fixed = std::get_if<FixedShards>(&partitioner))
    return AtLeastOne("num_shards", fixed->num_shards);
  if (const auto* min = std::get_if<MinSize>(&partitioner)) {
    EG_RETURN_IF_ERROR(AtLeastOne("min_shard_bytes", min->min_shard_bytes));
    return min->max_shards ? AtLeastOne("max_shards", *min->max_shards) : absl::OkStatus();
  }
  const auto& max = std::get<MaxSize>(partitioner);
  EG_RETURN_IF_ERROR(AtLeastOne("max_shard_bytes", max.max_shard_bytes));
  return max.max_shards ? AtLeastOne("max_shards", *max.max_shards) : absl::OkStatus();
}

std::uint64_t CountOf(const Partitioner& partitioner, std::uint64_t rows, std::uint64_t row_bytes) {
  if (const auto* fixed = std::get_if<FixedShards>(&partitioner))
    return std::min(fixed->num_shards, rows);
  if (const auto* min = std::get_if<MinSize>(&partitioner)) {
    const std::uint64_t limit = std::min(rows, min->max_shards.value_or(rows));
    return std::max<std::uint64_t>(1, std::min(limit, rows * row_bytes / min->min_shard_bytes));
  }
  const auto& max = std::get<MaxSize>(partitioner);
  const std::uint64_t rows_per_shard = std::max<std::uint64_t>(1, max.max_shard_bytes / row_bytes);
  return std::min(CeilDiv(rows, rows_per_shard), max.max_shards.value_or(rows));
}

}  // namespace

absl::StatusOr<std::vector<RowRange>> PartitionRows(const Partitioner& partitioner,
                                                    const tensor::Shape& shape,
                                                    std::uint64_t partition_bytes_max) {
  EG_RETURN_IF_ERROR(Check(partitioner));
  EG_RETURN_IF_ERROR(tensor::Shape::Checked(shape.dims()).status());
  const std::uint64_t rows = shape.rows();
  const std::uint64_t row_bytes =
      shape.row_elements() * tensor::DTypeBytes(tensor::DType::kFloat32);
  if (rows == 0 || row_bytes == 0)
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("a variable has at least one element: shape=", shape.ToString())));
  partition_bytes_max = std::min(partition_bytes_max, kPartitionBytesMax);
  if (row_bytes > partition_bytes_max) {
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("a row is larger than the limit of a partition: shape=", shape.ToString(),
                     " row_bytes=", row_bytes, " limit=", partition_bytes_max)));
  }
  if (shape.rank() == 0) return std::vector<RowRange>{{0, 1}};
  const std::uint64_t count = std::max(CountOf(partitioner, rows, row_bytes),
                                       CeilDiv(rows, partition_bytes_max / row_bytes));
  if (count > kPartitionsMax) {
    return UserError(
        absl::InvalidArgumentError(absl::StrCat("too many partitions: shape=", shape.ToString(),
                                                " partitions=", count, " limit=", kPartitionsMax)));
  }
  std::vector<RowRange> ranges;
  ranges.reserve(count);
  std::uint64_t begin = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t end = begin + rows / count + (i < rows % count ? 1 : 0);
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

}  // namespace evergrad::sharding
