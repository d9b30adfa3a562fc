// Batch and layer normalization, and the mean over positions. Our own loops make two passes over
// the data. The first pass computes the mean, and the second the squares around the mean, because a
// difference of two large sums would lose the variance. Sums are in double, by fixed blocks of
// rows, so that every division of the work gives the same bits.
#pragma once

#include <cstdint>

#include "worker/backend/backend.h"

namespace evergrad::worker::cpu {

void BatchNormForward(int threads, std::int64_t rows, std::int64_t channels, double epsilon,
                      AnyIn x, In gamma, In beta, Out mean, Out variance, AnyOut y);
void BatchNormInference(int threads, std::int64_t rows, std::int64_t channels, double epsilon,
                        AnyIn x, In gamma, In beta, In mean, In variance, AnyOut y);
void BatchNormBackward(int threads, std::int64_t rows, std::int64_t channels, double epsilon,
                       AnyIn x, In gamma, In mean, In variance, AnyIn dy, AnyOut dx, Out dgamma,
                       Out dbeta);
void LayerNormForward(int threads, std::int64_t rows, std::int64_t columns, double epsilon, AnyIn x,
                      In gamma, In beta, Out mean, Out variance, AnyOut y);
void LayerNormBackward(int threads, std::int64_t rows, std::int64_t columns, double epsilon,
                       AnyIn x, In gamma, In mean, In variance, AnyIn dy, AnyOut dx, Out dgamma,
                       Out dbeta);
void GlobalAveragePoolForward(int threads, std::int64_t batch, std::int64_t positions,
                              std::int64_t channels, AnyIn x, AnyOut y);
void GlobalAveragePoolBackward(int threads, std::int64_t batch, std::int64_t positions,
                               std::int64_t channels, AnyIn dy, AnyOut dx);

}  // namespace evergrad::worker::cpu
