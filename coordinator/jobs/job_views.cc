#include "coordinator/jobs/job_views.h"

#include <algorithm>
#include <string>

#include "common/client/run_file_names.h"
#include "coordinator/jobs/job_parts.h"

namespace evergrad::coordinator {
namespace {

void FillCheckpoint(const CheckpointRounds& rounds, v1::JobStatus* status) {
  const v1::CheckpointStatus& newest = rounds.status();
  if (!rounds.on() && newest.number() == 0 && newest.trouble().empty()) return;
  *status->mutable_checkpoint() = newest;
  if (newest.uri().empty()) status->mutable_checkpoint()->set_uri(rounds.folder());
}

// Returns "repairing" while closures are run again for rolled-back shards. The job's counters do
// not change in this time, and without this word the job would look stuck.
std::string PhaseText(const JobParts& parts) {
  return parts.phases.In(JobPhase::kTraining) && parts.book && parts.book->RepairsPending()
             ? "repairing"
             : std::string(JobPhaseName(parts.phases.phase()));
}

}  // namespace

void FillJobStatus(const JobParts& parts, std::uint64_t events_after, v1::JobStatus* status) {
  const JobPhases& phases = parts.phases;
  const bool active = phases.active(), ended = phases.ended();
  status->set_job_uid(parts.id.uid.value());
  status->set_name(parts.id.spec.name);
  status->set_owner(parts.id.owner);
  status->set_request_id(parts.id.request_id);
  status->set_state(std::string(JobStateName(phases.state())));
  status->set_revision(parts.news.revision());
  status->set_waiting_for(parts.waits.Text());
  status->set_phase(PhaseText(parts));
  if (phases.cause() && ended) *status->mutable_first_cause() = *phases.cause();
  status->set_runs_folder(parts.id.runs_folder);
  status->set_runs_host(parts.host->HostName());
  status->set_runs_mark(client::RunMark(parts.id.uid));
  parts.source->FillStatus(status);
  parts.closure_totals.FillStatus(ended, parts.epochs.succeeded(), status);
  status->set_share(parts.id.spec.resources.share);
  parts.plan.FillStatus(status);
  if (active) parts.server_admission.FillStatus(status);
  status->set_updates_exact(ended && parts.claims.updates_exact());
  parts.epochs.FillStatus({.active = active,
                           .ended = ended,
                           .training = phases.In(JobPhase::kTraining),
                           .paused = parts.waits.TrainingPaused(),
                           .planned = parts.plan && !parts.source->has_callers(),
                           .rate = parts.rate.rate()},
                          status);
  if (active) parts.deaths.FillStatus(parts.roster.workers(), status);
  parts.roster.FillStatus(parts.totals.WorkerRows(), status);
  parts.events.FillStatus(events_after, status);
  status->set_result_json(ended ? parts.output.result() : "");
  status->set_weights_exported(parts.exports.weights_exported());
  parts.times.FillStatus(status);
  status->set_shards_rolled_back(parts.placer.rolled_back());
  FillCheckpoint(parts.rounds, status);
}

RunFacts FactsOf(const JobParts& parts) {
  const JobPhases& phases = parts.phases;
  RunFacts facts{.id = parts.id,
                 .times = parts.times,
                 .started = !phases.never_started(),
                 .state = std::string(JobStateName(phases.ending())),
                 .cause = phases.cause() ? &*phases.cause() : nullptr,
                 .epochs = parts.epochs,
                 .rate = parts.rate,
                 .closures = parts.closure_totals.Counts(parts.epochs.succeeded()),
                 .tasks = parts.totals,
                 .events = parts.events,
                 .plan = parts.plan ? &parts.plan.message() : nullptr,
                 .model_summary = parts.plan.described().model_summary(),
                 .shards = parts.report.answer(),
                 .shards_rolled_back = parts.placer.rolled_back(),
                 .updates_exact = parts.claims.updates_exact(),
                 .checkpoint = parts.rounds.status(),
                 .files = parts.exports.files()};
  parts.source->FillResult(&facts.source);
  return facts;
}

std::optional<double> CheckpointAgeSeconds(const JobParts& parts) {
  if (!parts.rounds.on() || !parts.phases.active()) return std::nullopt;
  const v1::CheckpointStatus& newest = parts.rounds.status();
  const std::int64_t since_ms = newest.number() == 0 ? parts.times.started_ms : newest.written_ms();
  // The wall clock may have been set back.
  return static_cast<double>(std::max<std::int64_t>(0, parts.host->WallMillis() - since_ms)) / 1000;
}

}  // namespace evergrad::coordinator
