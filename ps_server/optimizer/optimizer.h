// Runs an update rule on the server, over dense shards and over rows of tables. README.md of this
// room has formulas and defaults, rules.h has the rules, and common/optimizers has the descriptor
// of each type.
//
// All rules except rowwise_adagrad compute each element separately. rowwise_adagrad uses the mean
// over a row, and adds the elements of a row in a fixed order. If a variable is divided into
// partitions, updates therefore give the same bits as updates of the whole variable. An update is a
// pure function of (state, gradient, number of the update): it uses no clock and no random numbers.
// The bits are the same on every dispatch target: no fused multiply-add (FMA) is used, square root
// and division are correctly rounded, and no function of the C library is used if its result
// differs between processors. An Optimizer is constant once it is created, so any thread may use
// it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/optimizers/settings.h"
#include "ps_server/optimizer/rules.h"

namespace evergrad::ps_server::optimizer {

inline constexpr int kStatesMax = 2;

// Consecutive elements of a dense shard. For the values and for each state, `from` and `to` are the
// same array (in place) or disjoint arrays. The gradient overlaps neither `from` nor `to`.
struct ElementSpan {
  std::size_t size = 0;
  const float* gradient = nullptr;
  const float* value_from = nullptr;
  float* value_to = nullptr;
  const float* state_from[kStatesMax] = {};
  float* state_to[kStatesMax] = {};
};

// Rows of a table, updated in place. A row consists of its values, followed by its optimizer state.
// There are no duplicate rows, and no gradient overlaps a row.
struct Rows {
  std::size_t count = 0, dimension = 0;
  float* const* rows = nullptr;
  const float* const* gradients = nullptr;
  // If counts_per_row(), t[i] is the number of gradients that row i has received, including the
  // present one: 1, 2, ...
  const std::uint32_t* t = nullptr;
  // Rows of later calls, which are only prefetched. One row is prefetched after each update of a
  // row, because the memory is idle during the divisions of an update.
  std::size_t next_count = 0;
  float* const* next = nullptr;
};

class Optimizer {
 public:
  // Returns InvalidArgument if optimizers::Check refuses the settings.
  static absl::StatusOr<Optimizer> Create(const optimizers::Settings& settings);

  // Returns the number of states of a dense shard, such as moments and accumulators. A state has
  // one float for each value.
  int states() const { return states_; }
  // Returns the initial value of each float of state k.
  float state_initial(int k) const { return initial_[k]; }
  bool for_tables_only() const { return for_tables_only_; }
  // Returns true if an update contains values towards which the variable moves, in place of
  // gradients.
  bool is_moving_average() const { return is_moving_average_; }
  // Returns the number of floats after a row's `dimension` values. These floats are stored state by
  // state: `dimension` floats, or one float for a state with one float per row. The initial value
  // of each float is state_initial of its state.
  std::size_t state_per_row(std::size_t dimension) const {
    return static_cast<std::size_t>(states_) * dimension + static_cast<std::size_t>(row_states_);
  }
  void FillRowState(std::size_t dimension, float* state) const;
  // Returns true if an update depends on the number of earlier gradients of the row.
  bool counts_per_row() const { return counts_per_row_; }

  // The rule for update t, which is the same for all elements. t is the number of gradients of this
  // shard, including the present one: 1, 2, ...
  struct Step {
    Rule rule;
  };
  Step Begin(std::uint64_t t) const;
  void Apply(const Step& step, const ElementSpan& span) const;  // requires !for_tables_only()
  void ApplyRows(const Rows& rows) const;

 private:
  Rule rule_;
  int states_ = 0;      // number of states with one float per value
  int row_states_ = 0;  // number of states with one float per row
  float initial_[kStatesMax] = {};
  bool for_tables_only_ = false, is_moving_average_ = false, counts_per_row_ = false;
};

}  // namespace evergrad::ps_server::optimizer
