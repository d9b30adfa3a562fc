// The losses of Keras 2.9 with their gradients, and the metrics. The functions use one thread,
// because batches are small and sums have a fixed order.
#pragma once

#include <cstdint>
#include <span>

#include "worker/backend/backend.h"

namespace evergrad::worker::cpu {

LossResult ComputeLoss(const Loss& loss, std::int64_t batch, In output, In labels, Out gradient);
void CountAuc(bool from_logits, In output, In labels, std::span<std::int64_t> counts);
double SumOfMeanSquares(std::int64_t batch, std::int64_t elements, In output, In labels);

}  // namespace evergrad::worker::cpu
