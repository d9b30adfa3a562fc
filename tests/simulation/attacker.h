// An attacker that pushes and registers without grants [26, 35]. It knows true epochs, open
// closures, proofs of other workers, and proofs of a worker's other work. Nothing that it does may
// leave a trace, and its random numbers are its own, so the walk does not depend on it.
#pragma once

#include <cstdint>

#include "tests/simulation/coordinator_parts.h"

namespace evergrad::simulation {

class Attacker {
 public:
  // `parts` outlives the attacker.
  explicit Attacker(CoordinatorParts& parts);

  // Sometimes pushes, and sometimes registers.
  void Act();

 private:
  // Pushes to a server, and checks I10.
  void Push();
  // Sends a Hello with an attempt above the running attempt, below it, or of a future closure, and
  // checks I10.
  void Register();
  // Gives `forged` a proof. With probability `chance` it is the proof of a known grant, and
  // `forged` gets all but one of the grant's fields (closure, attempt, worker); with `ways` above
  // three it may get all. Otherwise the proof belongs to no grant, or there is none.
  void MixProof(Granted* forged, double chance, std::uint64_t ways);
  bool WasGranted(const Granted& forged) const;
  Granted ForgePush(const HeldState& held);

  CoordinatorParts& parts_;
  WalkContext& walk_;
  Random random_;
};

}  // namespace evergrad::simulation
