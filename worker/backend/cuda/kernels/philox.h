// Philox 4x32-10 as in common/random/philox.h, for host and device; a test compares the two
// versions bit by bit.
#pragma once

#include <cstdint>

#include "worker/backend/cuda/kernels/team.h"

namespace evergrad::cuda {

struct PhiloxBlock {
  std::uint32_t v[4];
};

EG_HD PhiloxBlock Philox(std::uint64_t key, std::uint64_t counter) {
  std::uint32_t c0 = static_cast<std::uint32_t>(counter),
                c1 = static_cast<std::uint32_t>(counter >> 32), c2 = 0, c3 = 0;
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0,
                        n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}
EG_HD float UniformOf(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 5.9604644775390625e-8f;  // 2^-24
}

}  // namespace evergrad::cuda
