// The proof that the coordinator granted an attempt of a closure to a worker (LEDGER lines 34 to
// 36): a MAC under a key that the coordinator and the servers of one job share and that no worker
// learns. Pure but for NewKey.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace evergrad::grants {

inline constexpr std::size_t kKeyBytes = 32;
inline constexpr std::size_t kProofBytes = 16;
// Of one request: a worker runs one attempt at a time, so that an honest request has one.
inline constexpr int kProofsPerRequestMax = 16;

// A key from the operating system's generator. Secret: it may be stored with the job and sent to
// servers, and it must never be logged or shown.
std::string NewKey();

// HMAC-SHA256 of (job, closure, attempt, worker), cut to kProofBytes. `worker` is the name that the
// coordinator registered, without its role.
std::string MakeProof(absl::string_view key, JobUid job, ClosureId closure, Attempt attempt,
                      absl::string_view worker);

// Whether `proof` is that of these. The time that it takes does not depend on where two proofs
// differ.
bool ProofFits(absl::string_view proof, absl::string_view key, JobUid job, ClosureId closure,
               Attempt attempt, absl::string_view worker);

}  // namespace evergrad::grants
