// How many times as large the gradients of a step are made, so that 16 bits can say the small ones
// (Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2; Keras'
// LossScaleOptimizer): halved by a step with a gradient that is not finite, doubled after a run of
// steps without.
//
// A pure state machine, one for each job of a worker: what it has learnt goes with the process. Not
// thread-safe.
#pragma once

#include <cstdint>

namespace evergrad::worker {

class LossScale {
 public:
  static constexpr float kFirst = 32768, kLeast = 1,
                         kMost = 1 << 30;  // powers of two: to scale by them rounds nothing
  static constexpr std::uint32_t kDoubleAfter = 2000;  // finite steps on end

  enum class Verdict {
    kUse,          // its gradients are right
    kSkip,         // too large for the scale: they are nobody's, and the next step's is smaller
    kNotTheScale,  // not finite at the least scale: a true NaN or Inf
  };

  float scale() const { return scale_; }
  std::uint32_t finite_steps() const {
    return finite_steps_;
  }                                                       // on end, since the scale last changed
  std::uint64_t overflows() const { return overflows_; }  // steps that were skipped

  // After a step at scale(): whether its loss and gradients were finite.
  Verdict After(bool finite) {
    if (finite) {
      if (++finite_steps_ < kDoubleAfter) return Verdict::kUse;
      finite_steps_ = 0;
      if (scale_ < kMost) scale_ *= 2;
      return Verdict::kUse;
    }
    finite_steps_ = 0;
    if (scale_ <= kLeast) return Verdict::kNotTheScale;
    scale_ /= 2;
    ++overflows_;
    return Verdict::kSkip;
  }

 private:
  float scale_ = kFirst;
  std::uint32_t finite_steps_ = 0;
  std::uint64_t overflows_ = 0;
};

}  // namespace evergrad::worker
