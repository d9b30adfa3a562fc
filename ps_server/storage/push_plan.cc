#include "ps_server/storage/push_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "ps_server/optimizer/prefetch.h"

namespace evergrad::ps_server::storage {
namespace {

// Bytes of rows that stay in the second-level cache from the plan to the update.
constexpr std::size_t kNearBytesMax = 128u << 10;

}  // namespace

absl::StatusOr<PushOutcome> PushPlan::Make(std::span<const std::int64_t> ids,
                                           std::uint64_t global_step) {
  const bool stamped = store_.stamped;
  if (global_step > std::numeric_limits<std::uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the global step does not fit 32 bits: table=", store_.settings.name,
                     " global_step=", global_step));
  }
  if (ids.size() >= kCountOnly) {
    return absl::InvalidArgumentError(
        absl::StrCat("too many ids in a push: table=", store_.settings.name, " ids=", ids.size()));
  }
  size_ = ids.size();
  outcome_ = {};
  step_before_ = store_.step;
  stamp_ = stamped ? static_cast<std::uint32_t>(global_step) : 0;
  stamped ? LookUp<true>(ids) : LookUp<false>(ids);
  evictor_.Begin({hashes_.data(), size_});

  Evictor::Growth growth;
  const bool resolved = stamped ? ResolveDeferred<true>(&growth) : ResolveDeferred<false>(&growth);
  outcome_.duplicates = duplicates_.positions().size();
  outcome_.rows_made = growth.rows;
  outcome_.rows_updated = size_ - outcome_.duplicates - outcome_.rows_made - outcome_.ids_waiting;
  store_.index_share.SetTo(store_.index.bytes());
  if (!resolved) {
    Cancel();
    return absl::ResourceExhaustedError(absl::StrCat(
        "out of memory for a table's index: table=", store_.settings.name, " rows=", store_.rows));
  }

  // Entries that are too old are always dropped. Other entries are dropped only if a limit would
  // otherwise be exceeded.
  if (size_ > 0) store_.step = std::max(store_.step, stamp_);
  evictor_.Expire(step_before_, &outcome_);
  if (absl::Status fits = evictor_.MakeSpace(growth, &outcome_); !fits.ok()) {
    Cancel();
    return fits;
  }
  return outcome_;
}

template <bool kStamped>
inline std::uint32_t PushPlan::RowIn(RowIndex::Line* line, std::uint32_t position) {
  if constexpr (kStamped)
    return RowIndex::Touch(line, hashes_[position], stamp_, &stamps_before_[position]);
  return RowIndex::RowIn<false>(line, hashes_[position]);
}

// Sets the targets of ids that are in their home lines, and appends the other ids to deferred_.
// Inserts nothing, so every home line keeps its address. No branch depends on the ids.
template <bool kStamped>
void PushPlan::LookUp(std::span<const std::int64_t> ids) {
  const std::size_t n = ids.size();
  if (hashes_.size() < n) hashes_.resize(n), targets_.resize(n), deferred_.resize(n);
  if (kStamped && stamps_before_.size() < n) stamps_before_.resize(n);
  duplicates_.Begin(n);
  const RowIndex::Homes homes = store_.index.homes();
  DuplicateIds::Marker marker = duplicates_.marker();
  std::uint64_t* const to_hash = hashes_.data();
  std::uint32_t* const to_target = targets_.data();
  Deferred* const to_deferred = deferred_.data();
  RowIndex::Line* ring[kRing][kGroup];
  std::size_t deferred = 0;
  // If a push has few ids, the rows that are prefetched here are still in the cache when the push
  // is applied.
  const std::size_t row_bytes = store_.row_floats * sizeof(float),
                    near = n * row_bytes <= kNearBytesMax ? row_bytes : 0;
  const std::size_t groups = (n + kGroup - 1) / kGroup;
  for (std::size_t turn = 0; turn < groups + kDelay; ++turn) {
    if (turn < groups) {
      RowIndex::Line** const to_home = ring[turn % kRing];
      const std::size_t first = turn * kGroup, size = std::min(kGroup, n - first);
      store_.HashesOf<kGroup>(ids.data() + first, size, to_hash + first);
      for (std::size_t k = 0; k < size; ++k) {
        const std::uint64_t hash = to_hash[first + k];
        RowIndex::Line* const home = homes.Of(hash);
        __builtin_prefetch(home, 0, 2);
        to_home[k] = home;
        marker.Mark(hash, first + k);
      }
    }
    if (turn < kDelay) continue;
    const std::size_t group = turn - kDelay, first = group * kGroup,
                      size = std::min(kGroup, n - first);
    RowIndex::Line* const* const home = ring[group % kRing];
    std::uint32_t* const target = to_target + first;
    for (std::size_t k = 0; k < size; ++k) {
      const auto position = static_cast<std::uint32_t>(first + k);
      const std::uint32_t row = RowIn<kStamped>(home[k], position);
      target[k] = row;
      to_deferred[deferred] = {home[k], position};
      deferred += row >= kWaiting;
      __builtin_prefetch(home[k] + (row >= kWaiting));
    }
    for (std::size_t k = 0; near != 0 && k < size; ++k) {
      if (target[k] < kWaiting) PrefetchRow<1>(store_.arena.At(target[k]), near);
    }
  }
  deferred_size_ = deferred;
  duplicates_.Find({to_hash, n}, marker.count);
  for (const std::uint32_t i : duplicates_.positions()) to_target[i] = kDuplicate;
}

// Sets the targets of the deferred ids, and inserts the absent ids. Returns false if the index is
// out of memory.
template <bool kStamped>
bool PushPlan::ResolveDeferred(Evictor::Growth* growth) {
  RowIndex& index = store_.index;
  const std::uint64_t homes_version = index.homes_version();
  for (std::size_t d = 0; d < deferred_size_; ++d) {
    if (d + kAheadRows < deferred_size_) __builtin_prefetch(deferred_[d + kAheadRows].home + 1);
    const std::uint32_t i = deferred_[d].position;
    if (targets_[i] == kDuplicate) continue;
    const std::uint64_t hash = hashes_[i];
    // If an insertion has made the index grow, its lines have moved.
    RowIndex::Line* const home =
        index.homes_version() == homes_version ? deferred_[d].home : index.Home(hash);
    // The next line is read first, because nearly all of these rows are in it, and a search with
    // Find costs more.
    if (const std::uint32_t row = RowIn<kStamped>(home + 1, i); row < kWaiting) {
      targets_[i] = row;
      continue;
    }
    RowIndex::Ref e = index.Find(home, hash);
    const bool waited = static_cast<bool>(e);
    if (waited && IsRow(e)) {
      targets_[i] = e.row();
      if (kStamped) {
        stamps_before_[i] = e.stamp();
        e.set_stamp(std::max(e.stamp(), stamp_));
      }
      continue;
    }
    if (!waited) {
      e = index.Insert(hash);
      if (!e) return false;
      e.set_row(kWaiting);
    }
    if (kStamped) stamps_before_[i] = e.stamp();
    if (CountOf(e) + 1 >= store_.settings.admit_after) {
      ++growth->rows;
      growth->rows_from_waiting += waited;
      targets_[i] = kNewRow;
    } else {
      growth->waiting += !waited;
      ++outcome_.ids_waiting;
      targets_[i] = kCountOnly;
    }
  }
  return true;
}

// Removes the entries that the plan has inserted into the index, and restores the stamps. Only the
// first position of a duplicate id is processed.
void PushPlan::Cancel() {
  for (std::size_t i = 0; i < size_; ++i) {
    const std::uint32_t target = targets_[i];
    if (target == kDuplicate || target == RowIndex::kNone || (target < kWaiting && !store_.stamped))
      continue;
    const RowIndex::Ref e = store_.index.Find(hashes_[i]);
    if (target < kWaiting) {
      e.set_stamp(stamps_before_[i]);
    } else if (CountOf(e) == 0) {
      store_.index.Erase(e);
    }
  }
  store_.step = step_before_;
  store_.Settle();
}

}  // namespace evergrad::ps_server::storage
