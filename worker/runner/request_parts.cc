#include "worker/runner/request_parts.h"

#include "common/base/check.h"

namespace evergrad::worker {

RequestParts::Requests RequestParts::Divide(const std::string& server, const Group& group,
                                            const ExchangeSections& sections,
                                            const client::RequestLimits& limits) const {
  std::vector<SectionSize> sizes;
  sizes.reserve(group.pushes.size() + group.pulls.size());
  for (const auto& key : group.pushes) sizes.push_back(sections.Size(key));
  for (const auto& key : group.pulls) sizes.push_back(sections.Size(key));
  const auto found = in_flight_.find(server);
  std::uint32_t under_way = found == in_flight_.end() ? 0 : found->second;
  const SplitPlan plan = SplitRequests(limits, sizes, /*in_parts=*/under_way > 0);
  Requests requests;
  requests.in_parts = plan.in_parts;
  if (plan.never_fits) {
    requests.never_fits = sizes[*plan.never_fits];
    return requests;
  }
  if (!plan.in_parts) {
    requests.now.push_back(group);
    return requests;
  }
  for (const std::vector<std::size_t>& part : plan.requests) {
    if (under_way++ >= client::kPartsUnderWayMax) break;
    Group& request = requests.now.emplace_back();
    for (const std::size_t i : part) {
      if (i < group.pushes.size()) {
        request.pushes.push_back(group.pushes[i]);
      } else {
        request.pulls.push_back(group.pulls[i - group.pushes.size()]);
      }
    }
  }
  return requests;
}

void RequestParts::Answered(const std::string& server) {
  const auto found = in_flight_.find(server);
  EG_CHECK(found != in_flight_.end());
  if (--found->second == 0) in_flight_.erase(found);
}

}  // namespace evergrad::worker
