#include "worker/runner/reach_log.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"

namespace evergrad::worker {

void ReachLog::Failed(const std::string& server, const std::string& address,
                      const absl::Status& status, MonoTime now) {
  if (!absl::IsUnavailable(status)) return;
  const auto [found, is_new] = unreached_.try_emplace(server);
  if (is_new || found->second.address != address) {
    found->second.address = address;
    found->second.since = now;
  }
  found->second.reason = client::CleanText(status.message(), client::kUnreachedReasonBytesMax);
}

void ReachLog::Asked(const std::string& server, MonoTime now) {
  ++awaited_.try_emplace(server, Awaited{0, now}).first->second.calls;
}

void ReachLog::Ended(const std::string& server) {
  if (const auto it = awaited_.find(server); it != awaited_.end() && it->second.calls > 0)
    --it->second.calls;
}

void ReachLog::Answered(const std::string& server, MonoTime now) {
  unreached_.erase(server);
  const auto it = awaited_.find(server);
  if (it == awaited_.end()) return;
  it->second.since = now;
  if (it->second.calls == 0) awaited_.erase(it);
}

void ReachLog::Keep(const std::set<std::string>& servers) {
  std::erase_if(unreached_, [&](const auto& one) { return !servers.contains(one.first); });
  std::erase_if(awaited_, [&](const auto& one) { return !servers.contains(one.first); });
}

void ReachLog::Fill(MonoTime now, v1::WorkerProgress* progress) const {
  const auto slowest = std::min_element(
      awaited_.begin(), awaited_.end(),
      [](const auto& a, const auto& b) { return a.second.since < b.second.since; });
  if (slowest != awaited_.end() && now - slowest->second.since >= kSlowAfter) {
    const auto waited =
        std::chrono::duration_cast<std::chrono::seconds>(now - slowest->second.since).count();
    progress->set_awaits(absl::StrCat("ps_server/", slowest->first, " for ", waited, " s"));
  }
  for (const auto& [server, what] : unreached_) {
    if (progress->unreached_size() == client::kUnreachedServersMax) return;
    v1::UnreachedServer* said = progress->add_unreached();
    said->set_server(server);
    said->set_address(what.address);
    said->set_for_ms(static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(now - what.since).count()));
    said->set_reason(what.reason);
  }
}

}  // namespace evergrad::worker
