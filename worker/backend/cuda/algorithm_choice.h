// Selects one of a library's algorithms for a shape.
//
// ChooseAlgorithm decides which candidates are measured, and chooses one of them. The caller's
// function measures a candidate on the device. With `deterministic`, the first deterministic
// candidate that runs is chosen, because a choice by time could differ between two runs.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"

namespace evergrad::worker {

struct AlgorithmCandidate {
  std::uint64_t workspace_bytes = 0;
  bool deterministic = true;
};
struct AlgorithmChoice {
  std::size_t index = 0;
  double seconds = -1;       // duration of one run
  std::size_t measured = 0;  // number of measured candidates
};

// Chooses the fastest candidate, and the first of equally fast candidates. `measure` returns
// seconds, or an error for a candidate that does not run. Returns InvalidArgument with the last
// reason if no candidate can run.
absl::StatusOr<AlgorithmChoice> ChooseAlgorithm(
    const std::vector<AlgorithmCandidate>& candidates, std::uint64_t workspace_bytes_max,
    bool deterministic, const std::function<absl::StatusOr<double>(std::size_t index)>& measure);

}  // namespace evergrad::worker
