#include "ps_server/storage/push_applier.h"

#include <algorithm>

#include "common/tensor/convert.h"
#include "ps_server/optimizer/prefetch.h"

namespace evergrad::ps_server::storage {

void PushApplier::Begin(TableCut* cut) {
  next_ = 0;
  const std::span<const std::uint64_t> dropped = plan_.dropped();
  for (std::size_t i = 0; i < dropped.size(); ++i) {
    if (i + kAheadRows < dropped.size()) store_.index.AskFor(dropped[i + kAheadRows]);
    Drop(dropped[i], cut);
  }
}

void PushApplier::Drop(std::uint64_t hash, TableCut* cut) {
  const RowIndex::Ref e = store_.index.Find(hash);
  const bool save = cut != nullptr && cut->Concerns(hash);
  if (IsRow(e)) {
    if (save) cut->SaveRow(hash, e.row(), e.stamp());
    store_.arena.Free(e.row());
    --store_.rows;
  } else {
    if (save) cut->SaveWaiting(hash, CountOf(e), e.stamp());
    --store_.waiting;
  }
  store_.index.Erase(e);
}

// The work of one call of Continue. Rows are updated in groups. While one group is updated, the
// rows of the next groups are prefetched.
class PushApplier::Piece {
 public:
  Piece(PushApplier* applier, tensor::WireType wire, const std::byte* gradient,
        std::uint64_t bytes_max, TableCut* cut)
      : applier_(*applier),
        store_(applier->store_),
        plan_(applier->plan_),
        cut_(cut),
        wire_(wire),
        gradient_(gradient),
        bytes_max_(bytes_max),
        dimension_(store_.dimension),
        has_duplicates_(plan_.duplicates().any()),
        convert_(wire != tensor::WireType::kFloat32 ||
                 reinterpret_cast<std::uintptr_t>(gradient) % alignof(float) != 0),
        counts_(store_.update.counts_per_row()) {
    if (has_duplicates_ || convert_) applier_.sums_.resize((kRing * kGroup + 1) * dimension_);
  }

  // Returns the bytes that were applied.
  std::uint64_t Run() {
    const std::size_t row_bytes = store_.row_floats * sizeof(float);
    for (std::size_t step = 0;; ++step) {
      Fill(step % kRing);
      const Group& next = groups_[step % kRing];
      if (step < kDelay) {
        for (std::size_t k = 0; k < next.count; ++k) PrefetchRow<1>(next.rows[k], row_bytes);
        continue;
      }
      const Group& group = groups_[(step - kDelay) % kRing];
      if (group.count == 0) return bytes_;  // all later groups are empty, too
      store_.update.ApplyRows(
          {group.count, dimension_, group.rows, group.gradients, group.t, next.count, next.rows});
    }
  }

 private:
  struct Group {
    float* rows[kGroup];
    const float* gradients[kGroup];
    std::uint32_t t[kGroup];
    std::size_t count = 0;
  };

  void Fill(std::size_t which) {
    Group& group = groups_[which];
    group.count = 0;
    if (cut_ == nullptr && !counts_ && !has_duplicates_ && !convert_) AddKnownRows(&group);
    AddRows(which * kGroup, &group);
  }

  // Adds the rows of the next ids, and stops at the first id without a row. Such an id needs more
  // work than an update of floats at a known address.
  void AddKnownRows(Group* group) {
    const std::size_t next = applier_.next_;
    // The limit `bytes_max_` may be exceeded by a part of one row, so that each call of Continue
    // makes progress.
    const std::uint64_t left =
        bytes_ < bytes_max_ ? (bytes_max_ - bytes_ - 1) / (dimension_ * sizeof(float)) + 1 : 0;
    const auto end = static_cast<std::size_t>(
        std::min<std::uint64_t>(left, std::min(kGroup, plan_.size() - next)));
    const std::uint32_t* const targets = plan_.targets() + next;
    const float* const gradients = reinterpret_cast<const float*>(gradient_) + next * dimension_;
    std::size_t k = 0;
    for (; k < end && targets[k] < PushPlan::kNewRow; ++k) {
      group->rows[k] = store_.arena.At(targets[k]);
      group->gradients[k] = gradients + k * dimension_;
    }
    group->count = k;
    applier_.next_ += k;
    bytes_ += k * dimension_ * sizeof(float);
  }

  // Adds rows of any kind. `first_sum` is the group's first place in sums_.
  void AddRows(std::size_t first_sum, Group* group) {
    const std::uint32_t* const targets = plan_.targets();
    const std::uint64_t* const hashes = plan_.hashes();
    const std::size_t size = plan_.size();
    const bool counts = counts_;
    std::size_t next = applier_.next_, count = group->count;
    while (next < size && count < kGroup && bytes_ < bytes_max_) {
      const std::size_t i = next++;
      if (i + kAheadRows < size && targets[i + kAheadRows] >= PushPlan::kNewRow)
        store_.index.AskFor(hashes[i + kAheadRows]);
      std::uint32_t row = targets[i];
      if (row == PushPlan::kDuplicate) continue;
      const float* const gradient = GradientOf(i, first_sum + count);
      if (row == PushPlan::kCountOnly) {
        CountPush(hashes[i]);
        continue;
      }
      if (row == PushPlan::kNewRow) {
        row = MakeRow(hashes[i]);
      } else if (cut_ != nullptr && cut_->Concerns(hashes[i])) {
        cut_->SaveRow(hashes[i], row, store_.stamped ? plan_.StampBefore(i) : 0);
      }
      group->rows[count] = store_.arena.At(row);
      group->gradients[count] = gradient;
      if (counts) {
        std::uint32_t& gradients_seen = store_.arena.Count(row);
        gradients_seen += gradients_seen != ~0u;
        group->t[count] = gradients_seen;
      }
      ++count;
    }
    applier_.next_ = next;
    group->count = count;
  }

  // Returns the gradient of an id as float32, summed over its duplicates. The result points into
  // the push, or into sums_ if the gradient was converted or summed.
  const float* GradientOf(std::size_t i, std::size_t place) {
    float* const sum =
        has_duplicates_ || convert_ ? applier_.sums_.data() + place * dimension_ : nullptr;
    const float* const own = FloatsOf(i, sum);
    bytes_ += dimension_ * sizeof(float);
    if (!has_duplicates_ || plan_.duplicates().NextOf(i) == DuplicateIds::kNone) return own;
    if (own != sum) std::copy_n(own, dimension_, sum);
    float* const converted = applier_.sums_.data() + kRing * kGroup * dimension_;
    for (std::uint32_t d = plan_.duplicates().NextOf(i); d != DuplicateIds::kNone;
         d = plan_.duplicates().NextOf(d)) {
      const float* const other = FloatsOf(d, converted);
      for (std::size_t k = 0; k < dimension_; ++k) sum[k] += other[k];
      bytes_ += dimension_ * sizeof(float);
    }
    return sum;
  }

  const float* FloatsOf(std::size_t i, float* converted) const {
    if (!convert_) return reinterpret_cast<const float*>(gradient_) + i * dimension_;
    tensor::Widen(wire_, gradient_ + i * dimension_ * tensor::WireBytes(wire_), dimension_,
                  converted);
    return converted;
  }

  // Counts a push to a waiting id that is not admitted yet.
  void CountPush(std::uint64_t hash) {
    const RowIndex::Ref e = store_.index.Find(hash);
    const std::uint32_t before = CountOf(e);
    const bool concerns = cut_ != nullptr && cut_->Concerns(hash);
    if (before > 0 && concerns) cut_->SaveWaiting(hash, before, e.stamp());
    if (before == 0) {
      ++store_.waiting;
      if (concerns) cut_->LeaveOutWaiting(hash);
    }
    e.set_row(kWaiting | (before + 1));
    if (store_.stamped) e.set_stamp(std::max(e.stamp(), plan_.stamp()));
  }

  std::uint32_t MakeRow(std::uint64_t hash) {
    const RowIndex::Ref e = store_.index.Find(hash);
    if (const std::uint32_t count = CountOf(e); count > 0) {
      if (cut_ != nullptr && cut_->Concerns(hash)) cut_->SaveWaiting(hash, count, e.stamp());
      --store_.waiting;
    }
    const std::uint32_t row = store_.arena.Take();
    e.set_row(row);
    if (store_.stamped) e.set_stamp(std::max(e.stamp(), plan_.stamp()));
    ++store_.rows;
    if (cut_ != nullptr) cut_->LeaveOutRow(row);
    float* const at = store_.arena.At(row);
    store_.FillInitial(hash, at);
    store_.update.FillRowState(dimension_, at + dimension_);
    return row;
  }

  PushApplier& applier_;
  RowStore& store_;
  const PushPlan& plan_;
  TableCut* const cut_;
  const tensor::WireType wire_;
  const std::byte* const gradient_;
  const std::uint64_t bytes_max_;
  const std::size_t dimension_;
  const bool has_duplicates_, convert_, counts_;
  std::uint64_t bytes_ = 0;
  Group groups_[kRing];
};

std::uint64_t PushApplier::Continue(tensor::WireType wire, const std::byte* gradient,
                                    std::uint64_t bytes_max, TableCut* cut) {
  const std::uint64_t bytes = Piece(this, wire, gradient, bytes_max, cut).Run();
  if (done()) store_.Settle();
  return bytes;
}

}  // namespace evergrad::ps_server::storage
