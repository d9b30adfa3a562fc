// The arithmetic of a plan: epoch, positions and batches as functions of a closure number. Pure.
// Worker and coordinator must agree on the results.
//
// A closure lies in one epoch. The last batch of a closure and the last closure of an epoch may be
// smaller than the others (LEDGER.md line 2).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"

namespace evergrad::plan {

struct PlanSpec {
  std::uint64_t train_examples = 0;
  std::uint32_t batch_size = 1;
  std::uint32_t steps_per_closure = 1;  // <= kUpdatesPerClosureMax
  std::uint32_t epochs = 1;
  bool shuffle = true;
  std::uint64_t shuffle_seed = 0;
  std::uint64_t eval_examples = 0;
  std::uint32_t eval_batch_size = 1;
  std::uint32_t eval_steps_per_closure = 1;
};

struct ClosureRange {
  std::uint32_t epoch = 0;  // 0-based
  std::uint64_t begin = 0;  // positions in the epoch's order, [begin, end)
  std::uint64_t end = 0;
  std::uint32_t steps = 0;  // updates of the closure
  std::uint64_t first_global_step = 0;
};

class Plan {
 public:
  // Returns InvalidArgument for no examples, sizes of zero, more than kUpdatesPerClosureMax steps
  // per closure, or overflow.
  static absl::StatusOr<Plan> Create(const PlanSpec& spec);
  const PlanSpec& spec() const { return spec_; }

  std::uint64_t closures_per_epoch() const { return closures_per_epoch_; }
  std::uint64_t closures() const { return closures_per_epoch_ * spec_.epochs; }
  std::uint64_t steps_per_epoch() const { return steps_per_epoch_; }
  std::uint64_t steps() const { return steps_per_epoch_ * spec_.epochs; }
  // Returns the range of closure `c`, which must be below closures().
  ClosureRange Closure(ClosureId c) const;
  // Returns the example indices of update u of closure c, in batch order. u must be below
  // Closure(c).steps.
  std::vector<std::uint64_t> Batch(ClosureId c, UpdateIndex u) const;
  std::uint64_t GlobalStep(ClosureId c, UpdateIndex u) const {
    return Closure(c).first_global_step + u.value();
  }

  // Evaluation closures have their own numbers, from 0 in each round. Evaluation closures read the
  // file in order, not shuffled.
  std::uint64_t eval_closures() const;
  ClosureRange EvalClosure(std::uint64_t n) const;  // epoch = 0, global step = 0

 private:
  PlanSpec spec_;
  std::uint64_t steps_per_epoch_ = 0;
  std::uint64_t closures_per_epoch_ = 0;
};

}  // namespace evergrad::plan
