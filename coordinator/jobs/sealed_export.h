// The export of the weights of a job that has failed. Its shards are sealed and saved by now, and
// their servers still hold them, so a worker that is left writes the weights as it would at a job's
// good end. The export is a service to the user and changes nothing in how the job ends: it has a
// time limit, and its failure is an event that names the checkpoint and the command that exports
// it.
//
//   Begin ─▶ Pump: a usable worker gets the closure ─▶ ExportFiles, or OnFailed ─▶ Pump …
//                                                      GiveUp ─▶ Hooks::over
//
// Not thread-safe: the control executor's. No clock and no I/O but through the host.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/reading_work.h"
#include "coordinator/jobs/shard_queries.h"
#include "coordinator/jobs/worker_roster.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::coordinator {

class SealedExport : private JobPart {
 public:
  struct Hooks {
    // Sends the job and its map to a worker, which was told before that the job has ended.
    std::function<void(TaskId)> send_job;
    std::function<void()> over;  // The export has ended without weights, and an event said so.
  };
  // The pointers outlive this object.
  SealedExport(const JobPart& part, ReadingWork* reading, WorkerRoster* roster,
               const v1::CheckpointStatus* checkpoint, Hooks hooks)
      : JobPart(part),
        reading_(*reading),
        roster_(*roster),
        checkpoint_(*checkpoint),
        hooks_(std::move(hooks)) {}

  // `report` says what is left at the servers. The job's variables take `bytes` there. Returns
  // false if they cannot be exported, and an event says why; otherwise Pump follows.
  bool Begin(const ShardQueries::Answer& report, std::uint64_t bytes);
  // Grants the closure to a usable worker, or gives up when the time for it is over.
  void Pump();
  // A worker has reported a failure. It is not asked again after an error of its own making,
  // because another one may do better.
  void OnFailed(TaskId worker, const v1::Failed& failed);
  void GiveUp(absl::string_view why);

 private:
  std::optional<std::string> ReasonToGiveUp(MonoTime now) const;
  JobWorker* FindWorker(MonoTime now);
  void SayNotExported(absl::string_view why);

  ReadingWork& reading_;
  WorkerRoster& roster_;
  const v1::CheckpointStatus& checkpoint_;  // The newest of the job.
  const Hooks hooks_;
  bool begun_ = false;
  MapVersion version_;     // Of the map at the beginning.
  MonoTime worker_by_{0};  // A worker is waited for until then,
  MonoTime by_{0};         // and the whole export ends then.
  std::set<TaskId> refused_by_;
  std::string why_;  // The last error; "": none.
};

}  // namespace evergrad::coordinator
