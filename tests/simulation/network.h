// The network between workers and servers. It loses, duplicates and reorders pushes and answers.
#pragma once

#include <string>
#include <vector>

#include "tests/simulation/tasks.h"

namespace evergrad::simulation {

class Network {
 public:
  // Both referenced objects must outlive the network.
  Network(WalkContext& walk, Tasks& tasks) : walk_(walk), tasks_(tasks) {}

  bool empty() const { return calls_.empty(); }
  // Returns whether the network has so many calls in flight that no further push may be sent now.
  bool full() const;
  // Returns the processes that listen for this identity. After a restart, the old and the new
  // process of an identity have different addresses, and either of them may get a push.
  std::vector<SimulatedServer*> ServersOf(const std::string& identity) const;
  void Send(Call push) { calls_.push_back(std::move(push)); }
  // Draws one push or answer, and delivers or loses it.
  void DeliverOne();

 private:
  WalkContext& walk_;
  Tasks& tasks_;
  std::vector<Call> calls_;  // in flight
};

}  // namespace evergrad::simulation
