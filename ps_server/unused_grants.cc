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
      peer.counter = &registry_->GetCounter("evergrad_ps_server_unused_grants_total",
                                            "Room in the budget that was granted to a client and "
                                            "taken back because the client did not use it",
                                            {{"peer", room ? name : "other"}});
    }
    peer.counter->Add(grants);
    peer.grants += grants;
    peer.bytes += bytes;
    if (!ended && clock_->Now() < peer.silent_until) return;
    text = ended ? absl::StrCat(name,
                                " was granted room and did not use it again and again, so its data "
                                "stream was ended: grants=",
                                peer.grants, " bytes=", peer.bytes)
                 : absl::StrCat(name,
                                " was granted room and did not use it, so others get it: grants=",
                                peer.grants, " bytes=", peer.bytes);
    peer.silent_until = clock_->Now() + kSaidAgainAfter;
    peer.grants = peer.bytes = 0;
  }
  logger_->Warning(text);
}

}  // namespace evergrad::ps_server
