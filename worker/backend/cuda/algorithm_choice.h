// Which of a library's algorithms computes a shape.
//
// Measuring runs on the device, so it is the owner's; here is what to try and what wins. With
// `deterministic` the first candidate that is so and runs is taken: a choice by time would differ
// between two runs. Pure.
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
  double seconds = -1;       // of one run
  std::size_t measured = 0;  // how many were
};

// The first on ties. `measure` gives seconds, or an error for a candidate that cannot run after
// all. InvalidArgument: none is left, with the last reason.
absl::StatusOr<AlgorithmChoice> ChooseAlgorithm(
    const std::vector<AlgorithmCandidate>& candidates, std::uint64_t workspace_bytes_max,
    bool deterministic, const std::function<absl::StatusOr<double>(std::size_t index)>& measure);

}  // namespace evergrad::worker
