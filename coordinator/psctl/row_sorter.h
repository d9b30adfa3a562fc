// Sorts rows of tables by id in bounded memory. Rows beyond the limit are written to a temporary
// file as sorted runs.
//
// Blocking, not thread-safe. The file has no name and disappears with the sorter. The errors are
// ResourceExhausted for a full disk and DataLoss for a duplicate row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace evergrad::psctl {

class RowSorter {
 public:
  struct Options {
    std::string folder;  // folder of the temporary file
    // Approximate limit of the bytes of rows in memory. One added block and one row of each run are
    // kept in memory even above this limit.
    std::uint64_t memory_bytes = 256ull << 20;
  };
  // `dimensions` has one dimension per table.
  RowSorter(Options options, const std::vector<std::uint32_t>& dimensions);
  ~RowSorter();
  RowSorter(const RowSorter&) = delete;
  RowSorter& operator=(const RowSorter&) = delete;

  // `ids` are n x int64, `values` n x dimension x float32; both may have any alignment.
  absl::Status Add(std::size_t table, std::span<const std::byte> ids,
                   std::span<const std::byte> values);
  // Passes all rows of the table to `take` in pieces, in ascending order of the ids. Call this
  // method once per table. The method stops at the first error of `take` and returns that error.
  using Take =
      std::function<absl::Status(std::span<const std::int64_t> ids, std::span<const float> values)>;
  absl::Status Drain(std::size_t table, const Take& take);
  std::uint64_t spilled_bytes() const { return file_bytes_; }

 private:
  struct SortedRun {
    std::uint64_t offset = 0, rows = 0;  // position in the file: ids first, then values
  };
  struct Table {
    std::uint32_t dimension = 0;
    std::vector<std::int64_t> ids;
    std::vector<float> values;
    std::vector<SortedRun> runs;
    std::uint64_t row_bytes() const {
      return sizeof(std::int64_t) + std::uint64_t{dimension} * sizeof(float);
    }
    std::uint64_t bytes() const { return ids.size() * row_bytes(); }
  };
  class Cursor;
  absl::Status Spill(Table* table);
  absl::Status Write(std::span<const std::byte> bytes);
  absl::Status Read(std::uint64_t offset, std::span<std::byte> to) const;
  static void Sort(Table* table);

  const Options options_;
  std::vector<Table> tables_;
  std::uint64_t bytes_ = 0, file_bytes_ = 0;  // bytes in memory, bytes in the file
  int fd_ = -1;
};

}  // namespace evergrad::psctl
