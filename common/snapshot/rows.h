// A view into the bytes of a block of section ROWS, without a copy (FORMAT.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace evergrad::snapshot {

// The number of bytes before the rows of a block, and the number of bytes of a row's id, stamp and
// count.
inline constexpr std::size_t kRowsHeadBytes = 8, kRowFixedBytes = 3 * sizeof(std::uint64_t);

struct RowsView {
  std::size_t rows = 0;
  std::span<const std::byte> ids;     // rows x int64; any alignment
  std::span<const std::byte> values;  // rows x dimension x float32; any alignment
};

// Returns nullopt if length or padding do not match the number of rows. Skips the optimizer state,
// which may have any size.
std::optional<RowsView> ParseRows(std::span<const std::byte> block, std::uint32_t dimension);

}  // namespace evergrad::snapshot
