// Row kernels of the server-side optimizers: sgd, adam, counting. Formulas and defaults: README.md of this room.
//
// Element-wise, so a shard of any cut computes the bits of the uncut variable. Pure: (state, gradient, t) -> state, no clock,
// no randomness, no reductions; the same bits on every dispatch target (no FMA, square root and division correctly rounded).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace evergrad::ps_server {

struct OptimizerSettings {
  std::string type;  // sgd | adam | counting
  double learning_rate = 0.01, momentum = 0, beta_1 = 0.9, beta_2 = 0.999, epsilon = 1e-7;
  bool nesterov = false;
};

namespace optimizer {

inline constexpr int kSlotsMax = 2;

// One run of elements. from == to (in place) or disjoint, for values and for each slot; the gradient overlaps neither.
struct Run {
  std::size_t size = 0;
  const float* gradient = nullptr;
  const float* value_from = nullptr;
  float* value_to = nullptr;
  const float* slot_from[kSlotsMax] = {};
  float* slot_to[kSlotsMax] = {};
};

class Optimizer {
 public:
  // InvalidArgument: unknown type, numbers out of range.
  static absl::StatusOr<Optimizer> Create(const OptimizerSettings& settings);
  // sgd 0, or 1 with momentum (velocity); adam 2 (m, v); counting 1.
  int slots() const { return slots_; }
  // Numbers of update t that do not depend on the element. t counts the gradients of this shard, this one included: 1, 2, ...
  struct Step {
    float rate = 0;
  };
  Step Begin(std::uint64_t t) const;
  void Apply(const Step& step, const Run& run) const;

 private:
  enum class Kind { kSgd, kMomentum, kNesterov, kAdam, kCounting };
  Kind kind_ = Kind::kSgd;
  int slots_ = 0;
  double learning_rate_ = 0, beta_1_ = 0, beta_2_ = 0;
  float momentum_ = 0, one_minus_beta_1_ = 0, one_minus_beta_2_ = 0, epsilon_ = 0;
};

}  // namespace optimizer
}  // namespace evergrad::ps_server
