// The drain of a worker. It waits for the running attempt, then a bounded time for the
// coordinator's answers to finished attempts, and then calls `done`. Without a session no answers
// can arrive. The drain then drops the running attempt after another bounded time, and calls
// `done`. Used on the control executor.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "common/runtime/executor.h"

namespace evergrad::worker {

class Drain : public std::enable_shared_from_this<Drain> {
 public:
  struct Environment {
    runtime::Executor* control = nullptr;         // outlives the drain
    std::chrono::milliseconds answers_max{0};     // longest wait for answers
    std::chrono::milliseconds no_session_max{0};  // longest time to continue without a session
    std::function<void()> give_up;                // drops the running attempt, if there is one
  };
  explicit Drain(Environment environment) : env_(std::move(environment)) {}

  // Begins the drain; from then on begun() is true. `done` is called once, as a separate task of
  // the executor. Returns false and does nothing if the drain had begun before.
  bool Begin(std::function<void()> done);
  bool begun() const { return begun_; }
  void SetSession(bool connected);
  // Checks whether to end. The owner calls Check whenever one of the arguments has changed.
  void Check(bool attempt_runs, bool answers_missing);

 private:
  void EndWithoutSession();
  void Finish();

  const Environment env_;
  bool begun_ = false, connected_ = false, waits_for_answers_ = false;
  std::function<void()> done_;  // empty before Begin, and after the call
};

}  // namespace evergrad::worker
