// What a job waits for, in one text for people: the store, workers, servers, or the end of what its
// phase does. Each part has the text of its own wait; here one of them is chosen.
//
// Not thread-safe: the control executor's. No clock and no I/O but through the host.
#pragma once

#include <memory>
#include <string>

#include "coordinator/jobs/checkpoint_rounds.h"
#include "coordinator/jobs/closure_source.h"
#include "coordinator/jobs/export_files.h"
#include "coordinator/jobs/final_report.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/job_phases.h"
#include "coordinator/jobs/reach_watch.h"
#include "coordinator/jobs/shard_placer.h"
#include "coordinator/jobs/shard_seal.h"
#include "coordinator/jobs/worker_roster.h"

namespace evergrad::coordinator {

class JobWaits : private JobPart {
 public:
  struct Parts {
    const JobPhases* phases;
    const WorkerRoster* roster;
    const ShardPlacer* placer;
    const ReachWatch* reach;
    const ExportFiles* exports;
    const FinalReport* report;
    const CheckpointRounds* rounds;
    const ShardSeal* seal;
    const std::unique_ptr<ClosureSource>* source;  // Made later.
  };
  // What `parts` points to outlives this object.
  JobWaits(const JobPart& part, const Parts& parts) : JobPart(part), parts_(parts) {}

  std::string Text() const;  // "": the job waits for nothing.
  // A training job trains on no new examples now: it repairs, or waits.
  bool TrainingPaused() const;

 private:
  std::string WhileClosing() const;
  std::string ForWorkers() const;   // Workers that can do the work of the phase.
  std::string ForProgress() const;  // By workers and servers that are here.

  const Parts parts_;
};

}  // namespace evergrad::coordinator
