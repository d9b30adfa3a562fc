// The journal of a job: the content of its commits, and how a restart restores the job from them.
//
// A snapshot holds the fields of every part. Between two snapshots each commit has a record of the
// ledger and a note (journal_writer.h). Reading a note runs the same code as the event did. Not
// thread-safe: only the control executor calls it. An error of the store is reported to the host,
// and the job must then send no message that follows from the commit.
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
  // The parts that have fields in the journal.
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
    const std::unique_ptr<ClosureSource>* source;  // The source is made later.
  };
  // All of `parts` outlive this object.
  JobJournal(const JobPart& part, const Parts& parts);

  JournalWriter& writer() { return writer_; }
  bool on() const { return writer_.on(); }  // True if notes and snapshots are kept.

  // --- commits. They return false if the store failed. Persist and PersistWhole implement
  // JobActions. When the store holds many notes of the job, Persist writes a snapshot, which
  // replaces them.
  bool Persist(const Record& record);
  bool PersistWhole();
  // Commits the pending lines of metrics.jsonl, and writes the durable lines to the file.
  void FlushLines();

  // --- a restart.
  // Returns the identity of a job in the store, read from its snapshot. This version may refuse the
  // job's YAML. The result is then InvalidArgument if the job has not ended. If it has ended, the
  // result is the identity in the snapshot, and `refusal` is set to the reason.
  static absl::StatusOr<JobIdentity> IdentityOf(JobUid uid, const v1::JobSnapshot& snapshot,
                                                std::string* refusal);
  // Restores all parts. `make_book` is called once a job that has not ended has its plan. Returns
  // InvalidArgument or DataLoss if the snapshot or a note is malformed or does not fit the plan.
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
