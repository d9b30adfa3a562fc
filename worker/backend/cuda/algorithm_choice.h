// Selects one of a library's algorithms for a shape.
//
// The caller measures the candidates on the device. This file decides which candidates are
// measured, and chooses one of them. With `deterministic` it takes the first deterministic
// candidate that runs, because a choice by time could differ between two runs. Pure.
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
