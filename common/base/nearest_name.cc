#include "common/base/nearest_name.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace evergrad {

std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates) {
  if (name.size() > 64) return "";
  auto plain = [](absl::string_view text) {
    std::string out = absl::AsciiStrToLower(text);
    std::replace(out.begin(), out.end(), '-', '_');
    return out;
  };
  const std::string a = plain(name);
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, a.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::string b = plain(candidate);
    // The optimal string alignment distance counts insertions, deletions, replacements and swaps of
    // neighbours.
    std::vector<std::size_t> before_last, last(b.size() + 1), current(b.size() + 1);
    std::iota(last.begin(), last.end(), std::size_t{0});
    for (std::size_t i = 1; i <= a.size(); ++i) {
      current[0] = i;
      for (std::size_t j = 1; j <= b.size(); ++j) {
        current[j] = std::min(
            {last[j] + 1, current[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u)});
        if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
          current[j] = std::min(current[j], before_last[j - 2] + 1);
      }
      before_last = last;
      last = current;
    }
    std::size_t distance = last[b.size()];
    // The beginning of a candidate ("learning" for "learning_rate") counts as near, even if its
    // distance is large.
    if (a.size() >= 3 && absl::StartsWith(b, a)) distance = std::min<std::size_t>(distance, 1);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace evergrad
