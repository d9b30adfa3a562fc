// The drain of a worker: it waits for the running attempt, then a bounded time for the
// coordinator's answers to finished attempts, then calls `done`. Without a session there are no
// answers, so after another bounded time the running attempt is given up and `done` is called.
// Control executor.
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
    std::chrono::milliseconds answers_max{0};     // waiting for answers
    std::chrono::milliseconds no_session_max{0};  // continuing without a session
    std::function<void()> give_up;                // ends the running attempt, if there is one
  };
  explicit Drain(Environment environment) : env_(std::move(environment)) {}

  // Begins; from then on begun() is true. `done` is called once, in a separate turn. Returns false,
  // without any effect, if it had begun before.
  bool Begin(std::function<void()> done);
  bool begun() const { return begun_; }
  void SetSession(bool connected);
  // Call it whenever one of the arguments has changed.
  void Check(bool attempt_runs, bool answers_missing);

 private:
  void EndWithoutSession();
  void Finish();

  const Environment env_;
  bool begun_ = false, connected_ = false, waits_for_answers_ = false;
  std::function<void()> done_;  // empty before Begin, and after the call
};

}  // namespace evergrad::worker
