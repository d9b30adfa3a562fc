// Sends the tasks of a job the news about it: the job itself, the map of its shards, the closures
// that have ended, and its end. Only ready tasks get these messages; other tasks get the same
// content in their Registered, or when they become ready.
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
#pragma once

#include "common/base/ids.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/job_phases.h"
#include "coordinator/jobs/task_totals.h"
#include "coordinator/jobs/worker_roster.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class JobNotices : private JobPart {
 public:
  // The pointers outlive this object.
  JobNotices(const JobPart& part, const WorkerRoster* roster, const TaskTotals* totals)
      : JobPart(part), roster_(*roster), totals_(*totals) {}

  void FillInfo(v1::JobInfo* info) const;
  void FillMap(v1::ShardMap* map) const;  // Without a book the map has no shards.

  void SendInfo();                // Sends a JobInfo to all tasks of the job.
  void SendMap();                 // Sends the map to the workers, once there is a book.
  void Introduce(TaskId worker);  // Sends JobInfo and map to a worker that may have dropped them.
  void SendCloses();  // Sends each server the ended closures that its shards do not know yet.
  // Announces that the job ends in the state `ending`. The workers then drop all state of the job,
  // and the servers drop its shards.
  void SendEnded(JobState ending, bool workers, bool servers);

 private:
  void Send(const v1::CoordinatorMessage& message, bool workers, bool servers);

  const WorkerRoster& roster_;
  const TaskTotals& totals_;
};

}  // namespace evergrad::coordinator
