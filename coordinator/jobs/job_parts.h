// The parts of a job, and the connections between them. The struct has no behaviour: JobLife
// carries out the effects of the phases, and Job takes the calls of the control plane.
//
// Parts keep references to one another, also to parts that are constructed later. The parts are
// constructed in the order of the members, so a part that is used during the construction of
// another part comes before it. The constructor connects the parts that call JobLife. Not
// thread-safe: only the control executor calls it.
#pragma once

#include <functional>
#include <memory>

#include "coordinator/closures/closure_book.h"
#include "coordinator/jobs/checkpoint_resume.h"
#include "coordinator/jobs/checkpoint_rounds.h"
#include "coordinator/jobs/closure_source.h"
#include "coordinator/jobs/closure_totals.h"
#include "coordinator/jobs/death_watch.h"
#include "coordinator/jobs/done_turn.h"
#include "coordinator/jobs/epoch_account.h"
#include "coordinator/jobs/event_log.h"
#include "coordinator/jobs/export_files.h"
#include "coordinator/jobs/final_report.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/job_journal.h"
#include "coordinator/jobs/job_kind.h"
#include "coordinator/jobs/job_news.h"
#include "coordinator/jobs/job_notices.h"
#include "coordinator/jobs/job_phases.h"
#include "coordinator/jobs/job_plan.h"
#include "coordinator/jobs/job_waits.h"
#include "coordinator/jobs/reading_work.h"
#include "coordinator/jobs/run_output.h"
#include "coordinator/jobs/run_times.h"
#include "coordinator/jobs/sealed_export.h"
#include "coordinator/jobs/server_admission.h"
#include "coordinator/jobs/shard_mover.h"
#include "coordinator/jobs/shard_placer.h"
#include "coordinator/jobs/shard_seal.h"
#include "coordinator/jobs/shard_table.h"
#include "coordinator/jobs/task_totals.h"
#include "coordinator/jobs/training_rate.h"
#include "coordinator/jobs/training_work.h"
#include "coordinator/jobs/work_revoker.h"
#include "coordinator/jobs/worker_admission.h"
#include "coordinator/jobs/worker_claims.h"
#include "coordinator/jobs/worker_reports.h"
#include "coordinator/jobs/worker_roster.h"

namespace evergrad::coordinator {

class JobLife;

struct JobParts {
  // `job_host` and `life` outlive this object.
  JobParts(JobHost* job_host, const JobOptions& job_options, JobIdentity identity, JobLife* life);

  EpochAccount::Context account_context() {
    return {host->Now(), host->WallMillis(), &output.lines()};
  }

  JobHost* const host;
  const JobOptions options;
  const JobIdentity id;
  const JobKind& kind;
  JobPlan plan;
  JobPhases phases;
  const JobPart part;  // Passed to every part.

  // Tasks.
  EventLog events{options.events_max};
  FinalReport report{part};
  WorkerRoster roster{part, &epochs};
  ShardTable shards;
  DeathWatch deaths{part, &events, [this](ClosureId closure) { return source->NameOf(closure); }};
  ShardPlacer placer{part, &deaths.backoff(), &report.queries()};
  ShardMover mover{part, &placer};
  TaskTotals totals;
  JobNotices notices{part, &roster, &totals};
  ReadingWork reading{
      part,
      &roster,
      {.blocked = [this] { return training.GrantsBlocked(); },
       .fill_order = [this](v1::ExportOrder* order) { exports.FillOrder(order); },
       .no_space = [this](ReadingRound::Closure* closure,
                          absl::string_view why) { exports.OnNoSpace(closure, why); }}};
  WorkerAdmission worker_admission{
      part,
      {.phases = &phases,
       .claims = &claims,
       .notices = &notices,
       .roster = &roster,
       .reading = &reading,
       .deaths = &deaths,
       .totals = &totals},
      {.knows = [this](ClosureId closure) { return source->Knows(closure); },
       .adopted = std::bind_front(&ClosureTotals::OnAdopted, &closure_totals),
       .want_whole = [this] { journal.writer().WantWhole(); }}};
  ServerAdmission server_admission{part,
                                   {.phases = &phases,
                                    .notices = &notices,
                                    .placer = &placer,
                                    .mover = &mover,
                                    .seal = &seal,
                                    .queries = &report.queries(),
                                    .deaths = &deaths,
                                    .totals = &totals,
                                    .want_whole = [this] { journal.writer().WantWhole(); }}};

  // Work.
  std::unique_ptr<ClosureBook> book;  // Null before the plan and after the job's end.
  DoneTurn turn{part};
  WorkRevoker revoker{
      part, {.roster = &roster, .reading = &reading, .deaths = &deaths, .source = &source}};
  EpochAccount epochs;
  WorkerClaims claims{part, &epochs};
  CheckpointRounds rounds;
  CheckpointResume resume;
  ExportFiles exports;
  TrainingRate rate{options.curve_points_max};
  RunOutput output;
  JobNews news{part, &events, &output};
  ClosureTotals closure_totals{part};
  JobJournal journal{part,
                     {.phases = &phases,
                      .times = &times,
                      .plan = &plan,
                      .epochs = &epochs,
                      .rate = &rate,
                      .closures = &closure_totals,
                      .tasks = &totals,
                      .roster = &roster,
                      .claims = &claims,
                      .deaths = &deaths,
                      .events = &events,
                      .placer = &placer,
                      .rounds = &rounds,
                      .exported = &exports,
                      .report = &report,
                      .output = &output,
                      .source = &source}};
  TrainingWork training{part,
                        {.roster = &roster,
                         .claims = &claims,
                         .deaths = &deaths,
                         .turn = &turn,
                         .journal = &journal.writer(),
                         .totals = &closure_totals,
                         .source = &source}};
  const std::unique_ptr<ClosureSource> source;

  // The end.
  ShardSeal seal{part};
  SealedExport sealed_export;
  WorkerReports reports;
  RunTimes times{.submitted_at = host->Now()};
  JobWaits waits{part,
                 {.phases = &phases,
                  .roster = &roster,
                  .placer = &placer,
                  .reach = &revoker.reach(),
                  .exports = &exports,
                  .report = &report,
                  .rounds = &rounds,
                  .seal = &seal,
                  .source = &source}};

 private:
  ClosureSourceParts SourceParts();
};

}  // namespace evergrad::coordinator
