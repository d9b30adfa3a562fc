// The settings of one partition of a table, and the limits that hold for every table.
#pragma once

#include <cstdint>
#include <string>

#include "ps_server/optimizer/optimizer.h"
#include "ps_server/storage/initializer.h"

namespace evergrad::ps_server::storage {

struct TableSettings {
  std::string name;
  std::uint32_t dimension = 0;
  InitializerSettings initializer;  // The fans are those of one row; the seed is the job's.
  optimizers::Settings optimizer;
  // The push to an id that makes its row. Earlier pushes are only counted. 0 means 1.
  std::uint32_t admit_after = 1;
  // With admit_after > 1: each element that an id without a row reads.
  float default_row = 0;
  // Rows and waiting ids whose last push is older than this many plan steps are dropped; 0: never.
  std::uint64_t ttl_steps = 0;
  // The limit of this partition: rows, index and counters, by their number (bytes_of()); 0: none.
  std::uint64_t bytes_max = 0;
  // At bytes_max or at the server's limit, the rows whose last push is oldest are evicted.
  bool evict_lru = false;
};

}  // namespace evergrad::ps_server::storage
