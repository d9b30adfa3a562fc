// Reads rows of tables. All readings of a call use one pipeline, so that the rows of the next
// reading are prefetched while the rows of the previous one are still being loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "common/tensor/wire_type.h"

namespace evergrad::ps_server::storage {

class EmbeddingTable;

struct RowReading {
  const EmbeddingTable* table = nullptr;
  std::span<const std::int64_t> ids;
  tensor::WireType wire = tensor::WireType::kFloat32;
  std::byte* out = nullptr;
};

// Writes the row of each id to `out`, in the order of the ids and in the type `wire`
// (tensor/convert.h). The row of a duplicate id is written again. `out` has space for ids.size()
// rows and may have any alignment. An id without a row reads its initial value, f(seed, table name,
// id), or `default_row` in a table with admit_after > 1. Changes nothing. Called on the executor of
// the tables. No table may be applying a push (EG_CHECK).
void ReadRows(std::span<const RowReading> readings);
inline void ReadRows(std::initializer_list<RowReading> readings) {
  ReadRows(std::span(readings.begin(), readings.size()));
}

}  // namespace evergrad::ps_server::storage
