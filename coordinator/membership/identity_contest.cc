#include "coordinator/membership/identity_contest.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace evergrad::coordinator {
namespace {

std::string Describe(const IdentityContest::Process& process) {
  return absl::StrCat("pid ", process.pid, " on host ",
                      process.host.empty() ? "(no name given)" : process.host);
}

}  // namespace

std::optional<std::string> IdentityContest::OnReplaced(MonoTime now, const std::string& task,
                                                       const Process& older, const Process& newer) {
  if (rows_.count(task) == 0 && rows_.size() >= options_.identities_max) {
    std::erase_if(
        rows_, [&](const auto& one) { return now - one.second.replaced.back() > options_.within; });
    if (rows_.size() >= options_.identities_max) {
      rows_.erase(std::min_element(rows_.begin(), rows_.end(), [](const auto& a, const auto& b) {
        return a.second.replaced.back() < b.second.replaced.back();
      }));
    }
  }
  Row& row = rows_[task];
  row.replaced.push_back(now);
  if (row.replaced.size() > options_.times) row.replaced.pop_front();
  const MonoTime span = now - row.replaced.front();
  if (row.replaced.size() < options_.times || span > options_.within) return std::nullopt;
  if (row.said && now - *row.said < options_.said_every) return std::nullopt;
  row.said = now;
  return absl::StrFormat(
      "two processes have the name %s and replace each other: %s and %s (%d times in %.1f s); give "
      "each worker a --name of its own, or stop one of "
      "them",
      task, Describe(newer), Describe(older), options_.times,
      std::chrono::duration<double>(span).count());
}

}  // namespace evergrad::coordinator
