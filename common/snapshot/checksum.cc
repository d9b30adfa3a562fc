#include "common/snapshot/checksum.h"

#include <openssl/evp.h>

#include <cstring>

#if defined(__SSE4_2__)
#include <nmmintrin.h>
#endif

#include "absl/strings/escaping.h"
#include "common/base/check.h"

namespace evergrad::snapshot {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli, reflected

constexpr std::array<std::uint32_t, 256> MakeTable() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kTable = MakeTable();

}  // namespace

std::uint32_t Crc32cPortable(std::span<const std::byte> bytes, std::uint32_t crc) {
  crc = ~crc;
  for (const std::byte b : bytes)
    crc = crc >> 8 ^ kTable[(crc ^ std::to_integer<std::uint32_t>(b)) & 0xff];
  return ~crc;
}

#if defined(__SSE4_2__)
std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
  std::uint64_t state = ~crc & 0xffffffffu;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    state = _mm_crc32_u64(state, word);
  }
  for (; left > 0; --left, ++at)
    state = _mm_crc32_u8(static_cast<std::uint32_t>(state), std::to_integer<std::uint8_t>(*at));
  return ~static_cast<std::uint32_t>(state);
}
#else
std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
  return Crc32cPortable(bytes, crc);
}
#endif

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  Impl() = default;
  Impl(const Impl&) = delete;
  ~Impl() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  EG_CHECK(impl_->context != nullptr &&
           EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;

void Sha256::Update(std::span<const std::byte> bytes) {
  EG_CHECK(EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256::Value() const {
  Impl copy;
  Sha256Digest digest;
  unsigned size = 0;
  EG_CHECK(copy.context != nullptr && EVP_MD_CTX_copy_ex(copy.context, impl_->context) == 1 &&
           EVP_DigestFinal_ex(copy.context, reinterpret_cast<unsigned char*>(digest.data()),
                              &size) == 1 &&
           size == digest.size());
  return digest;
}

std::string Sha256::Bytes() const {
  const Sha256Digest digest = Value();
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string Hex(std::span<const std::byte> bytes) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

std::span<const std::byte> BytesOf(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace evergrad::snapshot
