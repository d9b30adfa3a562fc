#include "worker/runner/reach_log.h"

#include "common/client/protocol.h"

namespace evergrad::worker {
namespace {

constexpr std::size_t kReasonBytesMax = 200;

}  // namespace

void ReachLog::Failed(const std::string& server, const std::string& address, absl::string_view reason, MonoTime now) {
  const auto [found, is_new] = unreached_.try_emplace(server);
  if (is_new || found->second.address != address) {
    found->second.address = address;
    found->second.since = now;
  }
  found->second.reason = client::CleanText(reason, kReasonBytesMax);
}

void ReachLog::Keep(const std::set<std::string>& servers) {
  std::erase_if(unreached_, [&](const auto& one) { return !servers.contains(one.first); });
}

void ReachLog::Fill(MonoTime now, v1::WorkerProgress* progress) const {
  for (const auto& [server, what] : unreached_) {
    if (static_cast<std::size_t>(progress->unreached_size()) == kServersMax) return;
    v1::UnreachedServer* said = progress->add_unreached();
    said->set_server(server);
    said->set_address(what.address);
    said->set_for_ms(static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now - what.since).count()));
    said->set_reason(what.reason);
  }
}

}  // namespace evergrad::worker
