#include "common/config/job_schema.h"

namespace evergrad::config {

const Table<CountingSpec>& CountingTable() {
  static const Table<CountingSpec> table{
      "spec.counting",
      {Required(Integer<CountingSpec>("examples", &CountingSpec::examples, 1, 1ull << 32,
                                      "number of rows that are counted, one per example"),
                "600"),
       Integer<CountingSpec>("shards", &CountingSpec::shards, 1, 4096,
                             "number of partitions of the [examples, 1] variable"),
       Integer<CountingSpec>("step_ms", &CountingSpec::step_ms, 0, 60000,
                             "least duration of a step"),
       Integer<CountingSpec>(
           "tables", &CountingSpec::tables, 0, 16,
           "number of additional embedding tables; each step pushes a few rows of each"),
       Integer<CountingSpec>("table_ids", &CountingSpec::table_ids, 1, 1u << 20,
                             "number of ids of each table"),
       ByteSize<CountingSpec>("table_bytes_max", &CountingSpec::table_bytes_max, 0, 1ull << 40,
                              "byte limit of the last table; 0: none"),
       Choice<CountingSpec>("optimizer", &CountingSpec::optimizer, {"counting"},
                            {"sgd", "adam", "adagrad"}, "counting.", "weight += g, slot += 2 g")},
      {}};
  return table;
}

}  // namespace evergrad::config
