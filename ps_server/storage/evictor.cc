#include "ps_server/storage/evictor.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/optimizers/registry.h"

namespace evergrad::ps_server::storage {
namespace {

using Entry = RowIndex::Entry;

// The index is searched in this many parts; all parts are searched within ttl / 8 steps.
constexpr std::uint64_t kSweepParts = 64;
// A push that drops entries drops at least 1/64 of the table. Otherwise a full table would be
// scanned for each push, and a scan costs more than a push.
constexpr std::uint64_t kBatchParts = 64;

struct Aged {
  std::uint32_t stamp;
  std::int64_t id;
  std::uint64_t hash;
  friend bool operator<(const Aged& a, const Aged& b) {
    return a.stamp != b.stamp ? a.stamp < b.stamp : a.id < b.id;
  }
};

}  // namespace

void Evictor::Begin(std::span<const std::uint64_t> named) {
  named_ = named;
  positions_ready_ = false;
  dropped_.clear();
}

bool Evictor::IsNamed(std::uint64_t hash) {
  const auto hash_at = [this](std::uint32_t position) { return named_[position]; };
  if (!std::exchange(positions_ready_, true)) {
    positions_.Begin(named_.size());
    for (std::size_t i = 0; i < named_.size(); ++i)
      positions_.FindOrAdd(named_[i], static_cast<std::uint32_t>(i), hash_at);
  }
  return positions_.Find(hash, hash_at) != HashPositions::kNone;
}

// Searches one of kSweepParts parts of the index each time that the table's time passes a multiple
// of ttl / 8 / kSweepParts steps.
void Evictor::Expire(std::uint32_t step_before, PushOutcome* outcome) {
  const std::uint64_t ttl = store_.settings.ttl_steps;
  if (ttl == 0 || store_.step == step_before) return;
  const std::uint64_t period = std::max<std::uint64_t>(1, ttl / 8);
  const std::uint64_t before = step_before * kSweepParts / period,
                      now = store_.step * kSweepParts / period;
  for (std::uint64_t tick = now - before >= kSweepParts ? now - kSweepParts + 1 : before + 1;
       tick <= now; ++tick)
    ExpirePart(tick % kSweepParts, outcome);
}

void Evictor::ExpirePart(std::uint64_t part, PushOutcome* outcome) {
  constexpr int kShift = 58;
  static_assert(kSweepParts == 1ull << (64 - kShift));
  store_.index.ForEachFrom(part << kShift, [&](const Entry& e) {
    if (e.hash >> kShift != part) return false;
    if (e.stamp + store_.settings.ttl_steps >= store_.step || IsNamed(e.hash)) return true;
    dropped_.push_back(e.hash);
    ++(IsRow(e) ? outcome->evicted_ttl : outcome->waiting_dropped);
    return true;
  });
}

absl::Status Evictor::Refusal(absl::string_view why, absl::string_view details) const {
  return absl::ResourceExhaustedError(absl::StrCat(why, ": table=", store_.settings.name, details));
}

absl::Status Evictor::MakeSpace(const Growth& growth, PushOutcome* outcome) {
  Space space;
  space.after.rows = store_.rows - outcome->evicted_ttl + growth.rows;
  space.after.waiting =
      store_.waiting - outcome->waiting_dropped - growth.rows_from_waiting + growth.waiting;
  space.evictable.rows = space.after.rows - outcome->rows_updated - growth.rows;
  space.evictable.waiting = space.after.waiting - outcome->ids_waiting;
  if (growth.any()) {
    EG_RETURN_IF_ERROR(FitBytesMax(growth, &space));
    EG_RETURN_IF_ERROR(FitServerLimit(growth, *outcome, &space));
  }
  if (!store_.arena.Reserve(
          std::min(growth.rows, store_.arena.free_rows() + MoreArenaRows(growth, *outcome, space))))
    return Refusal("out of memory for a table's rows", absl::StrCat(" rows=", store_.rows));
  Entries& drop = space.drop;
  if (drop.waiting > 0)
    drop.waiting =
        std::min(std::max(drop.waiting, store_.waiting / kBatchParts), space.evictable.waiting);
  if (drop.rows > 0)
    drop.rows = std::min(std::max(drop.rows, store_.rows / kBatchParts), space.evictable.rows);
  if (drop.waiting > 0) DropOldest(false, drop.waiting);
  if (drop.rows > 0) DropOldest(true, drop.rows);
  outcome->waiting_dropped += drop.waiting;
  outcome->evicted_lru = drop.rows;
  return absl::OkStatus();
}

// Applies bytes_max, which limits the size of the table's rows and ids.
absl::Status Evictor::FitBytesMax(const Growth& growth, Space* space) const {
  const std::uint64_t bytes_max = store_.settings.bytes_max;
  const std::uint64_t bytes = store_.bytes_of(space->after.rows, space->after.waiting);
  if (bytes_max == 0 || bytes <= bytes_max) return absl::OkStatus();
  const std::uint64_t over = bytes - bytes_max, row_bytes = store_.bytes_of(1, 0);
  Entries& drop = space->drop;
  drop.waiting =
      std::min((over + optimizers::kIndexBytesPerRow - 1) / optimizers::kIndexBytesPerRow,
               space->evictable.waiting);
  if (const std::uint64_t freed = drop.waiting * optimizers::kIndexBytesPerRow; freed < over)
    drop.rows = (over - freed + row_bytes - 1) / row_bytes;
  if (drop.rows == 0 || (store_.settings.evict_lru && drop.rows <= space->evictable.rows))
    return absl::OkStatus();
  return Refusal("the table is above bytes_max",
                 absl::StrCat(" held=", store_.bytes_of(store_.rows, store_.waiting),
                              " partition_bytes_max=", bytes_max, " rows=", store_.rows,
                              " wanted=", growth.rows + growth.waiting));
}

// Returns the number of rows by which the arena must grow.
std::uint64_t Evictor::MoreArenaRows(const Growth& growth, const PushOutcome& outcome,
                                     const Space& space) const {
  const std::uint64_t free = store_.arena.free_rows() + outcome.evicted_ttl + space.drop.rows;
  return growth.rows > free ? growth.rows - free : 0;
}

// Applies the server's limit, which limits the memory that all tables hold.
absl::Status Evictor::FitServerLimit(const Growth& growth, const PushOutcome& outcome,
                                     Space* space) {
  if (!store_.index_share.over_limit() &&
      store_.arena_share.TryGrowTo(
          store_.ChargedBytes(store_.arena.high_water() + MoreArenaRows(growth, outcome, *space))))
    return absl::OkStatus();
  Entries& drop = space->drop;
  drop.waiting = std::min(std::max(drop.waiting, growth.entries()), space->evictable.waiting);
  drop.rows += MoreArenaRows(growth, outcome, *space);
  if (const std::uint64_t entries = outcome.evicted() + outcome.waiting_dropped + drop.waiting;
      entries < growth.entries())
    drop.rows = std::max(drop.rows, growth.entries() - entries);
  if (drop.rows == 0 || (store_.settings.evict_lru && drop.rows <= space->evictable.rows))
    return absl::OkStatus();
  const MemoryBudget& budget = store_.index_share.budget();
  return Refusal("the server's tables are above memory_bytes_max",
                 absl::StrCat(" held=", budget.used(), " memory_bytes_max=", budget.limit(),
                              " rows=", store_.rows, " wanted=", growth.rows + growth.waiting));
}

// Chooses the `count` oldest entries. The caller has checked that this many entries can be dropped.
void Evictor::DropOldest(bool rows, std::uint64_t count) {
  const absl::flat_hash_set<std::uint64_t> gone(dropped_.begin(), dropped_.end());
  // A histogram of the stamps is made first, so that only few entries are compared, and the
  // function needs little memory.
  std::uint32_t least = ~0u, most = 0;
  store_.index.ForEach([&](const Entry& e) {
    if (IsRow(e) == rows) least = std::min(least, e.stamp), most = std::max(most, e.stamp);
  });
  constexpr int kBits = 12;
  const int shift = std::max(0, static_cast<int>(std::bit_width(most - least)) - kBits);
  std::vector<std::uint64_t> histogram(1u << kBits);
  store_.index.ForEach([&](const Entry& e) {
    if (IsRow(e) == rows) ++histogram[(e.stamp - least) >> shift];
  });
  // Some of the oldest entries cannot be chosen, because the push names them or because they are
  // dropped already. The histogram is therefore summed up to more than `count` entries.
  const std::uint64_t enough = count + named_.size() + gone.size();
  std::uint32_t last = 0;
  for (std::uint64_t sum = histogram[0]; sum < enough && last + 1 < histogram.size();
       sum += histogram[last])
    ++last;
  std::vector<Aged> candidates;
  store_.index.ForEach([&](const Entry& e) {
    if (IsRow(e) == rows && (e.stamp - least) >> shift <= last && !IsNamed(e.hash) &&
        (gone.empty() || !gone.contains(e.hash)))
      candidates.push_back({e.stamp, store_.IdOf(e.hash), e.hash});
  });
  EG_CHECK(candidates.size() >= count);
  std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(count - 1),
                   candidates.end());
  for (std::uint64_t i = 0; i < count; ++i) dropped_.push_back(candidates[i].hash);
}

}  // namespace evergrad::ps_server::storage
