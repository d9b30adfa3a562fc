// Holds a message back until all changes that the store accepted before the message are durable.
// Messages keep their order.
//
// Bytes of waiting messages count against a limit. Not thread-safe: the control executor owns it.
// The gate does no I/O; it only asks the store about its progress.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "coordinator/jobs/state_store.h"

namespace evergrad::coordinator {

class DurabilityGate {
 public:
  // `store` outlives the gate. `commit` passes all uncommitted changes to the store, and returns
  // false if the store has failed. The gate calls `commit` before it lets a message pass.
  DurabilityGate(const StateStore* store, std::uint64_t bytes_max, std::function<bool()> commit);

  // Runs `then` at once if all accepted changes are durable. Otherwise Release runs it later. After
  // a failed commit the contents of the store are unknown, so `then` never runs.
  void WhenDurable(std::function<void()> then);
  // Like WhenDurable, for a message of `bytes`. Returns false and does nothing if the message
  // exceeds the limit.
  bool Admit(std::uint64_t bytes, std::function<void()> then);
  // Returns whether a message would pass at once.
  bool IsOpen();
  // Lets messages pass if their changes are now durable.
  void Release();

  std::uint64_t bytes() const { return bytes_; }  // bytes of the waiting messages

 private:
  struct Waiting {
    std::uint64_t accepted = 0;  // number of commits on which the message depends
    std::uint64_t bytes = 0;     // bytes of the message
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
