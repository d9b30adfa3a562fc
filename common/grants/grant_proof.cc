#include "common/grants/grant_proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cstdint>

#include "common/base/check.h"
#include "common/random/philox.h"

namespace evergrad::grants {
namespace {

// The beginning of each text that is signed as a proof. If the key should ever sign another kind of
// text, that text must begin differently, so that its signature is not a valid proof.
constexpr absl::string_view kDomain = "evergrad grant 1";

void AppendU64(std::uint64_t value, std::string* out) {
  for (int byte = 0; byte < 8; ++byte) out->push_back(static_cast<char>(value >> (8 * byte)));
}

}  // namespace

std::string NewKey() {
  std::string key;
  key.reserve(kKeyBytes);
  while (key.size() < kKeyBytes) AppendU64(random::EntropyFromOs(), &key);
  return key;
}

std::string MakeProof(absl::string_view key, JobUid job, ClosureId closure, Attempt attempt,
                      absl::string_view worker) {
  // Every field except the last has a fixed size, so that no two lists of fields give the same
  // bytes.
  std::string text(kDomain);
  text.reserve(kDomain.size() + 32 + worker.size());
  for (const std::uint64_t field : {job.value(), closure.value(), attempt.term, attempt.n})
    AppendU64(field, &text);
  text.append(worker.data(), worker.size());
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac{};
  unsigned int bytes = 0;
  EG_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(),
                &bytes) != nullptr);
  EG_CHECK(bytes >= kProofBytes);
  return std::string(reinterpret_cast<const char*>(mac.data()), kProofBytes);
}

bool ProofFits(absl::string_view proof, absl::string_view key, JobUid job, ClosureId closure,
               Attempt attempt, absl::string_view worker) {
  if (proof.size() != kProofBytes) return false;
  const std::string want = MakeProof(key, job, closure, attempt, worker);
  return CRYPTO_memcmp(proof.data(), want.data(), kProofBytes) == 0;
}

}  // namespace evergrad::grants
