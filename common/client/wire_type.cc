#include "common/client/wire_type.h"

#include <algorithm>

#include "common/base/status.h"

namespace evergrad::client {

absl::Status CheckWireRules(const config::JobSpec& job, const v1::DescribeResult& described) {
  for (const config::WireRule& rule : job.training.wire) {
    if (rule.match.empty()) continue;
    const auto fits = [&](const auto& named) {
      return config::GlobMatches(rule.match, named.name());
    };
    if (std::any_of(described.variables().begin(), described.variables().end(), fits) ||
        std::any_of(described.tables().begin(), described.tables().end(), fits)) {
      continue;
    }
    return UserError(absl::InvalidArgumentError(absl::StrCat(
        "spec.training.wire_dtype: no variable and no table of this name: match=", rule.match)));
  }
  return absl::OkStatus();
}

}  // namespace evergrad::client
