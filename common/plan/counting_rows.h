// The rows that a counting job (spec.type: counting, the job of the fault scenarios) pushes to its
// embedding tables. The rows are a function of the update's name, so a check of the outcome can
// compute every row. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace evergrad::plan {

// The name of a dense variable of a counting job. A batch is pushed only to those shards of this
// variable in which the batch has samples.
inline constexpr char kCountingSamples[] = "counting/samples";

// The rows that one update pushes to one table: at most seven, possibly with duplicate ids. Mix is
// the function of common/base/mix.h. The number of rows is k % 8, where k = Mix(4096 closure +
// update, table).
//
// Row i draws d = Mix(k, i + 1). The id of row i is Mix(d % table_ids, table) as an int64, or, if i
// % 3 = 2, the id of row i - 1 once more. Element e of row i is 1 + (d >> 32) % 3 + e.
struct CountingRows {
  std::vector<std::int64_t> ids;
  std::vector<float> values;  // ids.size() x dimension
};
CountingRows CountingRowsOf(std::uint64_t closure, std::uint32_t update, std::uint32_t table,
                            std::uint32_t dimension, std::uint64_t table_ids);

}  // namespace evergrad::plan
