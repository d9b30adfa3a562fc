#include "coordinator/jobs/job.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

std::optional<FormerTask> FormerOf(std::optional<TaskId> former, bool died) {
  if (!former) return std::nullopt;
  return FormerTask{*former, died};
}

}  // namespace

Job::Job(JobHost* host, const JobOptions& options, Identity identity)
    : Job(host, options, std::move(identity), Restored{}) {
  parts_.times.submitted_ms = host->WallMillis();
  life_.Event("state", "submitted");
}

Job::Job(JobHost* host, const JobOptions& options, Identity identity, Restored)
    : parts_(host, options, std::move(identity), &life_) {}

Job::~Job() = default;

absl::StatusOr<std::unique_ptr<Job>> Job::Restore(JobHost* host, const JobOptions& options,
                                                  JobUid uid, const StoredJob& stored) {
  v1::JobSnapshot snapshot;
  const auto named = [&](const absl::Status& status) {
    return absl::Status(
        status.code(),
        absl::StrCat("cannot resume a job of the journal: job=", JobUidString(uid),
                     snapshot.name().empty() ? "" : absl::StrCat(" name=", snapshot.name()),
                     " reason=", status.message()));
  };
  if (stored.snapshot.empty() || !snapshot.ParseFromString(stored.snapshot))
    return named(absl::DataLossError("its snapshot is missing or unreadable"));
  std::string refusal;
  absl::StatusOr<JobIdentity> id = JobJournal::IdentityOf(uid, snapshot, &refusal);
  if (!id.ok()) return named(id.status());
  std::unique_ptr<Job> job(new Job(host, options, *std::move(id), Restored{}));
  if (absl::Status status = job->life_.Restore(snapshot, stored, std::move(refusal)); !status.ok())
    return named(status);
  job->end_taken_ = job->ended();
  return job;
}

void Job::Tick() {
  if (!active()) return;
  const MonoTime now = parts_.host->Now();
  parts_.training.Release(now);
  parts_.turn.SendDelayed(now);
  parts_.placer.Retry(now);
  parts_.deaths.Judge();
  parts_.mover.SendMap(true);
  parts_.revoker.Check(parts_.phases.window_open());
  parts_.report.Check();
  parts_.source->CheckClosing();
  life_.end().CheckSealed();
  if (!parts_.phases.window_open()) parts_.sealed_export.Pump();
  if (ended()) return;
  if (now >= next_close_) {
    next_close_ = now + parts_.options.close_every;
    life_.SendCloses();
  }
  while (parts_.server_admission.LoseMissing()) {
    life_.end().CheckSealed();
    life_.Pump();
  }
  if (ended()) return;
  if (parts_.phases.In(JobPhase::kTraining) && parts_.rate.IsDue(now)) life_.SampleRate();
  life_.TickCheckpoints(now);
  if (ended()) return;
  parts_.journal.FlushLines();
  parts_.news.Tick(now);
  life_.Pump();
}

// ---------------------------------------------------------------- tasks

void Job::AdmitWorker(TaskId task, const std::string& identity, MonoTime backoff_until,
                      std::optional<TaskId> former, bool former_died, const v1::Hello& hello,
                      v1::Registered* registered) {
  parts_.worker_admission.Admit(task, identity, backoff_until, FormerOf(former, former_died), hello,
                                registered);
}

absl::Status Job::AdmitServer(TaskId task, const std::string& identity,
                              std::optional<TaskId> former, bool former_died,
                              const v1::Hello& hello, v1::Registered* registered) {
  return parts_.server_admission.Admit(task, identity, FormerOf(former, former_died), hello,
                                       registered);
}

void Job::Ready(TaskId task) {
  if (parts_.worker_admission.Ready(task) || parts_.server_admission.Ready(task)) life_.Pump();
}

void Job::Speaks(TaskId task) {
  if (parts_.worker_admission.Speaks(task)) life_.Pump();
}

void Job::OnWorkerGone(TaskId task, absl::string_view reason, bool leaving) {
  if (parts_.worker_admission.OnGone(task, reason, leaving)) life_.Pump();
}

void Job::OnLeaving(TaskId task, absl::string_view said, bool drains) {
  const std::string reason =
      said.empty() ? std::string("no reason given") : client::CleanText(said, 200);
  if (parts_.worker_admission.OnLeaving(task, reason)) return;
  if (parts_.server_admission.OnLeaving(task, reason, drains)) life_.Pump();
}

void Job::OnServerLost(TaskId task, absl::string_view identity, absl::string_view reason,
                       bool leaving) {
  if (!parts_.server_admission.OnLost(task, std::string(identity), reason, leaving)) return;
  life_.end().CheckSealed();
  life_.Pump();
}

void Job::OnServerCordon(TaskId task, bool on) {
  if (parts_.server_admission.OnCordon(task, on)) life_.Pump();
}

// ---------------------------------------------------------------- workers shared with other jobs

void Job::CallBack(TaskId task) {
  JobWorker* worker = parts_.roster.Find(task);
  if (worker == nullptr || std::exchange(worker->called_back, true)) return;
  parts_.roster.RecallAll(worker);
}

void Job::ReleaseWorker(TaskId task) {
  EndTurn();  // Answers the Dones of the worker first.
  if (parts_.worker_admission.Release(task)) life_.Pump();
}

std::uint32_t Job::useful_workers() const {
  const JobPhases& phases = parts_.phases;
  if (life_.end().WantsSealedExport()) return 1;
  if (!phases.active() || phases.grants_stopped()) return 0;
  if (keeps_its_worker()) return 1;
  std::uint64_t useful = 1;
  if (phases.In(JobPhase::kEvaluating)) useful = parts_.reading.left();
  if (phases.In(JobPhase::kReporting) || phases.In(JobPhase::kSaving)) useful = 0;
  if (phases.In(JobPhase::kTraining))
    useful = parts_.source->UsefulWorkers(parts_.roster.workers().size());
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(useful, 1u << 30));
}

std::uint64_t Job::wanted_workers() const {
  const JobPhases& phases = parts_.phases;
  if (life_.end().WantsSealedExport()) return 1;
  if (phases.grants_stopped()) return 0;
  const JobPhase phase = phases.phase();
  if (keeps_its_worker() || phase < JobPhase::kPlacing || phase > JobPhase::kEvaluating) return 1;
  const std::uint64_t reading = phase == JobPhase::kEvaluating ? parts_.reading.left() : 0;
  const std::uint64_t least = parts_.source->has_callers() ? 0 : 1;
  return std::max({parts_.source->WantedWorkers(), reading, least});
}

// ---------------------------------------------------------------- messages

absl::Status Job::OnMessage(TaskId task, const v1::TaskMessage& message) {
  switch (message.message_case()) {
    case v1::TaskMessage::kHeartbeat: OnHeartbeat(task, message.heartbeat()); break;
    case v1::TaskMessage::kDone: return parts_.reports.OnDone(task, message.done());
    case v1::TaskMessage::kFailed: parts_.reports.OnFailed(task, message.failed()); break;
    case v1::TaskMessage::kDropped: parts_.reports.OnDropped(task, message.dropped()); break;
    case v1::TaskMessage::kAssigned:
      if (parts_.placer.OnAssigned(task, message.assigned())) life_.Pump();
      break;
    case v1::TaskMessage::kClosed: OnClosed(task, message.closed()); break;
    case v1::TaskMessage::kSealed:
      if (!parts_.phases.In(JobPhase::kSealing)) break;
      parts_.seal.OnSealed(task, message.sealed());
      life_.end().CheckSealed();
      break;
    case v1::TaskMessage::kShardReport: parts_.report.OnReport(task, message.shard_report()); break;
    case v1::TaskMessage::kStopped: parts_.mover.OnStopped(task, message.stopped()); break;
    case v1::TaskMessage::kReceived: parts_.mover.OnReceived(task, message.received()); break;
    case v1::TaskMessage::kRunFile: return parts_.exports.OnChunk(task, message.run_file());
    case v1::TaskMessage::kShardDurable:
      return parts_.rounds.OnDurable(task, message.shard_durable());
    default: break;
  }
  return absl::OkStatus();
}

void Job::OnClosed(TaskId task, const v1::Closed& closed) {
  if (!parts_.book || closed.shard() >= parts_.shards.size()) return;
  parts_.book->OnClosed(task, ShardId(closed.shard()),
                        client::FromProto<ShardEpoch>(closed.epoch()), closed.taken());
  const bool wanted = parts_.phases.In(JobPhase::kSaving) || parts_.source->WantsRound();
  if (wanted && !parts_.rounds.round_open()) life_.TickCheckpoints(parts_.host->Now());
  parts_.source->CheckClosing();
}

void Job::OnHeartbeat(TaskId task, const v1::Heartbeat& heartbeat) {
  // A worker that does not know this job yet reports progress of the job that it served before.
  if (JobWorker* worker = parts_.roster.Find(task); worker != nullptr && heartbeat.has_worker() &&
                                                    heartbeat.worker().job_uid() == uid().value()) {
    parts_.roster.OnProgress(worker, heartbeat.worker());
    if (active()) parts_.roster.TellPauses();
    parts_.totals.ReportWorker(worker->identity, heartbeat.worker());
  }
  if (heartbeat.has_server()) parts_.server_admission.OnProgress(task, heartbeat.server());
}

// ---------------------------------------------------------------- the calls of clients

absl::StatusOr<FunctionCalls*> Job::function_calls() {
  if (FunctionCalls* const calls = parts_.source->calls()) return calls;
  return UserError(absl::FailedPreconditionError(
      absl::StrCat("closures can be scheduled only in jobs of spec.type functions: job=", name(),
                   " type=", parts_.id.spec.type)));
}

}  // namespace evergrad::coordinator
