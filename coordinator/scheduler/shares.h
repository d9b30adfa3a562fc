// How many workers each of several jobs gets. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace evergrad::coordinator {

struct JobDemand {
  double share = 1;          // above 0
  std::uint32_t useful = 0;  // more workers than this have nothing to do for it
  std::uint32_t has = 0;     // workers that serve it now
  double served = 0;         // worker-seconds that it has had, by share
  bool keeps = false;        // what it has is not taken for another's turn (deterministic)
};

// In proportion to the shares, nobody more than is of use to it, at least one each where there are
// enough. What does not divide goes to who has it already, and once `turn_over` to who was served
// least: so jobs take turns, and with fewer workers than jobs, too. One target a job, in order; the
// sum is at most `workers`.
std::vector<std::uint32_t> WorkerTargets(std::uint32_t workers, const std::vector<JobDemand>& jobs,
                                         bool turn_over);

}  // namespace evergrad::coordinator
