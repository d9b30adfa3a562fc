// The proofs of grants [34, 35]: how the coordinator makes them, and how servers and the
// coordinator check them.
#pragma once

#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/grants/grant_guard.h"

namespace evergrad::simulation {

// A grant with its proof. Forged ones have the same fields.
struct Granted {
  JobUid job;
  ClosureId closure;
  Attempt attempt;
  std::string worker, proof;
};

class GrantProofs {
 public:
  // [34], [36] Returns the key of the job. It stands in the first record of the job, which is never
  // torn off.
  std::string KeyOf(JobUid job) const;
  // The coordinator has begun its life of this number. Only a mutant's keys depend on it.
  void BeginLife(int number) { life_ = number; }
  // Makes the proof of a grant, and keeps the grant.
  std::string Prove(Granted grant);
  // The newest grants of all jobs, which an attacker may know.
  const std::vector<Granted>& known() const { return known_; }

  // [35] Returns whether the proof covers this job, closure, attempt and worker: the check of the
  // coordinator, and that of a server.
  bool Fits(const Granted& claimed) const;
  static bool FitsAtServer(grants::GrantGuard& guard, const Granted& claimed);

 private:
  std::vector<Granted> known_;
  int life_ = 0;
};

}  // namespace evergrad::simulation
