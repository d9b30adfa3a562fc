// Writes the files of runs on the file thread, in order.
//
// The bytes of lines that wait for the disk are limited. Further lines are refused with
// ResourceExhausted and counted. All callbacks run later on the control executor. Public methods
// are called on the control executor, except UpdateMetrics, which any thread may call. The work on
// the file thread ends before the writer is destroyed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "coordinator/jobs/job.h"
#include "coordinator/service/write_trouble.h"

namespace evergrad::coordinator {

class FileWriter {
 public:
  using Done = std::function<void(absl::Status)>;
  struct Parts {  // all outlive the writer
    runtime::Executor* control = nullptr;
    runtime::Executor* files = nullptr;
    const Clock* clock = nullptr;
    log::Logger* logger = nullptr;
    metrics::Registry* registry = nullptr;
  };
  FileWriter(Parts parts, std::uint64_t bytes_max);

  // Writes each file atomically, and creates the folders that the files need.
  void WriteFiles(const std::string& folder, std::vector<RunFile> files, Done done);
  // MetricsFile::Host describes AppendLines and RestoreLines. The folder must exist.
  void AppendLines(const std::string& folder, const std::string& name, std::string lines,
                   Done done);
  void RestoreLines(const std::string& folder, const std::string& name, std::uint64_t offset,
                    std::string tail, Done done);
  // Runs `work` on the file thread, and then the function that it returns on the control executor.
  void Run(std::function<std::function<void()>()> work);

  void UpdateMetrics() { limit_.current.Set(static_cast<double>(bytes_.load())); }

 private:
  void WriteLines(const std::string& path, std::uint64_t bytes, Done done,
                  std::function<absl::Status(const std::string& path)> write);

  const Parts parts_;
  const std::uint64_t bytes_max_;
  std::atomic<std::uint64_t> bytes_{0};  // bytes of waiting lines
  WriteTrouble write_trouble_;           // used on the file thread
  metrics::Limit limit_;
};

}  // namespace evergrad::coordinator
