// The first half of a push to a table: everything that can fail, done before the table changes.
//
// Make looks up every id, finds duplicates, counts new rows and waiting ids, chooses the rows to
// evict (Evictor), and reserves all memory. PushApplier applies the plan and cannot fail. A plan
// may be made again after it was applied or cancelled; its arrays are reused. The class has a
// single writer, like the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "ps_server/storage/duplicate_ids.h"
#include "ps_server/storage/evictor.h"
#include "ps_server/storage/row_store.h"
#include "ps_server/storage/table_stats.h"

namespace evergrad::ps_server::storage {

class PushPlan {
 public:
  // The target of an id is the row of the arena that it updates, or one of these numbers. A
  // kDuplicate is skipped, because its gradient is added at the first position of its id.
  // The value of kDuplicate is a number of pushes that no waiting id ever has.
  static constexpr std::uint32_t kNewRow = kWaiting, kCountOnly = kWaiting | 1,
                                 kDuplicate = kWaiting | (kCountMax + 1);

  explicit PushPlan(RowStore* store)
      : store_(*store), evictor_(store) {}  // `store` outlives the plan

  // Plans a push of `ids` at `global_step`. After OK the index has an entry for every id that will
  // have a row or wait, and PushApplier or Cancel must follow. After an error the store is
  // unchanged. Returns ResourceExhausted as Evictor::MakeSpace does, and InvalidArgument if
  // global_step does not fit 32 bits, or if there are too many ids.
  absl::StatusOr<PushOutcome> Make(std::span<const std::int64_t> ids, std::uint64_t global_step);
  // Cancels the plan and restores the store.
  void Cancel();

  // --- Results of the last Make. A position is the index of an id in the push.
  std::size_t size() const { return size_; }
  const std::uint64_t* hashes() const { return hashes_.data(); }
  const std::uint32_t* targets() const { return targets_.data(); }
  // Returns the stamp of a row's entry before the push. Valid only if the store has stamps.
  std::uint32_t StampBefore(std::size_t position) const { return stamps_before_[position]; }
  std::uint32_t stamp() const { return stamp_; }  // 0 if the store has no stamps
  const DuplicateIds& duplicates() const { return duplicates_; }
  std::span<const std::uint64_t> dropped() const { return evictor_.dropped(); }  // hashes
  const PushOutcome& outcome() const { return outcome_; }

 private:
  // An id whose row was not found in its home line (row_index.h): the id is in a later line, waits,
  // or is absent.
  struct Deferred {
    RowIndex::Line* home;
    std::uint32_t position;
  };
  template <bool kStamped>
  void LookUp(std::span<const std::int64_t> ids);
  template <bool kStamped>
  bool ResolveDeferred(Evictor::Growth* growth);
  template <bool kStamped>
  std::uint32_t RowIn(RowIndex::Line* line, std::uint32_t position);

  RowStore& store_;
  Evictor evictor_;
  DuplicateIds duplicates_;
  std::size_t size_ = 0;
  std::vector<std::uint64_t> hashes_;
  std::vector<std::uint32_t> targets_;
  std::vector<std::uint32_t> stamps_before_;
  std::vector<Deferred> deferred_;
  std::size_t deferred_size_ = 0;
  std::uint32_t stamp_ = 0, step_before_ = 0;
  PushOutcome outcome_;
};

}  // namespace evergrad::ps_server::storage
