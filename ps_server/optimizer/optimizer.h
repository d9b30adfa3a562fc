// Runs an update rule on the server, over dense shards and over rows of tables. Formulas and
// defaults: README.md of this room; the rules themselves: rules.h; what else is known of a type:
// common/optimizers.
//
// The rules are element-wise, except that rowwise_adagrad takes the mean of a row in a fixed order,
// so a shard of any cut computes the bits of the uncut variable. Pure: (state, gradient, t) ->
// state, without clock and randomness. The bits are the same on every dispatch target: there is no
// FMA, square root and division are correctly rounded, and no function of the C library is used
// that differs between processors. An Optimizer is constant once it is created, so any thread may
// use it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/optimizers/settings.h"
#include "ps_server/optimizer/rules.h"

namespace evergrad::ps_server::optimizer {

inline constexpr int kSlotsMax = 2;

// One run of elements. from == to (in place) or disjoint, for values and for each slot; the
// gradient overlaps neither.
struct Run {
  std::size_t size = 0;
  const float* gradient = nullptr;
  const float* value_from = nullptr;
  float* value_to = nullptr;
  const float* slot_from[kSlotsMax] = {};
  float* slot_to[kSlotsMax] = {};
};

// Rows of a table, updated in place. A row is its values and behind them its numbers; no row is
// there twice, no gradient overlaps a row.
struct Rows {
  std::size_t count = 0, dimension = 0;
  float* const* rows = nullptr;
  const float* const* gradients = nullptr;
  const std::uint32_t* t =
      nullptr;  // counts_per_row(): of each row, this gradient included: 1, 2, ...
  // Rows that come later, not touched: the memory is asked for one of them after each that is
  // updated, for divisions leave it time.
  std::size_t next_count = 0;
  float* const* next = nullptr;
};

class Optimizer {
 public:
  // InvalidArgument: optimizers::Check.
  static absl::StatusOr<Optimizer> Create(const optimizers::Settings& settings);

  // Slots of a dense shard, each with one number for each value.
  int slots() const { return slots_; }
  // The initial value of each number of slot k.
  float slot_initial(int k) const { return initial_[k]; }
  bool for_tables_only() const { return for_tables_only_; }
  // Its updates are not gradients but values towards which a variable moves.
  bool is_moving_average() const { return is_moving_average_; }
  // Floats behind a row's `dimension` values: slot by slot, `dimension` each, or one for a slot
  // with one number per row. They begin with slot_initial of their slot.
  std::size_t row_numbers(std::size_t dimension) const {
    return static_cast<std::size_t>(slots_) * dimension + static_cast<std::size_t>(row_slots_);
  }
  void FillRowNumbers(std::size_t dimension, float* numbers) const;
  // The update depends on how many gradients the row has had.
  bool counts_per_row() const { return counts_per_row_; }

  // The rule for update t, which is the same for all elements. t counts the gradients of this
  // shard, this one included: 1, 2, ...
  struct Step {
    Rule rule;
  };
  Step Begin(std::uint64_t t) const;
  void Apply(const Step& step, const Run& run) const;  // not for_tables_only()
  void ApplyRows(const Rows& rows) const;

 private:
  Rule rule_;
  int slots_ = 0;      // with one number per value
  int row_slots_ = 0;  // with one number per row
  float initial_[kSlotsMax] = {};
  bool for_tables_only_ = false, is_moving_average_ = false, counts_per_row_ = false;
};

}  // namespace evergrad::ps_server::optimizer
