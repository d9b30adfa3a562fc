// Handles parameter servers that come to a job and leave it: the effect of a registration on the
// shards of the job, and servers that disconnect, get a notice, or are lost.
//
//   Admit (fills the Registered) ─▶ Ready ─▶ OnAway ─▶ Admit again, or OnLost: others get its
//   shards
//
// ShardPlacer and ShardMover decide where the shards go. Not thread-safe: only the control executor
// calls it. Clock and I/O come from the host.
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
    std::function<void()> want_whole;  // Requests a snapshot, for state that notes do not hold.
  };
  // All of `parts` outlive this object.
  ServerAdmission(const JobPart& part, Parts parts) : JobPart(part), parts_(std::move(parts)) {}

  // Called when a server registers. Fills the job's fields of `registered` and sends nothing to the
  // server. Returns InvalidArgument and changes nothing if a set in the Hello is malformed.
  absl::Status Admit(TaskId task, const std::string& identity,
                     const std::optional<FormerTask>& former, const v1::Hello& hello,
                     v1::Registered* registered);
  // Called when the Registered was sent. Ready, OnLeaving and OnLost return false if `task` is no
  // server of the job.
  bool Ready(TaskId task);
  // Called when the server announces its end. If `drains` is true, its shards are moved to other
  // servers first. Also returns false if the server has already announced its end.
  bool OnLeaving(TaskId task, const std::string& reason, bool drains);
  // Returns false if nothing changes.
  bool OnCordon(TaskId task, bool on);
  void OnAway(TaskId task, absl::string_view reason);  // Called when the server has disconnected.
  // Declares the server lost: its shards go to other servers.
  bool OnLost(TaskId task, const std::string& identity, absl::string_view reason, bool leaving);
  // Takes the numbers in a heartbeat.
  void OnProgress(TaskId task, const v1::ServerProgress& said);

  // --- a restart of the coordinator
  void AwaitOwners();     // Gives each server in the map the time JobOptions::server_lost_after to
                          // return.
  void AwaitFromNowOn();  // Restarts the times of AwaitOwners when the start-up window has closed.
  // If a server in the map has not returned in time, declares one such server lost. Returns false
  // if there is none, or if the start-up window is open.
  bool LoseMissing();
  void DisconnectAll();  // Called when all sessions have ended.

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
