#include "common/health/health.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace evergrad::health {

std::optional<Question> QuestionOf(absl::string_view service) {
  if (service.empty() || service == "live") return Question::kLive;
  if (service == "ready") return Question::kReady;
  return std::nullopt;
}

Health::Answer Health::Ask(Question question) const {
  const bool live = question == Question::kLive;
  const std::vector<Unmet> unmet = live ? liveness_.Stuck() : readiness_.Missing();
  if (unmet.empty()) return {true, "ok\n"};
  Answer answer;
  for (const Unmet& one : unmet)
    absl::StrAppend(&answer.text, live ? "not live: " : "not ready: ", one.name, ": ", one.reason,
                    "\n");
  return answer;
}

}  // namespace evergrad::health
