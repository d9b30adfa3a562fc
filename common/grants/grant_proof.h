// The proof that the coordinator granted an attempt of a closure to a worker (LEDGER lines 34 to
// 36). The proof is a MAC under a key that the coordinator and the servers of one job share, and
// that is never sent to a worker. Pure except for NewKey.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace evergrad::grants {

inline constexpr std::size_t kKeyBytes = 32;
inline constexpr std::size_t kProofBytes = 16;
// Limit of proofs in one request. A worker runs one attempt at a time, so a correct request has one
// proof.
inline constexpr int kProofsPerRequestMax = 16;

// Returns a key from the operating system's generator. The key is secret: it may be stored with the
// job and sent to servers, and it must never be logged or shown.
std::string NewKey();

// Returns HMAC-SHA256 of (job, closure, attempt, worker), truncated to kProofBytes. `worker` is the
// name that the coordinator registered, without its role.
std::string MakeProof(absl::string_view key, JobUid job, ClosureId closure, Attempt attempt,
                      absl::string_view worker);

// Returns whether `proof` is the proof of these arguments. The comparison takes constant time.
bool ProofFits(absl::string_view proof, absl::string_view key, JobUid job, ClosureId closure,
               Attempt attempt, absl::string_view worker);

}  // namespace evergrad::grants
