#include "common/snapshot/rows.h"

#include <cstring>

namespace evergrad::snapshot {

std::optional<RowsView> ParseRows(std::span<const std::byte> block, std::uint32_t dimension) {
  if (block.size() < kRowsHeadBytes) return std::nullopt;
  std::uint32_t head[2];
  std::memcpy(head, block.data(), sizeof(head));
  const std::size_t rows = head[0], left = block.size() - kRowsHeadBytes;
  if (rows == 0 || head[1] != 0 || left % rows != 0) return std::nullopt;
  const std::size_t row_bytes = left / rows, value_bytes = std::size_t{dimension} * sizeof(float);
  if (row_bytes < kRowFixedBytes + value_bytes ||
      (row_bytes - kRowFixedBytes - value_bytes) % sizeof(float) != 0)
    return std::nullopt;
  return RowsView{rows, block.subspan(kRowsHeadBytes, rows * sizeof(std::int64_t)),
                  block.subspan(kRowsHeadBytes + rows * kRowFixedBytes, rows * value_bytes)};
}

}  // namespace evergrad::snapshot
