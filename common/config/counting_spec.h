// The settings of a counting job (`spec.type: counting`), which the fault scenarios run. Only
// daemons that were started with --failpoints accept the job.
#pragma once

#include <cstdint>
#include <string>

namespace evergrad::config {

struct JobSpec;

struct CountingSpec {
  std::uint64_t examples = 0;
  std::uint32_t shards = 8;       // partitions of the [examples, 1] variable
  std::uint32_t step_ms = 0;      // least duration of a step, by the injected clock
  std::uint32_t tables = 0;       // additional embedding tables
  std::uint64_t table_ids = 500,  // number of ids of each table
      table_bytes_max = 0;        // limit of the last table; 0 for no limit
  std::string optimizer = "counting";
  friend bool operator==(const CountingSpec&, const CountingSpec&) = default;
};

// Returns the settings in `spec`, or nullptr if the job is not a counting job.
const CountingSpec* CountingOf(const JobSpec& spec);

}  // namespace evergrad::config
