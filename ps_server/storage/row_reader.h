// Reads rows of tables. All readings of a call go through one pipeline: the memory is asked for the
// rows of the next one while those of the one before are on their way.
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
// (tensor/convert.h); a duplicate id is written again. `out` has ids.size() rows and may lie at any
// address. An id without a row reads its initial value, f(seed, table name, id), or `default_row`
// where ids wait for their admission. Changes nothing. Called from the executor of the tables, none
// of which may be applying a push (EG_CHECK).
void ReadRows(std::span<const RowReading> readings);
inline void ReadRows(std::initializer_list<RowReading> readings) {
  ReadRows(std::span(readings.begin(), readings.size()));
}

}  // namespace evergrad::ps_server::storage
