#include "common/config/job_spec.h"

namespace evergrad::config {

bool GlobMatches(absl::string_view pattern, absl::string_view name) {
  // The last `*` takes one character more whenever what follows it does not fit.
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

const OptimizerSpec* OptimizerFor(const JobSpec& spec, absl::string_view name) {
  if (spec.optimizers.empty()) return &spec.optimizer;
  for (const OptimizerSpec& optimizer : spec.optimizers) {
    if (optimizer.match.empty() || GlobMatches(optimizer.match, name)) return &optimizer;
  }
  return nullptr;
}

std::uint32_t SlotsPerValue(absl::string_view optimizer, double momentum) {
  if (optimizer == "adam" || optimizer == "adamw" || optimizer == "ftrl") return 2;
  if (optimizer == "counting" || optimizer == "adagrad") return 1;
  if (optimizer == "sgd") return momentum != 0 ? 1 : 0;
  if (optimizer == "rmsprop") return momentum != 0 ? 2 : 1;
  return 0;
}

std::uint64_t RowFloats(const OptimizerSpec& optimizer, std::uint64_t dimension) {
  return dimension + (optimizer.type == "rowwise_adagrad"
                          ? 1
                          : dimension * SlotsPerValue(optimizer.type, optimizer.momentum));
}

std::uint64_t CounterBytesPerRow(absl::string_view optimizer) {
  return optimizer == "adam" || optimizer == "adamw" ? 4 : 0;
}

std::string WireTypeFor(const JobSpec& spec, absl::string_view name) {
  for (const WireRule& rule : spec.training.wire) {
    if (rule.match.empty() || GlobMatches(rule.match, name)) return rule.dtype;
  }
  return "float32";
}

}  // namespace evergrad::config
