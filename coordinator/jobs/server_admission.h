// Parameter servers that come to a job and leave it: what their registrations mean for the shards
// of the job, and what happens when a server is disconnected, has been told to leave, or is lost.
//
//   Admit (fills the Registered) ─▶ Ready ─▶ OnAway ─▶ Admit again, or OnLost: others get its
//   shards
//
// Where the shards go is decided by ShardPlacer and ShardMover. Not thread-safe: the control
// executor's. No clock and no I/O but through the host.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "coordinator/jobs/death_watch.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/job_notices.h"
#include "coordinator/jobs/job_phases.h"
#include "coordinator/jobs/shard_mover.h"
#include "coordinator/jobs/shard_placer.h"
#include "coordinator/jobs/shard_queries.h"
#include "coordinator/jobs/shard_seal.h"
#include "coordinator/jobs/task_totals.h"
#include "evergrad/v1/api.pb.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class ServerAdmission : private JobPart {
 public:
  struct Parts {
    const JobPhases* phases;
    const JobNotices* notices;
    ShardPlacer* placer;
    ShardMover* mover;
    ShardSeal* seal;
    ShardQueries* queries;
    DeathWatch* deaths;
    TaskTotals* totals;
    std::function<void()> want_whole;  // Something has changed that no note of the journal holds.
  };
  // What `parts` points to outlives this object.
  ServerAdmission(const JobPart& part, Parts parts) : JobPart(part), parts_(std::move(parts)) {}

  // A server registers. Sends nothing to it, and fills the job's fields of `registered`.
  // InvalidArgument: a set in the Hello is malformed, and nothing has changed.
  absl::Status Admit(TaskId task, const std::string& identity,
                     const std::optional<FormerTask>& former, const v1::Hello& hello,
                     v1::Registered* registered);
  // The Registered is on its way. False, here and below: `task` is no server of the job.
  bool Ready(TaskId task);
  // It has been given notice; with `drains` its shards are moved. A repeat is false.
  bool OnLeaving(TaskId task, const std::string& reason, bool drains);
  void OnAway(TaskId task, absl::string_view reason);  // The job waits for it.
  // Its shards have no owner now.
  bool OnLost(TaskId task, const std::string& identity, absl::string_view reason, bool leaving);
  void OnProgress(TaskId task, const v1::ServerProgress& said);  // A heartbeat.

  // --- a restart of the coordinator
  void AwaitOwners();     // The servers that the map names have server_lost_after to come back.
  void AwaitFromNowOn();  // The same, once the window has closed.
  // A server of the map that has not come back in time is lost. False: there is none, or the window
  // is open.
  bool LoseMissing();
  void DisconnectAll();  // Every session has ended.

  void FillStatus(v1::JobStatus* status) const;

 private:
  void ReplaceFormer(const FormerTask& former, const JobServer& server);
  void EndSession(TaskId task);
  std::size_t ShardsOf(const JobServer& server) const;
  void OnDeath(const std::string& identity, absl::string_view reason, bool leaving,
               const std::string& host);

  const Parts parts_;
};

}  // namespace evergrad::coordinator
