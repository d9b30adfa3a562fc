// Rows of a table in the place of ids, and their gradients back. One thread: several ids may name
// one row, and their order is the contract's.
#pragma once

#include <cstdint>
#include <span>

#include "worker/backend/backend.h"

namespace evergrad::worker::cpu {

void EmbeddingGather(const EmbeddingShape& s, std::span<const std::uint32_t> position, In rows,
                     In weights, AnyOut y);
void EmbeddingScatter(const EmbeddingShape& s, std::span<const std::uint32_t> position, In weights,
                      AnyIn dy, Out row_gradients);

}  // namespace evergrad::worker::cpu
