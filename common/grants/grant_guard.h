// Whether a push was granted to who sends it (LEDGER lines 34 to 36): one guard for each job that a
// server holds shards of.
//
// Thread-safe. A proof is computed once for each attempt: what fitted is remembered in a table of
// fixed size, what did not fit is computed again.
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
  // `key` is never shown.
  GrantGuard(JobUid job, std::string key);
  // `worker`: the sender's name without its role.
  bool Fits(absl::string_view proof, ClosureId closure, Attempt attempt, absl::string_view worker);
  std::uint64_t proofs_computed() const;

 private:
  struct Fitted {
    Attempt attempt;  // (0,0): nothing is remembered here
    ClosureId closure;
    std::array<char, kProofBytes> proof{};
    std::string worker;
  };
  static constexpr std::size_t kRemembered =
      1024;  // several times as many as run at once at a server's workers

  const JobUid job_;
  const std::string key_;
  mutable Mutex mu_;
  std::vector<Fitted> fitted_ ABSL_GUARDED_BY(mu_);  // by attempt % kRemembered
  std::uint64_t computed_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace evergrad::grants
