// A block of section ROWS, looked at where it lies (FORMAT.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace evergrad::snapshot {

struct RowsView {
  std::size_t rows = 0;
  std::span<const std::byte> ids;     // rows x int64; any alignment
  std::span<const std::byte> values;  // rows x dimension x float32; likewise
};

// nullopt: its length or its padding is not that of so many rows. What the optimizer keeps of a
// row, of whatever size, is passed over.
std::optional<RowsView> ParseRows(std::span<const std::byte> block, std::uint32_t dimension);

}  // namespace evergrad::snapshot
