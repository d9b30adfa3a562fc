// The export of the weights of a failed job. When the export begins, the shards are sealed and
// saved, and their servers still hold them. A remaining worker can therefore write the weights as
// for a job that succeeds. The export has a time limit, and its failure does not change how the job
// ends. An event reports the failure, and names the checkpoint and the command that exports the
// checkpoint.
//
//   Begin ─▶ Pump: a usable worker gets the closure ─▶ ExportFiles, or OnFailed ─▶ Pump …
//                                                      GiveUp ─▶ Hooks::over
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
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
    // Sends the job and its map to a worker again, because the worker has already received the end
    // of the job.
    std::function<void(TaskId)> send_job;
    // Called when the export has ended without weights and an event has reported this.
    std::function<void()> over;
  };
  // The pointers outlive this object.
  SealedExport(const JobPart& part, ReadingWork* reading, WorkerRoster* roster,
               const v1::CheckpointStatus* checkpoint, Hooks hooks)
      : JobPart(part),
        reading_(*reading),
        roster_(*roster),
        checkpoint_(*checkpoint),
        hooks_(std::move(hooks)) {}

  // Begins the export. `report` has the shards that are left at the servers. The job's variables
  // take `bytes` of server memory. If the weights cannot be exported, adds an event with the reason
  // and returns false. Otherwise the caller calls Pump next.
  bool Begin(const ShardQueries::Answer& report, std::uint64_t bytes);
  // Grants the export closure to a usable worker, or gives up when the time limit has passed.
  void Pump();
  // Handles an attempt that failed at a worker. After a user's error, or if the worker lacks an
  // ability, this worker does not get the closure again, but another worker may succeed.
  void OnFailed(TaskId worker, const v1::Failed& failed);
  void GiveUp(absl::string_view why);

 private:
  std::optional<std::string> ReasonToGiveUp(MonoTime now) const;
  JobWorker* FindWorker(MonoTime now);
  void SayNotExported(absl::string_view why);

  ReadingWork& reading_;
  WorkerRoster& roster_;
  const v1::CheckpointStatus& checkpoint_;  // The newest checkpoint of the job.
  const Hooks hooks_;
  bool begun_ = false;
  MapVersion version_;     // Version of the map when the export began.
  MonoTime worker_by_{0};  // The job waits for a worker until this time.
  MonoTime by_{0};         // Time limit of the whole export.
  std::set<TaskId> refused_by_;
  std::string why_;  // The newest error, or "".
};

}  // namespace evergrad::coordinator
