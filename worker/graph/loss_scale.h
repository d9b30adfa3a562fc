// The factor by which a step multiplies its gradients, so that 16 bits can represent small
// gradients (Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2; Keras'
// LossScaleOptimizer). A step with a non-finite gradient halves the factor; a series of finite
// steps doubles it.
//
// A pure state machine, one per job of a worker. The state is lost with the process. Not
// thread-safe.
#pragma once

#include <cstdint>

namespace evergrad::worker {

class LossScale {
 public:
  // The limits are powers of two, so that scaling does not round.
  static constexpr float kFirst = 32768, kLeast = 1, kMost = 1 << 30;
  static constexpr std::uint32_t kDoubleAfter = 2000;  // number of consecutive finite steps

  enum class Verdict {
    kUse,   // the gradients are valid
    kSkip,  // the gradients overflowed: the caller drops them, and the scale of the next step is
            // smaller
    kNotTheScale,  // not finite although the scale is 1, so the scale is not the cause
  };

  float scale() const { return scale_; }
  // Returns the number of consecutive finite steps since the last change of the scale.
  std::uint32_t finite_steps() const { return finite_steps_; }
  std::uint64_t overflows() const { return overflows_; }  // number of skipped steps

  // Processes the end of a step at scale(). `finite` is true if its loss and gradients were
  // finite.
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
