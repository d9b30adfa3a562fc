// Finds a closure that kills its workers (ARCHITECTURE section 4.7). Pure: each call brings the
// time as `now`.
//
// A closure is blamed for a death only if the worker last reported it as running. Three such deaths
// at the same step of a closure, without a death at another step in between, make the closure
// poison. No closure is blamed for the death of a worker that had announced its end. Nor is a
// closure blamed if another task dies within the time `together`, because their host may have gone
// down. A death is therefore judged only after the time `together` has passed.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/base/ids.h"
#include "common/time/clock.h"

namespace evergrad::coordinator {

class PoisonRule {
 public:
  struct Options {
    std::uint32_t deaths = 3;
    std::chrono::milliseconds together{200};
  };
  explicit PoisonRule(Options options) : options_(options) {}

  struct Running {
    ClosureId closure;
    std::uint32_t step = 0;
  };
  // `running` is the closure that the worker last reported as running. `running` is nullopt for
  // servers, for idle workers, for workers that left after a notice, and for workers that a newer
  // process replaced. `counts` is true if the task held work of the job; such a death is counted in
  // Verdict::others unless a closure is blamed for it.
  void OnDeath(MonoTime now, std::optional<Running> running, bool counts = true);
  // Forgets the deaths of a closure that has ended.
  void OnEnded(ClosureId closure);

  struct Verdict {
    // The closure that killed its workers `deaths` times in a row, with the step.
    std::optional<Running> poison;
    // Number of deaths judged now that count and for which no closure is blamed.
    std::uint32_t others = 0;
  };
  Verdict Judge(MonoTime now);

 private:
  struct Death {
    MonoTime at{0};
    std::optional<Running> running;
    bool counts = true;
  };
  struct Blame {
    std::uint32_t step = 0, count = 0;
  };
  const Options options_;
  std::vector<Death> waiting_;        // in order of time
  std::optional<Death> last_judged_;  // the death that has left `waiting_` most recently
  std::map<ClosureId, Blame> blames_;
};

}  // namespace evergrad::coordinator
