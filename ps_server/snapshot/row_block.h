// Blocks of sections ROWS and FILTER of a slot's file (common/snapshot/FORMAT.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/snapshot/shard_file.h"
#include "ps_server/storage/embedding_table.h"

namespace evergrad::ps_server {

// Writes slices of tables' cuts, in self-contained blocks with ascending ids. Begins a new section
// if the last block belongs to another section.
class RowWriter {
 public:
  // The writer outlives this object.
  explicit RowWriter(snapshot::ShardFileWriter* writer) : writer_(*writer) {}
  absl::Status Append(std::uint32_t table, std::uint32_t dimension,
                      const storage::TableSlice& slice);

 private:
  absl::Status Begin(snapshot::Section section, std::uint32_t table);

  snapshot::ShardFileWriter& writer_;
  snapshot::Section section_ = snapshot::Section::kValues;  // of the last block; not rows at first
  std::uint32_t table_ = 0;
  std::vector<std::uint32_t> order_;  // its memory is reused for the next slice
  std::vector<std::byte> block_;
};

// A block that was read from a file. None of its numbers is trusted.
struct RowBlock {
  std::vector<std::int64_t> ids;
  std::vector<std::uint64_t> stamps, counts;
  std::vector<float> values, state;  // empty in FILTER
  // Returns false if the length or the padding of `bytes` is wrong for these rows. FILTER has
  // neither values nor state.
  bool Parse(std::span<const std::byte> bytes, std::uint32_t dimension,
             std::uint32_t state_per_row);
};

}  // namespace evergrad::ps_server
