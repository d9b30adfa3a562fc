// Checks whether the attempt that a push names was granted to the sender of the push (LEDGER lines
// 34 to 36). A server has one guard for each job with shards on it.
//
// Thread-safe. Once a push has shown a valid proof, the proof is remembered for its attempt in a
// table of fixed size. For a proof that is not in the table, the expected proof is computed at each
// push.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/grants/grant_proof.h"

namespace evergrad::grants {

class GrantGuard {
 public:
  // `key` is secret, and never logged or shown.
  GrantGuard(JobUid job, std::string key);
  // Returns whether the proof is valid. `worker` is the sender's name without its role.
  bool Fits(absl::string_view proof, ClosureId closure, Attempt attempt, absl::string_view worker);
  std::uint64_t proofs_computed() const;

 private:
  struct Fitted {
    Attempt attempt;  // (0,0) if the entry is empty
    ClosureId closure;
    std::array<char, kProofBytes> proof{};
    std::string worker;
  };
  // The number of entries: several times the number of attempts that run at once in one job.
  static constexpr std::size_t kRemembered = 1024;

  const JobUid job_;
  const std::string key_;
  mutable Mutex mu_;
  std::vector<Fitted> fitted_ ABSL_GUARDED_BY(mu_);  // by attempt % kRemembered
  std::uint64_t computed_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace evergrad::grants
