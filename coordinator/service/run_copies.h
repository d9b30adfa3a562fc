// Copies the runs folders of jobs to --runs-copy, each minute while a job runs, and once more when
// it has ended.
//
// The control executor owns the object; the copies themselves run on `copies`, one at a time. A
// copy that fails is a warning of the job, and is tried again. The work on `copies` ends before the
// object is destroyed.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/base/ids.h"
#include "common/fs/file_system.h"
#include "common/metrics/metrics.h"
#include "common/runtime/executor.h"
#include "coordinator/runs/run_copy.h"
#include "coordinator/service/service_parts.h"

namespace evergrad::coordinator {

class RunCopies {
 public:
  struct Options {
    std::string target;  // "" for no copies
    std::chrono::milliseconds every{60'000};
  };
  // `copies` may be null if there is no target.
  RunCopies(ServiceParts parts, Options options, runtime::Executor* copies,
            fs::FileSystem* file_system, metrics::Registry* registry);

  // Begins the next copies if it is time. Called in each tick.
  void Tick();

 private:
  struct Folder {
    JobUid uid;
    std::string path;
    bool ended = false;
  };
  // Returns the next folder whose copy is due, or nullopt.
  std::optional<Folder> Next(MonoTime now) const;
  void ForgetDeleted();
  void OnCopied(const Folder& folder, const absl::StatusOr<std::size_t>& result);

  const ServiceParts parts_;
  const Options options_;
  runtime::Executor* const copies_;
  RunCopy copy_;  // used on `copies_`
  bool busy_ = false;
  std::map<JobUid, MonoTime> tried_;  // time of the last attempt for a job
  std::set<JobUid> done_;             // ended jobs whose copy is complete
  std::set<JobUid> warned_;           // jobs whose last copy failed
  metrics::Counter& failures_;
  metrics::Counter& files_;
};

}  // namespace evergrad::coordinator
