// Rows of tables in the order of their ids, in bounded memory: what does not fit lies in a
// temporary file, as sorted runs.
//
// Blocking, not thread-safe. The file has no name and goes with the sorter. Errors:
// ResourceExhausted (disk full), DataLoss (a row is there twice).
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
    std::string folder;  // of the temporary file
    std::uint64_t memory_bytes =
        256ull << 20;  // of rows, about; at least one block that is added, and one row of each run
  };
  RowSorter(Options options, std::vector<std::uint32_t> dimensions);  // of each table
  ~RowSorter();
  RowSorter(const RowSorter&) = delete;
  RowSorter& operator=(const RowSorter&) = delete;

  // ids: n x int64, values: n x dimension x float32, of any alignment.
  absl::Status Add(std::size_t table, std::span<const std::byte> ids,
                   std::span<const std::byte> values);
  // All rows of the table, rising by id, in pieces; once. An error of `take` ends it.
  using Take =
      std::function<absl::Status(std::span<const std::int64_t> ids, std::span<const float> values)>;
  absl::Status Drain(std::size_t table, const Take& take);
  std::uint64_t spilled_bytes() const { return file_bytes_; }

 private:
  struct Run {
    std::uint64_t offset = 0, rows = 0;  // in the file: ids, then values
  };
  struct Table {
    std::uint32_t dimension = 0;
    std::vector<std::int64_t> ids;
    std::vector<float> values;
    std::vector<Run> runs;
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
  std::uint64_t bytes_ = 0, file_bytes_ = 0;  // in memory, in the file
  int fd_ = -1;
};

}  // namespace evergrad::psctl
