// What a counting job (spec.type: counting, the fault scenarios' job) pushes to its embedding
// tables: a function of the update's name, so that whoever checks the outcome knows each row of it.
// Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace evergrad::plan {

// A counting job's dense variable whose shards are pushed to only where a batch has samples in
// them.
inline constexpr char kCountingSamples[] = "counting/samples";

// Of one table: nothing, or up to seven rows, ids of which may be there twice. With Mix of
// common/base/mix.h:
//   k = Mix(4096 closure + update, table), of k % 8 rows row i draws d = Mix(k, i + 1); its id is
//   Mix(d % table_ids, table) as an int64, or, where i % 3 = 2, that of row i - 1 once more; its
//   element e is 1 + (d >> 32) % 3 + e.
struct CountingRows {
  std::vector<std::int64_t> ids;
  std::vector<float> values;  // ids.size() x dimension
};
CountingRows CountingRowsOf(std::uint64_t closure, std::uint32_t update, std::uint32_t table,
                            std::uint32_t dimension, std::uint64_t table_ids);

}  // namespace evergrad::plan
