// The journal of a job: what its commits hold, and how the job comes back from them.
//
// A snapshot holds the fields of every part; between two snapshots notes ride beside the ledger's
// records (journal_writer.h). Reading a note runs the same code as the event did. Not thread-safe:
// the control executor's. An error of the store is told to the host: nothing may be sent then that
// follows from the commit.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/jobs/checkpoint_rounds.h"
#include "coordinator/jobs/closure_source.h"
#include "coordinator/jobs/closure_totals.h"
#include "coordinator/jobs/death_watch.h"
#include "coordinator/jobs/epoch_account.h"
#include "coordinator/jobs/event_log.h"
#include "coordinator/jobs/export_files.h"
#include "coordinator/jobs/final_report.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/job_phases.h"
#include "coordinator/jobs/job_plan.h"
#include "coordinator/jobs/journal_writer.h"
#include "coordinator/jobs/run_output.h"
#include "coordinator/jobs/run_times.h"
#include "coordinator/jobs/shard_placer.h"
#include "coordinator/jobs/state_store.h"
#include "coordinator/jobs/task_totals.h"
#include "coordinator/jobs/training_rate.h"
#include "coordinator/jobs/worker_claims.h"
#include "coordinator/jobs/worker_roster.h"

namespace evergrad::coordinator {

class JobJournal : private JobPart {
 public:
  // Every part that has something in the journal.
  struct Parts {
    JobPhases* phases;
    RunTimes* times;
    JobPlan* plan;
    EpochAccount* epochs;
    TrainingRate* rate;
    ClosureTotals* closures;
    TaskTotals* tasks;
    WorkerRoster* roster;
    WorkerClaims* claims;
    DeathWatch* deaths;
    EventLog* events;
    ShardPlacer* placer;
    CheckpointRounds* rounds;
    ExportFiles* exported;
    FinalReport* report;
    RunOutput* output;
    const std::unique_ptr<ClosureSource>* source;  // Made later.
  };
  // What `parts` points to outlives this object.
  JobJournal(const JobPart& part, const Parts& parts);

  JournalWriter& writer() { return writer_; }
  bool on() const { return writer_.on(); }  // Somebody reads notes and snapshots.

  // --- commits. They return false if the store failed.
  // As JobActions. Everything is committed whole when the notes are many.
  bool Persist(const Record& record);
  bool PersistWhole();
  // Commits the lines of metrics.jsonl that are pending, and writes those that are durable.
  void FlushLines();

  // --- a restart
  // The identity of a job that the store holds, by its snapshot. A job file that this version
  // refuses is InvalidArgument; of a job that has ended, the identity is what the snapshot shows,
  // and `refusal` has the reason.
  static absl::StatusOr<JobIdentity> IdentityOf(JobUid uid, const v1::JobSnapshot& snapshot,
                                                std::string* refusal);
  // Reads the fields of all parts. `make_book` is called once a living job has its plan.
  // InvalidArgument, DataLoss: the snapshot or a note is malformed, or does not fit to the plan.
  absl::Status Read(const v1::JobSnapshot& snapshot, const StoredJob& stored,
                    const std::function<absl::Status()>& make_book, std::string* refusal);

 private:
  void FillSnapshot(v1::JobSnapshot* snapshot) const;
  void FillCounters(v1::JobCounters* counters) const;
  absl::Status ReadSnapshot(const v1::JobSnapshot& snapshot,
                            const std::function<absl::Status()>& make_book, std::string* refusal);
  absl::Status ReadNote(const v1::JobNote& note);
  void ReadCounters(const v1::JobCounters& counters);

  const Parts parts_;
  JournalWriter writer_;
};

}  // namespace evergrad::coordinator
