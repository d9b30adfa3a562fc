// Scalar products of vectors: dot, cosine, and the products of all pairs (factorization machine).
#pragma once

#include <cstdint>
#include <span>

#include "worker/backend/backend.h"

namespace evergrad::worker::cpu {

void DotForward(int threads, std::int64_t batch, std::int64_t elements, bool normalize, In a, In b,
                Out y);
void DotBackward(int threads, std::int64_t batch, std::int64_t elements, bool normalize, In a, In b,
                 In dy, Out da);
void FactorizationForward(int threads, std::int64_t batch, std::int64_t dimension,
                          std::span<const In> inputs, Out sums, Out y);
void FactorizationBackward(int threads, std::int64_t batch, std::int64_t dimension, In v, In sums,
                           In dy, Out dv);

}  // namespace evergrad::worker::cpu
