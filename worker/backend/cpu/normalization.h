// Batch and layer normalization, and global average pooling. The loops are our own. For a variance
// they make two passes over the data: the first pass computes the mean, and the second adds the
// squared distances from the mean, because the difference between the mean of the squares and the
// square of the mean would lose most of its bits. Sums are in double, by fixed blocks of rows, so
// the bits are the same however the work is divided among threads.
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
