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
  // True for a deterministic job. The workers of such a job are not given to another job for a
  // turn.
  bool keeps = false;
};

// Divides workers in proportion to the shares. No job gets more workers than it can use, and each
// job gets at least one worker if there are enough workers. Workers that do not divide evenly stay
// with their jobs. With `turn_over` these workers go to the jobs that were served least. Jobs
// therefore take turns even if there are fewer workers than jobs. Returns one target per job, in
// order; their sum is at most `workers`.
std::vector<std::uint32_t> WorkerTargets(std::uint32_t workers, const std::vector<JobDemand>& jobs,
                                         bool turn_over);

}  // namespace evergrad::coordinator
