#include "common/health/liveness.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"

namespace evergrad::health {

struct Liveness::State {
  State(const Clock* c, LivenessOptions o) : clock(*c), options(o), measured_at(c->Now()) {}

  // Adds to `awake` the time since the previous call of Measure, up to a limit. A longer gap means
  // that the whole process stood still.
  void Measure() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const MonoTime now = clock.Now();
    awake += std::clamp(now - measured_at, MonoTime(0), options.stuck_after / 3);
    measured_at = now;
  }

  const Clock& clock;
  const LivenessOptions options;
  Mutex mu;
  MonoTime measured_at ABSL_GUARDED_BY(mu);
  MonoTime awake ABSL_GUARDED_BY(mu){0};  // time in which this process has run
  std::uint64_t next ABSL_GUARDED_BY(mu) = 0;
  struct Executor {
    std::string name;
    MonoTime ran_at{0};  // `awake` at the last task
  };
  std::map<std::uint64_t, Executor> executors ABSL_GUARDED_BY(mu);
};

// The entry of one executor in State::executors. The task that the executor will run next owns this
// object. When the executor is shut down, it drops the task, and the destructor removes the entry.
class Liveness::Watched {
 public:
  Watched(std::shared_ptr<State> state, absl::string_view name) : state_(std::move(state)) {
    MutexLock lock(&state_->mu);
    state_->Measure();
    number_ = state_->next++;
    state_->executors[number_] = {std::string(name), state_->awake};
  }
  ~Watched() {
    MutexLock lock(&state_->mu);
    state_->executors.erase(number_);
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  void OnRan() {
    MutexLock lock(&state_->mu);
    state_->Measure();
    state_->executors[number_].ran_at = state_->awake;
  }
  MonoTime period() const { return state_->options.period; }

 private:
  const std::shared_ptr<State> state_;
  std::uint64_t number_ = 0;
};

Liveness::Liveness(const Clock* clock, LivenessOptions options)
    : state_(std::make_shared<State>(clock, options)) {}

void Liveness::Watch(absl::string_view name, runtime::Executor* executor) {
  executor->Post([executor, watched = std::make_shared<Watched>(state_, name)] {
    RunAgain(executor, watched);
  });
}

void Liveness::RunAgain(runtime::Executor* executor, const std::shared_ptr<Watched>& watched) {
  watched->OnRan();
  executor->PostAfter(watched->period(), [executor, watched] { RunAgain(executor, watched); });
}

void Liveness::MeasureTimeOn(runtime::Executor* executor) {
  executor->Post([executor, state = state_] { MeasureAgain(executor, state); });
}

void Liveness::MeasureAgain(runtime::Executor* executor, const std::shared_ptr<State>& state) {
  {
    MutexLock lock(&state->mu);
    state->Measure();
  }
  executor->PostAfter(state->options.period, [executor, state] { MeasureAgain(executor, state); });
}

std::vector<Unmet> Liveness::Stuck() const {
  std::vector<Unmet> stuck;
  MutexLock lock(&state_->mu);
  state_->Measure();
  for (const auto& [number, executor] : state_->executors) {
    const MonoTime silent = state_->awake - executor.ran_at;
    if (silent < state_->options.stuck_after) continue;
    stuck.push_back(
        {executor.name,
         absl::StrCat("this thread has run no task for ",
                      std::chrono::duration_cast<std::chrono::seconds>(silent).count(), " s")});
  }
  return stuck;
}

}  // namespace evergrad::health
