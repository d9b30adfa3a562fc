#include "common/preemption/clouds/failures.h"

#include "absl/strings/str_cat.h"
#include "common/base/escape.h"

namespace evergrad::preemption {

std::string Unexpected(const Answer& answer) {
  if (answer.status == 0) return answer.failure.empty() ? "no answer" : Quoted(answer.failure, 200);
  if (answer.status != 200) return absl::StrCat("unexpected status: status=", answer.status);
  return absl::StrCat("unexpected answer: body=`", Quoted(answer.body, 60), "`");
}

std::chrono::milliseconds Retries::Next() {
  ++failures_;
  return std::chrono::seconds(failures_ == 1 ? 1 : failures_ == 2 ? 2 : 5);
}

}  // namespace evergrad::preemption
