// The conditions of an object's status, as other Kubernetes objects have them. `kubectl wait
// --for=condition=Succeeded` reads them. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kubernetes/api/json_text.h"

namespace evergrad::kubernetes {

enum class Truth { kTrue, kFalse, kUnknown };

struct Condition {
  std::string type;  // "Accepted"
  Truth truth = Truth::kUnknown;
  std::string reason;  // one word: "JobSubmitted"
  std::string message;
};

// Returns the conditions as JSON. A condition whose truth equals that of the same type in
// `before`, the conditions of the present status, keeps its lastTransitionTime; any other gets
// `now` (RFC 3339, UTC).
Json ConditionsToJson(const std::vector<Condition>& conditions, const Json& before,
                      std::int64_t generation, const std::string& now);

Condition ReadCondition(const Json& condition);
// Returns the condition of this type in a status, or null.
const Json& FindCondition(const Json& status, absl::string_view type);

// Returns whether the two statuses have the same conditions with the same truths and reasons.
bool SameConditions(const Json& a, const Json& b);

}  // namespace evergrad::kubernetes
