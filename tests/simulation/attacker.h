// An attacker that pushes and registers without grants [26, 35]. (Numbers in brackets are lines of
// LEDGER.md.) It knows the true epochs, the open closures, the proofs of other workers, and the
// proofs that a worker got for other work. Nothing that it does may change the cluster. Its random
// numbers are separate, so the rest of the walk does not depend on it.
#pragma once

#include <cstdint>

#include "tests/simulation/coordinator_parts.h"

namespace evergrad::simulation {

class Attacker {
 public:
  // `parts` must outlive the attacker.
  explicit Attacker(CoordinatorParts& parts);

  // Pushes or registers at some of the calls, chosen at random.
  void Act();

 private:
  // Sends a forged push to a server, and checks I10.
  void Push();
  // Sends a Hello that claims an attempt above or below the running one, or an attempt of a future
  // closure. Checks I10.
  void Register();
  // Gives `forged` a proof. With probability `chance`, it is the proof of a known grant. `forged`
  // then gets all but one of the fields of this grant (closure, attempt, worker), or, if `ways` is
  // above three, perhaps all of them. Otherwise the proof belongs to no grant, or is empty.
  void MixProof(Granted* forged, double chance, std::uint64_t ways);
  bool WasGranted(const Granted& forged) const;
  Granted ForgePush(const HeldState& held);

  CoordinatorParts& parts_;
  WalkContext& walk_;
  Random random_;
};

}  // namespace evergrad::simulation
