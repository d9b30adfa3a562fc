// An attacker that pushes and registers without grants [26, 35]. It knows the true epochs, the open
// closures, the proofs of other workers, and a worker's proofs of other work. Nothing that it does
// may change the cluster. Its random numbers are its own, so the rest of the walk does not depend
// on it.
#pragma once

#include <cstdint>

#include "tests/simulation/coordinator_parts.h"

namespace evergrad::simulation {

class Attacker {
 public:
  // `parts` outlives the attacker.
  explicit Attacker(CoordinatorParts& parts);

  // Pushes or registers now and then.
  void Act();

 private:
  // Sends a forged push to a server, and checks I10.
  void Push();
  // Sends a Hello that claims an attempt above or below the running one, or an attempt of a future
  // closure. Checks I10.
  void Register();
  // Gives `forged` a proof. With probability `chance` the proof is that of a known grant. `forged`
  // then gets all but one of the fields of this grant (closure, attempt, worker), or, with `ways`
  // above three, perhaps all of them. Otherwise the proof belongs to no grant, or is empty.
  void MixProof(Granted* forged, double chance, std::uint64_t ways);
  bool WasGranted(const Granted& forged) const;
  Granted ForgePush(const HeldState& held);

  CoordinatorParts& parts_;
  WalkContext& walk_;
  Random random_;
};

}  // namespace evergrad::simulation
