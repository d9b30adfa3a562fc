#include "ps_server/storage/table_cut.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "ps_server/optimizer/prefetch.h"

namespace evergrad::ps_server::storage {
namespace {

// Limit of index entries that are visited for one slice.
constexpr std::uint64_t kVisitsMax = 64 * 1024;
constexpr std::uint64_t kPreimageSliceBytes = 1u << 20;

}  // namespace

std::uint64_t TableSlice::bytes() const {
  return (ids.size() + waiting_ids.size()) * kSliceIdBytes +
         (values.size() + state.size()) * sizeof(float);
}

void TableSlice::clear() {
  ids.clear(), stamps.clear(), counts.clear(), values.clear(), state.clear();
  waiting_ids.clear(), waiting_stamps.clear(), waiting_counts.clear();
}

TableCut::TableCut(const RowStore* store, std::uint64_t preimage_bytes_max)
    : store_(store), preimage_bytes_max_(preimage_bytes_max) {
  left_out_rows_.Resize(store->arena.high_water());
}

bool TableCut::NextSlice(std::uint64_t bytes_max, TableSlice* slice) {
  slice->clear();
  if (lost_) return false;
  // Preimages are returned first, so that their memory is free for further preimages.
  if (TakePreimages(slice)) return !walked_ || !preimages_.empty();
  if (walked_) return false;
  Walk(bytes_max, slice);
  return !walked_;
}

bool TableCut::TakePreimages(TableSlice* slice) {
  if (preimages_.empty()) return false;
  std::swap(*slice, preimages_.front());
  preimages_.pop_front();
  preimage_bytes_ -= std::min(preimage_bytes_, slice->bytes());
  return true;
}

void TableCut::Walk(std::uint64_t bytes_max, TableSlice* slice) {
  const std::uint64_t row_bytes = kSliceIdBytes + store_->row_floats * sizeof(float);
  std::uint64_t bytes = 0, visits = 0;
  picked_.clear();
  walked_ = store_->index.ForEachFrom(cursor_, [&](const RowIndex::Entry& e) {
    if (bytes + row_bytes > bytes_max && bytes > 0) return false;
    if (++visits > kVisitsMax) return false;
    cursor_ = e.hash + 1;
    if (IsRow(e)) {
      if (left_out_rows_.Get(e.row)) return true;
      picked_.push_back(e);
      bytes += row_bytes;
    } else if (!left_out_waiting_.contains(e.hash)) {
      AppendWaiting(e.hash, CountOf(e), e.stamp, slice);
      bytes += kSliceIdBytes;
    }
    return true;
  });
  for (std::size_t i = 0; i < picked_.size(); ++i) {
    if (i + kAheadRows < picked_.size())
      PrefetchRow<0>(store_->arena.At(picked_[i + kAheadRows].row),
                     store_->row_floats * sizeof(float));
    AppendRow(picked_[i].hash, picked_[i].row, picked_[i].stamp, slice);
  }
}

void TableCut::SaveRow(std::uint64_t hash, std::uint32_t row, std::uint32_t stamp) {
  if (left_out_rows_.Get(row)) return;
  TableSlice* const slice = PreimageSlice(kSliceIdBytes + store_->row_floats * sizeof(float));
  if (slice == nullptr) return;
  AppendRow(hash, row, stamp, slice);
  left_out_rows_.Set(row);
}

void TableCut::SaveWaiting(std::uint64_t hash, std::uint32_t count, std::uint32_t stamp) {
  if (!LeaveOutWaiting(hash)) return;
  TableSlice* const slice = PreimageSlice(kSliceIdBytes);
  if (slice != nullptr) AppendWaiting(hash, count, stamp, slice);
}

bool TableCut::LeaveOutWaiting(std::uint64_t hash) {
  if (left_out_waiting_.contains(hash)) return false;
  // An excluded id counts as many bytes as an id in a slice.
  preimage_bytes_ += kSliceIdBytes;
  left_out_waiting_.insert(hash);
  return PreimageSlice(0) != nullptr;
}

void TableCut::LeaveOutRow(std::uint32_t row) {
  if (!IsWalking()) return;
  if (row >= left_out_rows_.size()) left_out_rows_.Resize(std::bit_ceil(row + 1ull));
  left_out_rows_.Set(row);
}

TableSlice* TableCut::PreimageSlice(std::uint64_t bytes) {
  if (preimage_bytes_ + bytes > preimage_bytes_max_) {
    Lose();
    return nullptr;
  }
  preimage_bytes_ += bytes;
  if (preimages_.empty() || preimages_.back().bytes() >= kPreimageSliceBytes)
    preimages_.emplace_back();
  return &preimages_.back();
}

void TableCut::Lose() {
  lost_ = true;
  left_out_rows_ = Bits();
  left_out_waiting_ = absl::flat_hash_set<std::uint64_t>();
  preimages_.clear();
  picked_ = std::vector<RowIndex::Entry>();
}

void TableCut::AppendRow(std::uint64_t hash, std::uint32_t row, std::uint32_t stamp,
                         TableSlice* slice) const {
  const float* const at = store_->arena.At(row);
  slice->ids.push_back(store_->IdOf(hash));
  slice->stamps.push_back(stamp);
  slice->counts.push_back(store_->update.counts_per_row() ? store_->arena.Count(row) : 0);
  slice->values.insert(slice->values.end(), at, at + store_->dimension);
  slice->state.insert(slice->state.end(), at + store_->dimension, at + store_->row_floats);
}

void TableCut::AppendWaiting(std::uint64_t hash, std::uint32_t count, std::uint32_t stamp,
                             TableSlice* slice) const {
  slice->waiting_ids.push_back(store_->IdOf(hash));
  slice->waiting_stamps.push_back(stamp);
  slice->waiting_counts.push_back(count);
}

}  // namespace evergrad::ps_server::storage
