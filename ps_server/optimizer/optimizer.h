// Runs an update rule on the server, over dense shards and over rows of tables. README.md of this
// room has the formulas and defaults, rules.h the rules themselves, and common/optimizers all other
// properties of a type.
//
// The rules are element-wise, except that rowwise_adagrad takes the mean of a row in a fixed order.
// Therefore a shard of any partitioning computes the bits of the whole variable. Pure: (state,
// gradient, t) -> state, without clock and randomness. The bits are the same on every dispatch
// target: there is no FMA, square root and division are correctly rounded, and no function of the C
// library is used that differs between processors. An Optimizer is constant once it is created, so
// any thread may use it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/optimizers/settings.h"
#include "ps_server/optimizer/rules.h"

namespace evergrad::ps_server::optimizer {

inline constexpr int kSlotsMax = 2;

// One run of elements. For values and for each slot, from and to are equal (in place) or disjoint.
// The gradient overlaps neither.
struct Run {
  std::size_t size = 0;
  const float* gradient = nullptr;
  const float* value_from = nullptr;
  float* value_to = nullptr;
  const float* slot_from[kSlotsMax] = {};
  float* slot_to[kSlotsMax] = {};
};

// Rows of a table, updated in place. A row is its values, followed by its numbers. There are no
// duplicate rows, and no gradient overlaps a row.
struct Rows {
  std::size_t count = 0, dimension = 0;
  float* const* rows = nullptr;
  const float* const* gradients = nullptr;
  // For counts_per_row(): the number of gradients of each row, including this one: 1, 2, ...
  const std::uint32_t* t = nullptr;
  // Rows that are updated later and are not changed here. After each updated row, one of them is
  // prefetched, because the divisions leave the memory time for it.
  std::size_t next_count = 0;
  float* const* next = nullptr;
};

class Optimizer {
 public:
  // InvalidArgument if optimizers::Check refuses the settings.
  static absl::StatusOr<Optimizer> Create(const optimizers::Settings& settings);

  // The number of slots of a dense shard; each slot has one number per value.
  int slots() const { return slots_; }
  // The initial value of each number of slot k.
  float slot_initial(int k) const { return initial_[k]; }
  bool for_tables_only() const { return for_tables_only_; }
  // Returns whether its updates are values towards which a variable moves, not gradients.
  bool is_moving_average() const { return is_moving_average_; }
  // The number of floats that follow a row's `dimension` values. They are ordered by slot:
  // `dimension` floats for each, or one for a slot with one number per row. Their initial values
  // are slot_initial of their slot.
  std::size_t row_numbers(std::size_t dimension) const {
    return static_cast<std::size_t>(slots_) * dimension + static_cast<std::size_t>(row_slots_);
  }
  void FillRowNumbers(std::size_t dimension, float* numbers) const;
  // Returns whether the update depends on the number of gradients that the row has had.
  bool counts_per_row() const { return counts_per_row_; }

  // The rule for update t, which is the same for all elements. t is the number of gradients of this
  // shard, including this one: 1, 2, ...
  struct Step {
    Rule rule;
  };
  Step Begin(std::uint64_t t) const;
  // Not for an optimizer that is for_tables_only().
  void Apply(const Step& step, const Run& run) const;
  void ApplyRows(const Rows& rows) const;

 private:
  Rule rule_;
  int slots_ = 0;      // number of slots with one number per value
  int row_slots_ = 0;  // number of slots with one number per row
  float initial_[kSlotsMax] = {};
  bool for_tables_only_ = false, is_moving_average_ = false, counts_per_row_ = false;
};

}  // namespace evergrad::ps_server::optimizer
