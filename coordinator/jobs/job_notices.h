// What the tasks of a job are told about it: the job itself, the map of its shards, the closures
// that have ended, and its end. Only tasks that are ready are told: others get the same with their
// Registered, or when they are ready.
//
// Not thread-safe: the control executor's. No clock and no I/O but through the host.
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
  void FillMap(v1::ShardMap* map) const;  // Without a book: of no shards.

  void SendInfo();                // To all tasks.
  void SendMap();                 // To the workers, once there is a book.
  void Introduce(TaskId worker);  // The job and its map, to a worker that may have dropped them.
  void SendCloses();              // To the servers: what the shards of each do not know yet.
  // The job ends as `ending`. A worker drops everything of the job, and a server drops its shards.
  void SendEnded(JobState ending, bool workers, bool servers);

 private:
  void Send(const v1::CoordinatorMessage& message, bool workers, bool servers);

  const WorkerRoster& roster_;
  const TaskTotals& totals_;
};

}  // namespace evergrad::coordinator
