#include "ps_server/unused_grants.h"

#include "absl/strings/str_cat.h"

namespace evergrad::ps_server {

void UnusedGrants::Note(const std::string& name, std::uint64_t grants, std::uint64_t bytes,
                        bool ended) {
  std::string text;
  {
    MutexLock lock(&mu_);
    const bool room = peers_.contains(name) || peers_.size() < kPeersMax;
    Peer& peer = peers_[room ? name : "other"];
    if (peer.counter == nullptr) {
      peer.counter =
          &registry_->GetCounter("evergrad_ps_server_unused_grants_total",
                                 "Grants of the budget that were revoked because the client "
                                 "did not use them",
                                 {{"peer", room ? name : "other"}});
    }
    peer.counter->Add(grants);
    peer.grants += grants;
    peer.bytes += bytes;
    if (!ended && clock_->Now() < peer.silent_until) return;
    text = absl::StrCat(
        ended ? "a client repeatedly left granted budget unused, so its data stream was ended: "
              : "a client left granted budget unused, so other clients get this budget: ",
        "client=", name, " grants=", peer.grants, " bytes=", peer.bytes);
    peer.silent_until = clock_->Now() + kSaidAgainAfter;
    peer.grants = peer.bytes = 0;
  }
  logger_->Warning(text);
}

}  // namespace evergrad::ps_server
