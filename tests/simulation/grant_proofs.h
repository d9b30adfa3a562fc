// The proofs of grants [34, 35]: how the coordinator makes them, and how servers and the
// coordinator check them.
#pragma once

#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/grants/grant_guard.h"

namespace evergrad::simulation {

// A grant with its proof. A grant that an attacker forges has the same fields.
struct Granted {
  JobUid job;
  ClosureId closure;
  Attempt attempt;
  std::string worker, proof;
};

class GrantProofs {
 public:
  // [34], [36] Returns the key of the job, with which its proofs are made. The key is in the first
  // record of the job, which the journal never loses.
  std::string KeyOf(JobUid job) const;
  // Called when the coordinator begins the life with this number. Only the keys of a mutant depend
  // on the number.
  void BeginLife(int number) { life_ = number; }
  // Makes the proof of a grant, and keeps the grant in `known`.
  std::string Prove(Granted grant);
  // The newest grants of all jobs, which an attacker may know.
  const std::vector<Granted>& known() const { return known_; }

  // [35] Fits is the coordinator's check of a proof, and FitsAtServer is a server's check. Both
  // return whether the proof covers this job, closure, attempt and worker.
  bool Fits(const Granted& claimed) const;
  static bool FitsAtServer(grants::GrantGuard& guard, const Granted& claimed);

 private:
  std::vector<Granted> known_;
  int life_ = 0;
};

}  // namespace evergrad::simulation
