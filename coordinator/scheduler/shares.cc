#include "coordinator/scheduler/shares.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace evergrad::coordinator {

std::vector<std::uint32_t> WorkerTargets(std::uint32_t workers, const std::vector<JobDemand>& jobs,
                                         bool turn_over) {
  std::vector<std::uint32_t> targets(jobs.size(), 0);
  std::vector<std::size_t> open;  // jobs whose number of workers is not decided yet
  std::uint32_t left = workers;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].useful == 0) continue;
    if (jobs[i].keeps && jobs[i].has > 0) {
      targets[i] = std::min({jobs[i].has, jobs[i].useful, left});
      left -= targets[i];
    } else {
      open.push_back(i);
    }
  }
  const bool one_each = left >= open.size();
  // Jobs that would get more workers than they can use, or less than one worker, get their number
  // first. The other jobs divide the remaining workers.
  for (bool settled = true; settled && !open.empty();) {
    settled = false;
    double shares = 0;
    for (const std::size_t i : open) shares += jobs[i].share;
    for (std::size_t k = 0; k < open.size(); ++k) {
      const JobDemand& job = jobs[open[k]];
      const double part = left * job.share / shares;
      if (part < job.useful && !(one_each && part < 1)) continue;
      targets[open[k]] = part < job.useful ? 1 : job.useful;
      left -= std::min(left, targets[open[k]]);
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(k));
      settled = true;
      break;
    }
  }
  double shares = 0;
  for (const std::size_t i : open) shares += jobs[i].share;
  const std::uint32_t divided = left;
  for (const std::size_t i : open) {
    targets[i] = std::min(
        left, static_cast<std::uint32_t>(std::floor(divided * jobs[i].share / shares + 1e-9)));
    left -= targets[i];
  }
  std::stable_sort(open.begin(), open.end(), [&](std::size_t a, std::size_t b) {
    const bool a_has = !turn_over && jobs[a].has > targets[a],
               b_has = !turn_over && jobs[b].has > targets[b];
    return a_has != b_has ? a_has : jobs[a].served < jobs[b].served;
  });
  for (const std::size_t i : open) {
    if (left == 0) break;
    if (targets[i] >= jobs[i].useful) continue;
    ++targets[i];
    --left;
  }
  return targets;
}

}  // namespace evergrad::coordinator
