// The second half of a push to a table: applies a PushPlan. No function of this class can fail.
//
// The class has a single writer, like the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/tensor/wire_type.h"
#include "ps_server/storage/push_plan.h"
#include "ps_server/storage/row_store.h"
#include "ps_server/storage/table_cut.h"

namespace evergrad::ps_server::storage {

class PushApplier {
 public:
  // Store and plan outlive the applier.
  PushApplier(RowStore* store, const PushPlan* plan) : store_(*store), plan_(*plan) {}

  // Begins to apply the plan: drops the rows and waiting ids that the plan chose. Here and in
  // Continue, `cut` saves entries before they change. `cut` is null if the table has no cut.
  void Begin(TableCut* cut);
  // Applies at least one row, and at most about `bytes_max` bytes of gradient. `gradient` has the
  // rows of all ids of the plan, in the order of the plan and of type `wire`. `gradient` may have
  // any alignment. Returns the bytes of float32 gradient that were applied.
  std::uint64_t Continue(tensor::WireType wire, const std::byte* gradient, std::uint64_t bytes_max,
                         TableCut* cut);
  bool done() const { return next_ == plan_.size(); }

 private:
  class Piece;
  void Drop(std::uint64_t hash, TableCut* cut);

  RowStore& store_;
  const PushPlan& plan_;
  std::size_t next_ = 0;  // position of the next id
  // The gradients that had to be converted to float32 or summed over duplicates, for all groups
  // that are in progress, and space for one gradient that is being added.
  std::vector<float> sums_;
};

}  // namespace evergrad::ps_server::storage
