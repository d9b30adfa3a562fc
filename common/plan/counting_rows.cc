#include "common/plan/counting_rows.h"

#include "common/base/mix.h"

namespace evergrad::plan {

CountingRows CountingRowsOf(std::uint64_t closure, std::uint32_t update, std::uint32_t table,
                            std::uint32_t dimension, std::uint64_t table_ids) {
  CountingRows rows;
  const std::uint64_t key = Mix(closure * 4096 + update, table);
  for (std::uint32_t i = 0; i < key % 8; ++i) {
    const std::uint64_t drawn = Mix(key, i + 1);
    rows.ids.push_back(i % 3 == 2 ? rows.ids.back()
                                  : static_cast<std::int64_t>(Mix(drawn % table_ids, table)));
    for (std::uint32_t e = 0; e < dimension; ++e)
      rows.values.push_back(static_cast<float>(1 + (drawn >> 32) % 3 + e));
  }
  return rows;
}

}  // namespace evergrad::plan
