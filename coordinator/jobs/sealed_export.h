// The export of the weights of a job that has failed. Its shards are sealed and saved by now, and
// their servers still hold them, so a worker that is left writes the weights as it would at a job's
// good end. The export is a service to the user and changes nothing in how the job ends: it has a
// time limit, and its failure is an event that names the checkpoint and the command that exports
// it.
//
// Pure: the clock is the `now` of each call. The control executor's.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/reading_round.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::coordinator {

class SealedExport {
 public:
  explicit SealedExport(const JobOptions& options) : options_(options) {}  // Outlives this object.

  // `version` is the version of the map; the job's variables take `bytes` at their servers.
  void Begin(MonoTime now, MapVersion version, std::uint64_t bytes);

  struct Action {
    ReadingRound::Closure* closure = nullptr;  // To be granted to `worker`; null: nothing.
    TaskId worker;
    std::optional<std::string> gave_up = std::nullopt;  // Why the export has ended without weights.
  };
  // `usable` are the workers that may be given work now. `reading` has the export closure.
  Action Next(MonoTime now, MapVersion version, const std::vector<TaskId>& usable,
              ReadingRound* reading);
  // The worker of `closure` has reported a failure. A worker is not asked again after an error of
  // its own making, because another one may do better. Returns why the export has ended, if it has.
  std::optional<std::string> OnFailed(MonoTime now, const v1::Failed& failed,
                                      ReadingRound::Closure* closure);

  // The text of the event: the weights are missing because of `why`.
  static std::string NotExportedText(absl::string_view why, const v1::CheckpointStatus& checkpoint);

 private:
  const JobOptions& options_;
  MapVersion version_;
  MonoTime worker_by_{0};  // A worker is waited for until then,
  MonoTime by_{0};         // and the whole export ends then.
  std::set<TaskId> refused_by_;
  std::string why_;  // The last error; "": none.
};

}  // namespace evergrad::coordinator
