#include "coordinator/jobs/reach_rule.h"

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kIdentityBytesMax = 32, kAddressBytesMax = 128;

}  // namespace

void ReachRule::Server(const std::string& identity, TaskId registration, bool ready, bool wanted,
                       MonoTime now) {
  Session& session = servers_[identity];
  if (session.registration != registration || session.ready != ready)
    session = {registration, ready, wanted, now};
  session.wanted = wanted;
}

const v1::UnreachedServer* ReachRule::FindUnreached(const Said& said, MonoTime now) const {
  if (after_.count() == 0) return nullptr;
  for (const v1::UnreachedServer& one : said) {
    const auto found = servers_.find(one.server());
    if (found == servers_.end() || !found->second.ready || !found->second.wanted) continue;
    if (now - found->second.since >= after_ &&
        one.for_ms() >= static_cast<std::uint64_t>(after_.count()))
      return &one;
  }
  return nullptr;
}

void ReachRule::Clean(Said* said) {
  constexpr int max = client::kUnreachedServersMax;
  if (said->size() > max) said->DeleteSubrange(max, said->size() - max);
  for (v1::UnreachedServer& one : *said) {
    one.set_server(client::CleanText(one.server(), kIdentityBytesMax));
    one.set_address(client::CleanText(one.address(), kAddressBytesMax));
    one.set_reason(client::CleanText(one.reason(), client::kUnreachedReasonBytesMax));
  }
}

std::string ReachRule::Text(const v1::UnreachedServer& unreached) {
  return absl::StrCat(
      "ps_server/", unreached.server(), " at ", unreached.address(), " for ",
      unreached.for_ms() / 1000, " s",
      unreached.reason().empty() ? "" : absl::StrCat(" (", unreached.reason(), ")"));
}

}  // namespace evergrad::coordinator
