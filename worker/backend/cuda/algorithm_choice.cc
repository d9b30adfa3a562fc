#include "worker/backend/cuda/algorithm_choice.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace evergrad::worker {

absl::StatusOr<AlgorithmChoice> ChooseAlgorithm(
    const std::vector<AlgorithmCandidate>& candidates, std::uint64_t workspace_bytes_max,
    bool deterministic, const std::function<absl::StatusOr<double>(std::size_t)>& measure) {
  AlgorithmChoice best;
  bool found = false;
  std::string reason = candidates.empty() ? "the library offers no algorithm" : "";
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const AlgorithmCandidate& candidate = candidates[i];
    if (deterministic && !candidate.deterministic) {
      reason = "not deterministic";
      continue;
    }
    if (candidate.workspace_bytes > workspace_bytes_max) {
      reason = absl::StrCat("workspace too large: want=", candidate.workspace_bytes,
                            " max=", workspace_bytes_max);
      continue;
    }
    const absl::StatusOr<double> seconds = measure(i);
    if (!seconds.ok()) {
      reason = std::string(seconds.status().message());
      continue;
    }
    if (deterministic) return AlgorithmChoice{i, *seconds, 1};
    ++best.measured;
    if (!found || *seconds < best.seconds) {
      best.index = i;
      best.seconds = *seconds;
      found = true;
    }
  }
  if (!found)
    return absl::InvalidArgumentError(
        absl::StrCat("no algorithm: candidates=", candidates.size(), " last=", reason));
  return best;
}

}  // namespace evergrad::worker
