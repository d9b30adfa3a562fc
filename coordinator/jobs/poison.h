// Which closure kills its workers (ARCHITECTURE section 4.7). Pure: the clock is the `now` of each
// call.
//
// A closure is blamed for a death only if the worker last reported it as running; three such deaths
// in a row at the same step, without an advance, make it poison. A death after a notice blames
// nobody, nor do deaths together with that of another task (a host that went down). A death is
// therefore judged only once `together` has passed without another.
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
  // `running`: what the worker last reported; nullopt for servers, idle workers, ends after a
  // notice or by a newer process. `counts`: it held work of the job, so that it is one of
  // Verdict::others unless a closure is to blame.
  void OnDeath(MonoTime now, std::optional<Running> running, bool counts = true);
  // The closure has ended: nothing is held against it.
  void OnEnded(ClosureId closure);

  struct Verdict {
    std::optional<Running> poison;  // killed its workers `deaths` times in a row at this step
    std::uint32_t others = 0;       // deaths judged now that count and are nobody's fault
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
  std::optional<Death> last_judged_;  // the last death that has left `waiting_`
  std::map<ClosureId, Blame> blames_;
};

}  // namespace evergrad::coordinator
