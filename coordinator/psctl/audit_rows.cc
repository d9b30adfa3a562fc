#include "coordinator/psctl/audit_rows.h"

#include <tuple>

#include "absl/strings/str_cat.h"

namespace evergrad::psctl {
namespace {

auto Numbers(const AuditEpoch& epoch) {
  return std::tie(epoch.applied, epoch.partly, epoch.refused, epoch.to_do);
}

}  // namespace

std::vector<std::vector<std::string>> AuditRows(const std::vector<AuditEpoch>& epochs, bool each) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t first = 0, end = 0; first < epochs.size(); first = end) {
    end = first + 1;
    while (!each && end < epochs.size() && Numbers(epochs[end]) == Numbers(epochs[first])) ++end;
    const AuditEpoch& one = epochs[first];
    const std::uint64_t last = epochs[end - 1].epoch;
    rows.push_back(
        {last == one.epoch ? absl::StrCat(one.epoch) : absl::StrCat(one.epoch, " to ", last),
         absl::StrCat(one.applied), absl::StrCat(one.partly), absl::StrCat(one.refused),
         absl::StrCat(one.to_do)});
  }
  return rows;
}

}  // namespace evergrad::psctl
