#include "common/grants/grant_guard.h"

#include <openssl/crypto.h>

#include <cstring>
#include <utility>

namespace evergrad::grants {

GrantGuard::GrantGuard(JobUid job, std::string key) : job_(job), key_(std::move(key)) {}

bool GrantGuard::Fits(absl::string_view proof, ClosureId closure, Attempt attempt,
                      absl::string_view worker) {
  if (proof.size() != kProofBytes) return false;
  const std::size_t place = (attempt.n ^ attempt.term) % kRemembered;
  {
    MutexLock lock(&mu_);
    if (!fitted_.empty()) {
      const Fitted& known = fitted_[place];
      if (known.attempt == attempt && attempt != Attempt{} && known.closure == closure &&
          known.worker == worker &&
          CRYPTO_memcmp(known.proof.data(), proof.data(), proof.size()) == 0)
        return true;
    }
    ++computed_;
  }
  if (!ProofFits(proof, key_, job_, closure, attempt, worker)) return false;
  MutexLock lock(&mu_);
  if (fitted_.empty()) fitted_.resize(kRemembered);
  Fitted& known = fitted_[place];
  known.attempt = attempt;
  known.closure = closure;
  std::memcpy(known.proof.data(), proof.data(), proof.size());
  known.worker.assign(worker.data(), worker.size());
  return true;
}

std::uint64_t GrantGuard::proofs_computed() const {
  MutexLock lock(&mu_);
  return computed_;
}

}  // namespace evergrad::grants
