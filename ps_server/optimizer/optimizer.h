// Update rules that run on the server, for dense shards and for rows of tables. Formulas and
// defaults: README.md of this room.
//
// Element-wise (but for the row's mean of rowwise_adagrad, whose order is fixed), so a shard of any
// cut computes the bits of the uncut variable. Pure: (state, gradient, t) -> state, no clock, no
// randomness; the same bits on every dispatch target (no FMA, square root and division correctly
// rounded, no C library functions that differ between processors).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/optimizers/settings.h"

namespace evergrad::ps_server {

namespace optimizer {

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
  // InvalidArgument: unknown type, numbers out of range.
  static absl::StatusOr<Optimizer> Create(const optimizers::Settings& settings);
  // sgd 0, or 1 with momentum (velocity); adam, adamw 2 (m, v); adagrad 1 (accumulator); rmsprop 1
  // (rms), or 2 with momentum (rms, momentum); ftrl 2 (accumulator, linear); moving_average 0;
  // counting 1. rowwise_adagrad has none for a dense shard: for_tables_only().
  int slots() const { return slots_; }
  // What slot k begins with: initial_accumulator_value, or 0.
  float slot_initial(int k) const { return k == 0 ? first_initial_ : 0.0f; }
  bool for_tables_only() const { return kind_ == Kind::kRowwiseAdagrad; }
  // Its updates are no gradients but values that it moves towards.
  bool is_moving_average() const { return kind_ == Kind::kMovingAverage; }
  // Floats behind a row's `dimension` values: slot by slot, `dimension` each; rowwise_adagrad: one.
  // They begin with slot_initial of their slot.
  std::size_t row_numbers(std::size_t dimension) const {
    return for_tables_only() ? 1 : static_cast<std::size_t>(slots_) * dimension;
  }
  void FillRowNumbers(std::size_t dimension, float* numbers) const;
  // adam, adamw: the update depends on how many gradients the row has had.
  bool counts_per_row() const { return kind_ == Kind::kAdam || kind_ == Kind::kAdamW; }

  // Numbers of update t that do not depend on the element. t counts the gradients of this shard,
  // this one included: 1, 2, ...
  struct Step {
    float rate = 0;
  };
  Step Begin(std::uint64_t t) const;
  void Apply(const Step& step, const Run& run) const;  // not for_tables_only()
  void ApplyRows(const Rows& rows) const;

 private:
  enum class Kind {
    kSgd,
    kMomentum,
    kNesterov,
    kAdam,
    kAdamW,
    kAdagrad,
    kRowwiseAdagrad,
    kRmsprop,
    kRmspropMomentum,
    kFtrl,
    kFtrlPower,
    kMovingAverage,
    kCounting
  };
  // Calls `with` with the update rule of kind_, a function of one element.
  template <class With>
  void WithRule(const Step& step, With with) const;

  Kind kind_ = Kind::kSgd;
  int slots_ = 0;
  float first_initial_ = 0;
  double learning_rate_ = 0, beta_1_ = 0, beta_2_ = 0;
  float momentum_ = 0, one_minus_momentum_ = 0, one_minus_beta_1_ = 0, one_minus_beta_2_ = 0,
        epsilon_ = 0, decay_ = 0;
  float rho_ = 0, one_minus_rho_ = 0, l1_ = 0, two_l2_ = 0;
  double minus_power_ = 0;
};

}  // namespace optimizer
}  // namespace evergrad::ps_server
