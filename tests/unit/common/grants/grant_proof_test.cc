#include "common/grants/grant_proof.h"

#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/escaping.h"

namespace evergrad::grants {
namespace {

std::string Rising() {
  std::string key;
  for (int i = 0; i < 32; ++i) key.push_back(static_cast<char>(i));
  return key;
}

const JobUid kJob(0x1122334455667788);
const Attempt kAttempt{3, 41};

TEST_CASE("a proof has the bytes of an independent HMAC-SHA256") {
  // The expected proof was computed with Python:
  // hmac.new(bytes(range(32)), b"evergrad grant 1" + struct.pack("<QQQQ", job, 7, 3, 41) +
  // b"gpu-7", sha256).digest()[:16]
  const std::string proof = MakeProof(Rising(), kJob, ClosureId(7), kAttempt, "gpu-7");
  CHECK(absl::BytesToHexString(proof) == "c7c6d07f1ec515e8232e2176c56dfe59");
  CHECK(ProofFits(proof, Rising(), kJob, ClosureId(7), kAttempt, "gpu-7"));
}

TEST_CASE(
    "a proof is valid for one job, closure, attempt, worker and key, and changed bytes are "
    "invalid") {
  const std::string key = Rising(), proof = MakeProof(key, kJob, ClosureId(7), kAttempt, "gpu-7");
  CHECK_FALSE(ProofFits(proof, key, JobUid(1), ClosureId(7), kAttempt, "gpu-7"));
  CHECK_FALSE(ProofFits(proof, key, kJob, ClosureId(8), kAttempt, "gpu-7"));
  CHECK_FALSE(ProofFits(proof, key, kJob, ClosureId(7), Attempt{3, 42}, "gpu-7"));
  CHECK_FALSE(ProofFits(proof, key, kJob, ClosureId(7), Attempt{4, 41}, "gpu-7"));
  CHECK_FALSE(ProofFits(proof, key, kJob, ClosureId(7), kAttempt, "gpu-8"));
  CHECK_FALSE(ProofFits(proof, key, kJob, ClosureId(7), kAttempt, ""));
  std::string other_key = key;
  other_key[31] ^= 1;
  CHECK_FALSE(ProofFits(proof, other_key, kJob, ClosureId(7), kAttempt, "gpu-7"));
  for (std::size_t i = 0; i < proof.size(); ++i) {
    std::string changed = proof;
    changed[i] = static_cast<char>(changed[i] ^ 0x40);
    CHECK_FALSE(ProofFits(changed, key, kJob, ClosureId(7), kAttempt, "gpu-7"));
  }
  CHECK_FALSE(ProofFits("", key, kJob, ClosureId(7), kAttempt, "gpu-7"));
  CHECK_FALSE(ProofFits(proof.substr(0, 15), key, kJob, ClosureId(7), kAttempt, "gpu-7"));
  CHECK_FALSE(ProofFits(proof + "x", key, kJob, ClosureId(7), kAttempt, "gpu-7"));
}

TEST_CASE("two generated keys differ and have their full length") {
  const std::string a = NewKey(), b = NewKey();
  CHECK(a.size() == kKeyBytes);
  CHECK(b.size() == kKeyBytes);
  CHECK(a != b);
}

}  // namespace
}  // namespace evergrad::grants
