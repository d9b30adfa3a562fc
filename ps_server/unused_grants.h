// Reports the clients that leave granted memory unused. A grant reserves a part of the server's
// budget for a request of the client. Each client has a counter and, while it leaves grants unused,
// about one warning per minute. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "common/base/mutex.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/time/clock.h"

namespace evergrad::ps_server {

class UnusedGrants {
 public:
  // All pointers outlive this object.
  UnusedGrants(log::Logger* logger, metrics::Registry* registry, const Clock* clock)
      : logger_(logger), registry_(registry), clock_(clock) {}

  // Records that `grants` grants of `bytes` bytes were revoked from `peer`. `ended` states whether
  // the peer's stream was ended because the client repeatedly left grants unused.
  void Note(const std::string& peer, std::uint64_t grants, std::uint64_t bytes, bool ended);

  // Clients beyond this number are counted as "other", because a client without a proven name could
  // use any number of names.
  static constexpr std::size_t kPeersMax = 64;
  static constexpr MonoTime kSaidAgainAfter = std::chrono::seconds(60);

 private:
  struct Peer {
    metrics::Counter* counter = nullptr;  // owned by the registry
    MonoTime silent_until{0};
    std::uint64_t grants = 0, bytes = 0;  // numbers since the last warning
  };
  log::Logger* const logger_;
  metrics::Registry* const registry_;
  const Clock* const clock_;
  Mutex mu_;
  std::map<std::string, Peer> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace evergrad::ps_server
