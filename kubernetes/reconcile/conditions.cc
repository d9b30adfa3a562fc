#include "kubernetes/reconcile/conditions.h"

namespace evergrad::kubernetes {
namespace {

const char* TruthText(Truth truth) {
  switch (truth) {
    case Truth::kTrue: return "True";
    case Truth::kFalse: return "False";
    case Truth::kUnknown: return "Unknown";
  }
  return "Unknown";
}

const Json& FindIn(const Json& conditions, absl::string_view type) {
  static const Json null;
  if (!conditions.is_array()) return null;
  for (const Json& one : conditions)
    if (TextOf(one, "type") == type) return one;
  return null;
}

}  // namespace

Json ConditionsToJson(const std::vector<Condition>& conditions, const Json& before,
                      std::int64_t generation, const std::string& now) {
  Json list = Json::array();
  for (const Condition& condition : conditions) {
    const Json& old = FindIn(before, condition.type);
    const std::string since = TextOf(old, "lastTransitionTime");
    const bool same = !since.empty() && TextOf(old, "status") == TruthText(condition.truth);
    list.push_back({{"type", condition.type},
                    {"status", TruthText(condition.truth)},
                    {"reason", condition.reason},
                    {"message", condition.message},
                    {"observedGeneration", generation},
                    {"lastTransitionTime", same ? since : now}});
  }
  return list;
}

Condition ReadCondition(const Json& condition) {
  const std::string truth = TextOf(condition, "status");
  return {TextOf(condition, "type"),
          truth == "True"    ? Truth::kTrue
          : truth == "False" ? Truth::kFalse
                             : Truth::kUnknown,
          TextOf(condition, "reason"), TextOf(condition, "message")};
}

const Json& FindCondition(const Json& status, absl::string_view type) {
  return FindIn(Member(status, "conditions"), type);
}

bool SameConditions(const Json& a, const Json& b) {
  const Json& first = Member(a, "conditions");
  const Json& second = Member(b, "conditions");
  if (!first.is_array() || !second.is_array() || first.size() != second.size()) return false;
  for (std::size_t i = 0; i < first.size(); ++i)
    for (const char* key : {"type", "status", "reason"})
      if (TextOf(first[i], key) != TextOf(second[i], key)) return false;
  return true;
}

}  // namespace evergrad::kubernetes
