// How sums that are too long for one team are cut: by the shape alone, so that their bits are the
// shape's. Also the sizes of `scratch`.
#pragma once

#include <cstdint>

#include "worker/backend/cuda/kernels/team.h"

namespace evergrad::cuda {

// Of an index by a size. No array has more than 2^31 - 1 elements (backend.h), and a device divides
// 64 bits five times slower than 32: slower than memory.
EG_HD std::int64_t Quotient(std::int64_t i, std::int64_t size) {
  return static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(size);
}
EG_HD std::int64_t Rest(std::int64_t i, std::int64_t size) {
  return static_cast<std::uint32_t>(i) % static_cast<std::uint32_t>(size);
}
EG_HD std::int64_t DivideUp(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
EG_HD std::int64_t Least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
EG_HD std::int64_t Most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

// A long sum: parts of this many elements, then the parts.
inline constexpr std::int64_t kElementsPerPart = 16384;

// Sums over the rows, column by column: a thread adds the rows of one part of one column, and
// neighbours read neighbouring columns. Parts enough for 32 k threads of eight columns each, and at
// least 16 rows each.
EG_HD std::int64_t ColumnParts(std::int64_t rows, std::int64_t columns) {
  return Most(1, Least(Least(4096, DivideUp(rows, 16)), 262144 / Most(1, columns)));
}
EG_HD std::int64_t RowsPerPart(std::int64_t rows, std::int64_t columns) {
  return DivideUp(rows, ColumnParts(rows, columns));
}

// In bytes.
inline std::int64_t ColumnScratch(std::int64_t rows, std::int64_t columns, int sums) {
  return 8 * sums * ColumnParts(rows, columns) * columns;
}
inline std::int64_t SumScratch(std::int64_t n) { return 8 * DivideUp(n, kElementsPerPart); }

// What an example leaves for the sum over examples.
struct ExampleLoss {
  double loss;
  std::int64_t correct, bad;  // bad: position of the example's first label that is none; -1
};
inline std::int64_t LossScratch(std::int64_t batch) {
  return static_cast<std::int64_t>(sizeof(ExampleLoss)) * batch;
}

}  // namespace evergrad::cuda
