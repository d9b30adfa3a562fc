// Tests that the sorter returns rows in the order of their ids, both if all rows fit into memory
// and if they do not.
#include "coordinator/psctl/row_sorter.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <random>

#include "tests/support/temp_folder.h"

namespace evergrad::psctl {
namespace {

using Rows = std::map<std::int64_t, std::vector<float>>;

absl::Status Add(RowSorter* sorter, std::size_t table, const std::vector<std::int64_t>& ids,
                 const std::vector<float>& values) {
  return sorter->Add(table, std::as_bytes(std::span(ids)), std::as_bytes(std::span(values)));
}

// Takes all rows of `table` from the sorter and returns them. The ids must rise.
Rows Drained(RowSorter* sorter, std::size_t table, std::size_t dimension) {
  Rows rows;
  bool any = false;
  std::int64_t last = 0;
  const absl::Status status =
      sorter->Drain(table, [&](std::span<const std::int64_t> ids, std::span<const float> values) {
        for (std::size_t i = 0; i < ids.size(); ++i) {
          if (any && ids[i] <= last) FAIL("not rising: " << last << " " << ids[i]);
          any = true;
          last = ids[i];
          rows[ids[i]] = {values.begin() + static_cast<std::ptrdiff_t>(i * dimension),
                          values.begin() + static_cast<std::ptrdiff_t>((i + 1) * dimension)};
        }
        return absl::OkStatus();
      });
  CHECK(status == absl::OkStatus());
  return rows;
}

TEST_CASE("tables are sorted in memory, or with runs in an unnamed file") {
  const std::uint64_t memory = GENERATE(1ull << 30, 3000, 1);
  CAPTURE(memory);
  const test::TempFolder folder;
  std::mt19937_64 random(7);
  RowSorter sorter({folder.path(), memory}, {3, 1});
  Rows want[2];
  const std::size_t dimensions[] = {3, 1};
  for (int block = 0; block < 60; ++block) {
    const std::size_t table = random() % 2, d = dimensions[table];
    std::vector<std::int64_t> ids;
    std::vector<float> values;
    for (std::size_t i = random() % 20; i > 0; --i) {
      const auto id = static_cast<std::int64_t>(random());
      if (!want[table].try_emplace(id, d, static_cast<float>(id % 1000)).second) continue;
      ids.push_back(id);
      values.insert(values.end(), d, static_cast<float>(id % 1000));
    }
    REQUIRE(Add(&sorter, table, ids, values) == absl::OkStatus());
  }
  CHECK((sorter.spilled_bytes() > 0) == (memory < (1 << 20)));
  CHECK(std::filesystem::is_empty(folder.path()));
  CHECK((Drained(&sorter, 0, 3) == want[0]));
  CHECK((Drained(&sorter, 1, 1) == want[1]));
}

TEST_CASE(
    "a duplicate row is reported within one run and across two, and an error of the receiver ends "
    "the sort") {
  const test::TempFolder folder;
  for (const std::uint64_t memory : {std::uint64_t{1} << 20, std::uint64_t{1}}) {
    RowSorter sorter({folder.path(), memory}, {1});
    REQUIRE(Add(&sorter, 0, {4, 9}, {1, 2}) == absl::OkStatus());
    REQUIRE(Add(&sorter, 0, {9, 3}, {3, 4}) == absl::OkStatus());
    const absl::Status status = sorter.Drain(0, [](auto, auto) { return absl::OkStatus(); });
    CHECK(absl::IsDataLoss(status));
    CHECK(status.message() == "duplicate row: id=9");
  }
  RowSorter sorter({folder.path(), 1 << 20}, {1});
  REQUIRE(Add(&sorter, 0, {4}, {1}) == absl::OkStatus());
  CHECK(absl::IsResourceExhausted(
      sorter.Drain(0, [](auto, auto) { return absl::ResourceExhaustedError("disk full"); })));
  RowSorter nowhere({folder / "none", 1}, {1});
  REQUIRE(Add(&nowhere, 0, {4}, {1}) == absl::OkStatus());
  CHECK(absl::IsNotFound(Add(&nowhere, 0, {5}, {1})));
}

}  // namespace
}  // namespace evergrad::psctl
