#include "worker/graph/loss_scale.h"

#include <catch2/catch.hpp>
#include <sstream>
#include <string>

namespace evergrad::worker {
namespace {

// Plays a list of steps and checks. `finite N` is N finite steps, and `overflow` is a step that
// overflows. `fails` is a step that is not finite for another reason than the scale. `expect SCALE
// FINITE_STEPS OVERFLOWS` checks the state.
void Play(const std::string& transcript) {
  LossScale scale;
  std::istringstream lines(transcript);
  for (std::string word; lines >> word;) {
    INFO("at `" << word << "`");
    if (word == "finite") {
      int steps = 0;
      lines >> steps;
      for (int i = 0; i < steps; ++i) REQUIRE(scale.After(true) == LossScale::Verdict::kUse);
    } else if (word == "overflow") {
      REQUIRE(scale.After(false) == LossScale::Verdict::kSkip);
    } else if (word == "fails") {
      REQUIRE(scale.After(false) == LossScale::Verdict::kNotTheScale);
    } else if (word == "expect") {
      double at = 0;
      std::uint64_t steps = 0, overflows = 0;
      lines >> at >> steps >> overflows;
      INFO("expect " << at << " " << steps << " " << overflows);
      CHECK(scale.scale() == at);
      CHECK(scale.finite_steps() == steps);
      CHECK(scale.overflows() == overflows);
    } else {
      FAIL("no such word");
    }
  }
}

TEST_CASE(
    "the scale begins at 2^15, doubles after 2,000 consecutive finite steps, and halves after each "
    "other step") {
  Play(
      "expect 32768 0 0   finite 1999 expect 32768 1999 0   finite 1 expect 65536 0 0   finite "
      "2000 expect 131072 0 0");
  Play("overflow expect 16384 0 1   overflow overflow expect 4096 0 3");
  // An overflow ends a sequence of finite steps. The count of finite steps must then begin again at
  // 0.
  Play(
      "finite 1999 overflow expect 16384 0 1   finite 1999 expect 16384 1999 1   finite 1 expect "
      "32768 0 1");
}

TEST_CASE(
    "at the minimum scale a step that is not finite is not due to the scale, which stays usable") {
  Play(
      "overflow overflow overflow overflow overflow  overflow overflow overflow overflow overflow  "
      "overflow overflow overflow overflow overflow "
      "expect 1 0 15   fails expect 1 0 15   fails   finite 2000 expect 2 0 15   overflow expect 1 "
      "0 16   fails");
}

TEST_CASE("the scale has a maximum") {
  LossScale scale;
  for (int run = 0; run < 40; ++run) {
    for (std::uint32_t i = 0; i < LossScale::kDoubleAfter; ++i)
      static_cast<void>(scale.After(true));
  }
  CHECK(scale.scale() == LossScale::kMost);
}

}  // namespace
}  // namespace evergrad::worker
