// Keeps back whatever may not leave the process before the store has made durable what it accepted
// earlier. Order is kept.
//
// Bytes of messages in the gate are counted against a limit. Not thread-safe: the control executor
// owns it. It does no I/O; the store is only asked how far it is.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "coordinator/jobs/state_store.h"

namespace evergrad::coordinator {

class DurabilityGate {
 public:
  // `store` outlives the gate. `commit` hands the store all changes that have been made and not
  // committed yet; false: the store failed. It is called before anything is let through.
  DurabilityGate(const StateStore* store, std::uint64_t bytes_max, std::function<bool()> commit);

  // Runs `then` at once if the store has made everything durable, else in Release. After a failed
  // commit nobody knows what the store holds, so `then` never runs.
  void WhenDurable(std::function<void()> then);
  // The same for a message of `bytes`. False: it does not fit, and nothing has changed.
  bool Admit(std::uint64_t bytes, std::function<void()> then);
  // Whether a message would be let through at once.
  bool IsOpen();
  // Lets through all that the store has made durable by now.
  void Release();

  std::uint64_t bytes() const { return bytes_; }  // of the messages that wait

 private:
  struct Waiting {
    std::uint64_t accepted = 0;  // commits that it depends on
    std::uint64_t bytes = 0;     // of a message
    std::function<void()> then;
  };
  void Enter(std::uint64_t bytes, std::function<void()> then);

  const StateStore* const store_;
  const std::uint64_t bytes_max_;
  const std::function<bool()> commit_;
  std::deque<Waiting> waiting_;
  std::uint64_t bytes_ = 0;
};

}  // namespace evergrad::coordinator
