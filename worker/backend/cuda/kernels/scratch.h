// Determines how a sum that is too long for one team is divided into parts, and the sizes of
// `scratch`. The division depends only on the shape, so the bits depend only on the shape, too.
#pragma once

#include <cstdint>

#include "worker/backend/cuda/kernels/team.h"

namespace evergrad::cuda {

// Divides an index by a size in 32 bits. No array has more than 2^31 - 1 elements (backend.h). A
// device divides 64-bit numbers five times slower than 32-bit ones. With 64 bits, a kernel would
// spend more time on the divisions than on its memory accesses.
EG_HD std::int64_t Quotient(std::int64_t i, std::int64_t size) {
  return static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(size);
}
EG_HD std::int64_t Rest(std::int64_t i, std::int64_t size) {
  return static_cast<std::uint32_t>(i) % static_cast<std::uint32_t>(size);
}
EG_HD std::int64_t DivideUp(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
EG_HD std::int64_t Least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
EG_HD std::int64_t Most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

// A long sum is divided into parts of this many elements, whose sums are added.
inline constexpr std::int64_t kElementsPerPart = 16384;

// Sums over the rows, by column: a thread adds the rows of one part of one column, and neighbouring
// threads read neighbouring columns. The parts suffice for 64 k threads of eight columns each,
// which is the number of threads that 132 multiprocessors run at once. A part has at least 16 rows.
EG_HD std::int64_t ColumnParts(std::int64_t rows, std::int64_t columns) {
  return Most(1, Least(Least(8192, DivideUp(rows, 16)), 524288 / Most(1, columns)));
}
EG_HD std::int64_t RowsPerPart(std::int64_t rows, std::int64_t columns) {
  return DivideUp(rows, ColumnParts(rows, columns));
}

// Returns the size of the scratch memory in bytes.
inline std::int64_t ColumnScratch(std::int64_t rows, std::int64_t columns, int sums) {
  return 8 * sums * ColumnParts(rows, columns) * columns;
}
inline std::int64_t SumScratch(std::int64_t n) { return 8 * DivideUp(n, kElementsPerPart); }

// The result of an example, for the sum over examples.
struct ExampleLoss {
  double loss;
  std::int64_t correct, bad;  // bad: position of the example's first invalid label, or -1
};
inline std::int64_t LossScratch(std::int64_t batch) {
  return static_cast<std::int64_t>(sizeof(ExampleLoss)) * batch;
}

}  // namespace evergrad::cuda
