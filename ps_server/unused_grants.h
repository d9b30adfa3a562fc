// Says which clients keep room in the budget without using it: a counter for each, and a warning
// now and then. Thread-safe.
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
  // All pointers outlive this.
  UnusedGrants(log::Logger* logger, metrics::Registry* registry, const Clock* clock)
      : logger_(logger), registry_(registry), clock_(clock) {}

  // `grants` of `bytes` were taken back from `peer`; `ended`: and a stream of it was ended for
  // leaving grants unused again and again.
  void Note(const std::string& peer, std::uint64_t grants, std::uint64_t bytes, bool ended);

  // Clients beyond these are counted as "other": a client that proves no name could have any number
  // of them.
  static constexpr std::size_t kPeersMax = 64;
  static constexpr MonoTime kSaidAgainAfter = std::chrono::seconds(60);

 private:
  struct Peer {
    metrics::Counter* counter = nullptr;  // of the registry
    MonoTime silent_until{0};
    std::uint64_t grants = 0, bytes = 0;  // since it was last named
  };
  log::Logger* const logger_;
  metrics::Registry* const registry_;
  const Clock* const clock_;
  Mutex mu_;
  std::map<std::string, Peer> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace evergrad::ps_server
