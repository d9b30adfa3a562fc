#include "ps_server/snapshot/row_block.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "common/base/status.h"
#include "common/snapshot/rows.h"

namespace evergrad::ps_server {
namespace {

static_assert(std::endian::native == std::endian::little,
              "numbers are written in the byte order of memory");

template <class T>
void Put(std::vector<std::byte>* block, const T* from, std::size_t count) {
  const auto* bytes = reinterpret_cast<const std::byte*>(from);
  block->insert(block->end(), bytes, bytes + count * sizeof(T));
}

// Appends the rows to the block. `floats[k]` is an array with widths[k] floats per row; the arrays
// follow each other.
template <class Blocks>
void PutRows(std::span<const std::uint32_t> rows, const std::vector<std::int64_t>& ids,
             const std::vector<std::uint32_t>& stamps, const std::vector<std::uint32_t>& counts,
             const Blocks& floats, std::vector<std::byte>* block) {
  block->clear();
  const std::uint32_t head[2] = {static_cast<std::uint32_t>(rows.size()), 0};
  Put(block, head, 2);
  for (const std::uint32_t r : rows) Put(block, &ids[r], 1);
  for (const auto* numbers : {&stamps, &counts}) {
    for (const std::uint32_t r : rows) {
      const std::uint64_t wide = (*numbers)[r];
      Put(block, &wide, 1);
    }
  }
  for (const auto& [values, width] : floats) {
    for (const std::uint32_t r : rows) Put(block, values->data() + std::size_t{r} * width, width);
  }
}

template <class T>
std::span<const std::byte> Get(std::span<const std::byte> bytes, std::size_t count,
                               std::vector<T>* to) {
  to->resize(count);
  if (count != 0) std::memcpy(to->data(), bytes.data(), count * sizeof(T));
  return bytes.subspan(count * sizeof(T));
}

}  // namespace

absl::Status RowWriter::Begin(snapshot::Section section, std::uint32_t table) {
  if (section == section_ && table == table_) return absl::OkStatus();
  section_ = section;
  table_ = table;
  return writer_.BeginSection(section, table);
}

absl::Status RowWriter::Append(std::uint32_t table, std::uint32_t dimension,
                               const storage::TableSlice& slice) {
  struct Floats {
    const std::vector<float>* values;
    std::size_t width;
  };
  const auto append = [&](snapshot::Section section, const std::vector<std::int64_t>& ids,
                          const std::vector<std::uint32_t>& stamps,
                          const std::vector<std::uint32_t>& counts,
                          const std::vector<Floats>& floats) -> absl::Status {
    if (ids.empty()) return absl::OkStatus();
    EG_RETURN_IF_ERROR(Begin(section, table));
    order_.resize(ids.size());
    std::iota(order_.begin(), order_.end(), 0u);
    std::sort(order_.begin(), order_.end(),
              [&](std::uint32_t a, std::uint32_t b) { return ids[a] < ids[b]; });
    std::size_t row_bytes = snapshot::kRowFixedBytes;
    for (const Floats& f : floats) row_bytes += f.width * sizeof(float);
    const std::size_t most = (snapshot::kBlockBytes - snapshot::kRowsHeadBytes) / row_bytes;
    for (std::size_t at = 0; at < order_.size(); at += most) {
      PutRows(
          std::span<const std::uint32_t>(order_).subspan(at, std::min(most, order_.size() - at)),
          ids, stamps, counts, floats, &block_);
      EG_RETURN_IF_ERROR(writer_.Append(block_));
      EG_RETURN_IF_ERROR(writer_.EndBlock());
    }
    return absl::OkStatus();
  };
  const std::size_t state = slice.ids.empty() ? 0 : slice.state.size() / slice.ids.size();
  EG_RETURN_IF_ERROR(append(snapshot::Section::kRows, slice.ids, slice.stamps, slice.counts,
                            {{&slice.values, dimension}, {&slice.state, state}}));
  return append(snapshot::Section::kFilter, slice.waiting_ids, slice.waiting_stamps,
                slice.waiting_counts, {});
}

bool RowBlock::Parse(std::span<const std::byte> bytes, std::uint32_t dimension,
                     std::uint32_t state_per_row) {
  if (bytes.size() < snapshot::kRowsHeadBytes) return false;
  std::uint32_t head[2];
  std::memcpy(head, bytes.data(), sizeof(head));
  const std::size_t n = head[0];
  // A block has at most 1 MiB, so no computation here overflows.
  const std::size_t row_bytes =
      snapshot::kRowFixedBytes + (std::size_t{dimension} + state_per_row) * sizeof(float);
  if (n == 0 || head[1] != 0 || n > bytes.size() / snapshot::kRowFixedBytes ||
      bytes.size() != snapshot::kRowsHeadBytes + n * row_bytes)
    return false;
  std::span<const std::byte> left = bytes.subspan(snapshot::kRowsHeadBytes);
  left = Get(left, n, &ids);
  left = Get(left, n, &stamps);
  left = Get(left, n, &counts);
  left = Get(left, n * dimension, &values);
  Get(left, n * state_per_row, &state);
  return std::is_sorted(ids.begin(), ids.end());
}

}  // namespace evergrad::ps_server
