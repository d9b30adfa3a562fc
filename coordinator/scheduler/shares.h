// Divides workers among several jobs. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace evergrad::coordinator {

struct JobDemand {
  double share = 1;          // above 0
  std::uint32_t useful = 0;  // the largest number of workers that the job can use
  std::uint32_t has = 0;     // number of workers that serve it now
  double served = 0;         // worker-seconds that the job has received, divided by its share
  // Set for a deterministic job, whose workers are not taken for the turn of another job.
  bool keeps = false;
};

// Divides workers in proportion to the shares. No job gets more than it can use, and each gets at
// least one if there are enough. A remainder stays with the job that has it. With `turn_over` it
// goes to the job that was served least, so that jobs take turns even if there are fewer workers
// than jobs. Returns one target per job, in order; their sum is at most `workers`.
std::vector<std::uint32_t> WorkerTargets(std::uint32_t workers, const std::vector<JobDemand>& jobs,
                                         bool turn_over);

}  // namespace evergrad::coordinator
