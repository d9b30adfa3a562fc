// Loops over elements, rows and columns: sums, copies, bias, activations, dropout, non-finite
// checks. Each loop gives the same bits, however the work is divided among threads.
#pragma once

#include <cstdint>
#include <span>

#include "worker/backend/backend.h"

namespace evergrad::worker::cpu {

// Adds b[c] to each y[r, c].
void AddBias(int threads, std::int64_t rows, std::int64_t columns, In b, AnyOut y);
// Sets sums[c] to the sum over r of x[r, c], in row order.
void ColumnSums(int threads, std::int64_t rows, std::int64_t columns, AnyIn x, Out sums);
// Returns the largest |x|; the result is not finite if any element is not.
float LargestMagnitude(int threads, In x);
void ActivationForward(int threads, Activation a, std::int64_t rows, std::int64_t columns, AnyIn x,
                       AnyOut y);
void ActivationBackward(int threads, Activation a, std::int64_t rows, std::int64_t columns, AnyIn y,
                        AnyIn dy, AnyOut dx);
void Dropout(int threads, double rate, std::uint64_t key, AnyIn x, AnyOut y);
void Copy(int threads, AnyIn x, AnyOut y);
void Scale(int threads, float factor, In x, Out y);
void AddScaled(int threads, float factor, AnyIn x, AnyOut y);
void Sum(int threads, std::span<const AnyIn> inputs, AnyOut y);
// The output y may be identical to a.
void Multiply(int threads, AnyIn a, AnyIn b, AnyOut y);
void CopyColumns(int threads, std::int64_t rows, std::int64_t width, AnyIn x,
                 std::int64_t x_columns, std::int64_t x_begin, AnyOut y, std::int64_t y_columns,
                 std::int64_t y_begin);
double SumOfSquares(In x);
bool AllFinite(int threads, AnyIn x);

}  // namespace evergrad::worker::cpu
