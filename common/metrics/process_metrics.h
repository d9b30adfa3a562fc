// The metrics of a process that every Prometheus client library exports: memory, descriptors, CPU
// time and the time of the start. Their names are Prometheus' own and begin with `process_`, not
// with `evergrad_<role>_`, so that existing dashboards and alerts find them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/metrics/metrics.h"

namespace evergrad::metrics {

struct ProcessNumbers {
  double resident_bytes = 0, virtual_bytes = 0;
  double cpu_seconds = 0;    // user and system time of all threads
  double start_seconds = 0;  // Unix time
  double open_fds = 0;
  double max_fds = 0;  // the soft limit; infinite if there is none
};

// Reads the numbers of a process below `proc`, which is /proc except in tests. `process` is "self"
// or a process id. Returns nullopt if a file is missing or malformed.
std::optional<ProcessNumbers> ReadProcessNumbers(const std::string& proc,
                                                 const std::string& process);

// Adds the metrics of this process, read at each scrape. Without /proc the metrics have no samples,
// and the CPU time stays at the last value that was read.
void AddProcessMetrics(Registry& registry, const std::string& proc = "/proc");

}  // namespace evergrad::metrics
