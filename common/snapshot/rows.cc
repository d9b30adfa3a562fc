#include "common/snapshot/rows.h"

#include <cstring>

namespace evergrad::snapshot {

std::optional<RowsView> ParseRows(std::span<const std::byte> block, std::uint32_t dimension) {
  // kFixedBytes holds id, stamp and count of a row.
  constexpr std::size_t kHeadBytes = 8, kFixedBytes = 3 * sizeof(std::uint64_t);
  if (block.size() < kHeadBytes) return std::nullopt;
  std::uint32_t head[2];
  std::memcpy(head, block.data(), sizeof(head));
  const std::size_t rows = head[0], left = block.size() - kHeadBytes;
  if (rows == 0 || head[1] != 0 || left % rows != 0) return std::nullopt;
  const std::size_t row_bytes = left / rows, value_bytes = std::size_t{dimension} * sizeof(float);
  if (row_bytes < kFixedBytes + value_bytes ||
      (row_bytes - kFixedBytes - value_bytes) % sizeof(float) != 0)
    return std::nullopt;
  return RowsView{rows, block.subspan(kHeadBytes, rows * sizeof(std::int64_t)),
                  block.subspan(kHeadBytes + rows * kFixedBytes, rows * value_bytes)};
}

}  // namespace evergrad::snapshot
