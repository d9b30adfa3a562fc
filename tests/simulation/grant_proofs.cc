#include "tests/simulation/grant_proofs.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grants/grant_proof.h"
#include "tests/mutants/mutant.h"

namespace evergrad::simulation {
namespace {

using mutants::IsActive;
using mutants::Mutant;

constexpr std::size_t kGrantedKept = 64;  // grants that an attacker may know

// [34] The fields that the proof of a grant covers.
struct ProofFields {
  explicit ProofFields(const Granted& grant)
      : closure(IsActive(Mutant::kProofOfAnyClosure) ? ClosureId(0) : grant.closure),
        attempt(IsActive(Mutant::kProofOfAnyAttempt) ? Attempt{} : grant.attempt),
        worker(IsActive(Mutant::kProofOfAnyWorker) ? "" : grant.worker) {}
  const ClosureId closure;
  const Attempt attempt;
  const std::string worker;
};

}  // namespace

std::string GrantProofs::KeyOf(JobUid job) const {
  return absl::StrCat("the key of job ", job.value(),
                      IsActive(Mutant::kKeyOfEachLife) ? absl::StrCat(" in life ", life_) : "");
}

std::string GrantProofs::Prove(Granted grant) {
  const ProofFields proved(grant);
  grant.proof =
      grants::MakeProof(KeyOf(grant.job), grant.job, proved.closure, proved.attempt, proved.worker);
  if (known_.size() >= kGrantedKept) known_.erase(known_.begin());
  known_.push_back(std::move(grant));
  return known_.back().proof;
}

bool GrantProofs::Fits(const Granted& claimed) const {
  const ProofFields proved(claimed);
  return IsActive(Mutant::kAdoptsUnproved) ||
         grants::ProofFits(claimed.proof, KeyOf(claimed.job), claimed.job, proved.closure,
                           proved.attempt, proved.worker);
}

bool GrantProofs::FitsAtServer(grants::GrantGuard& guard, const Granted& claimed) {
  const ProofFields proved(claimed);
  return guard.Fits(claimed.proof, proved.closure, proved.attempt, proved.worker);
}

}  // namespace evergrad::simulation
