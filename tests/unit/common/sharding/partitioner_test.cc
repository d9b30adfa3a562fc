#include "common/sharding/partitioner.h"

#include <catch2/catch.hpp>

#include "common/base/status.h"

namespace evergrad::sharding {
namespace {

constexpr std::uint64_t kKiB = 1024;

std::vector<std::uint64_t> Sizes(const Partitioner& partitioner, const tensor::Shape& shape) {
  const auto ranges = PartitionRows(partitioner, shape);
  REQUIRE(ranges.ok());
  std::vector<std::uint64_t> sizes;
  std::uint64_t row = 0;
  for (const RowRange& r : *ranges) {
    REQUIRE(r.begin == row);
    REQUIRE(r.end > r.begin);
    sizes.push_back(r.end - r.begin);
    row = r.end;
  }
  REQUIRE(row == shape.rows());
  return sizes;
}
std::size_t Count(const Partitioner& partitioner, const tensor::Shape& shape) {
  return Sizes(partitioner, shape).size();
}

TEST_CASE("the partitioners give the documented examples") {
  const tensor::Shape six{6, 1};
  CHECK(Count(MinSize{4, 2}, six) == 2);
  CHECK(Count(MinSize{4, 10}, six) == 6);
  CHECK(Count(MinSize{4, std::nullopt}, six) == 6);
  CHECK(Count(MaxSize{4, std::nullopt}, six) == 6);
  CHECK(Count(MaxSize{4, 2}, six) == 2);
  CHECK(Count(MaxSize{1024, std::nullopt}, six) == 1);
  // 257 KiB are one partition if the minimum is 256 KiB, because the number of partitions is
  // rounded down.
  CHECK(Count(MinSize{256 * kKiB, std::nullopt}, tensor::Shape{257 * kKiB / 4}) == 1);
  CHECK(Count(MinSize{256 * kKiB, std::nullopt}, tensor::Shape{512 * kKiB / 4}) == 2);
  CHECK(Sizes(FixedShards{5}, tensor::Shape{13, 4}) == std::vector<std::uint64_t>{3, 3, 3, 2, 2});
  CHECK(Count(FixedShards{5}, tensor::Shape{3, 4}) == 3);
  // Rows have 40 B, so two of them fit into 100 B.
  CHECK(Count(MaxSize{100, std::nullopt}, tensor::Shape{10, 10}) == 5);
  // A row is larger than 39 B, so each partition has one row.
  CHECK(Count(MaxSize{39, std::nullopt}, tensor::Shape{10, 10}) == 10);
}

TEST_CASE("scalars are not partitioned") {
  CHECK(Sizes(FixedShards{5}, tensor::Shape{}) == std::vector<std::uint64_t>{1});
  CHECK(Sizes(MinSize{1, std::nullopt}, tensor::Shape{}) == std::vector<std::uint64_t>{1});
  CHECK(Sizes(MaxSize{1, std::nullopt}, tensor::Shape{}) == std::vector<std::uint64_t>{1});
}

TEST_CASE("no partition exceeds 64 MiB, whatever the setting is") {
  const std::uint64_t mib = 1024 * 1024;
  const tensor::Shape large{200 * mib / 4};  // 200 MiB in rows of 4 B.
  CHECK(Count(FixedShards{1}, large) == 4);
  CHECK(Count(MaxSize{1024 * mib, std::nullopt}, large) == 4);
  CHECK(Count(MaxSize{mib, 1}, large) == 4);  // The 64 MiB are stronger than the cap.
  CHECK(Count(FixedShards{1}, tensor::Shape{64 * mib / 4}) == 1);
  CHECK(Count(FixedShards{1}, tensor::Shape{64 * mib / 4 + 1}) == 2);
  // Rows have 33 MiB. Each partition has one row, because two do not fit.
  CHECK(Sizes(FixedShards{1}, tensor::Shape{3, 33 * mib / 4}) ==
        std::vector<std::uint64_t>{1, 1, 1});
}

TEST_CASE("an impossible partition is refused as a user's error") {
  struct Case {
    Partitioner partitioner;
    tensor::Shape shape;
    std::string words;
  };
  const Case cases[] = {
      {FixedShards{0}, tensor::Shape{4}, "num_shards=0"},
      {MinSize{0, std::nullopt}, tensor::Shape{4}, "min_shard_bytes=0"},
      {MinSize{1, 0}, tensor::Shape{4}, "max_shards=0"},
      {MaxSize{0, std::nullopt}, tensor::Shape{4}, "max_shard_bytes=0"},
      {MaxSize{1, 0}, tensor::Shape{4}, "max_shards=0"},
      {FixedShards{0}, tensor::Shape{}, "num_shards=0"},
      {FixedShards{1}, tensor::Shape{2, (64ull << 20) / 4 + 1}, "a row is larger"},
      {FixedShards{1}, tensor::Shape{0, 3}, "at least one element"},
      {FixedShards{1}, tensor::Shape{3, 0}, "at least one element"},
      {FixedShards{70000}, tensor::Shape{70000}, "too many partitions"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.words);
    const auto ranges = PartitionRows(c.partitioner, c.shape);
    REQUIRE_FALSE(ranges.ok());
    CHECK(ranges.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(BlameOf(ranges.status()) == Blame::kUser);
    CHECK_THAT(std::string(ranges.status().message()), Catch::Contains(c.words));
  }
  // The product of the dimensions overflows.
  CHECK_FALSE(PartitionRows(FixedShards{1}, tensor::Shape{1ull << 40, 1ull << 40}).ok());
}

}  // namespace
}  // namespace evergrad::sharding
