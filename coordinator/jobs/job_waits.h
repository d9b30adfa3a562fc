// Describes in one text, for people, what a job waits for. A job may wait for the store, workers,
// servers, or the end of its phase. Each part of the job has the text of its own wait; this class
// chooses one of these texts.
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
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
    const std::unique_ptr<ClosureSource>* source;  // The source is made later.
  };
  // All of `parts` outlive this object.
  JobWaits(const JobPart& part, const Parts& parts) : JobPart(part), parts_(parts) {}

  std::string Text() const;  // "" if the job waits for nothing.
  // Returns whether a training job trains on no new examples now, because it repairs or waits.
  bool TrainingPaused() const;

 private:
  std::string WhileClosing() const;
  // A text about the wait for workers that can do the phase's work.
  std::string ForWorkers() const;
  std::string ForProgress() const;  // A text about the wait for progress of connected tasks.

  const Parts parts_;
};

}  // namespace evergrad::coordinator
