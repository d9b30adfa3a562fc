// Looks up table rows by id, and adds the gradients of rows. The functions use one thread, because
// several ids may refer to one row, and the contract fixes the order of additions.
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
