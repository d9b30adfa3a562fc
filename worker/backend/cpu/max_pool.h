// Max pooling over NHWC with the index of each maximum. The loops are our own, because oneDNN's
// workspace is opaque and the contract requires argmax.
#pragma once

#include <cstdint>
#include <span>

#include "worker/backend/backend.h"

namespace evergrad::worker::cpu {

void MaxPoolForward(int threads, const PoolShape& s, AnyIn x, AnyOut y,
                    std::span<std::int32_t> argmax);
void MaxPoolBackward(int threads, const PoolShape& s, AnyIn dy,
                     std::span<const std::int32_t> argmax, AnyOut dx);

}  // namespace evergrad::worker::cpu
