#include "common/config/job_spec.h"

namespace evergrad::config {

bool GlobMatches(absl::string_view pattern, absl::string_view name) {
  // On a mismatch, the last `*` matches one more character.
  std::size_t p = 0, n = 0, star = absl::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p, ++n;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

const optimizers::Settings* OptimizerFor(const JobSpec& spec, absl::string_view name) {
  if (spec.optimizers.empty()) return &spec.optimizer;
  for (const OptimizerRule& rule : spec.optimizers) {
    if (rule.match.empty() || GlobMatches(rule.match, name)) return &rule;
  }
  return nullptr;
}

std::string WireTypeFor(const JobSpec& spec, absl::string_view name) {
  for (const WireRule& rule : spec.training.wire) {
    if (rule.match.empty() || GlobMatches(rule.match, name)) return rule.dtype;
  }
  return "float32";
}

}  // namespace evergrad::config
