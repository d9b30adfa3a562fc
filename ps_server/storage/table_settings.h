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
  // The fans are those of one row, and the seed is the seed of the job.
  InitializerSettings initializer;
  optimizers::Settings optimizer;
  // The number of pushes to an id after which its row is made, including the push that makes it.
  // Earlier pushes are only counted. 0 means 1.
  std::uint32_t admit_after = 1;
  // With admit_after > 1, the value of each element of an id without a row.
  float default_row = 0;
  // Rows and waiting ids whose last push is older than this many plan steps are dropped. 0 means
  // that they are never dropped.
  std::uint64_t ttl_steps = 0;
  // The limit of this partition for rows, index and counters, as bytes_of() computes them; 0 for no
  // limit.
  std::uint64_t bytes_max = 0;
  // At bytes_max or at the server's limit, the rows whose last push is oldest are evicted.
  bool evict_lru = false;
};

}  // namespace evergrad::ps_server::storage
