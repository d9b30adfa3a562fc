#include "coordinator/service/task_messages.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/task_answers.h"

namespace evergrad::coordinator {

void TaskMessages::Heard(Session& session) {
  parts_.membership->Heard(parts_.clock->Now(), session.task);
  if (std::exchange(session.spoke, true) || session.role != Role::kWorker) return;
  if (Job* job = parts_.JobOf(session.task)) job->Speaks(session.task);
}

absl::Status TaskMessages::OnMessage(Session& session, const v1::TaskMessage& message) {
  std::optional<std::uint64_t> named;  // the job that the message is about
  switch (message.message_case()) {
    case v1::TaskMessage::kHello:
      return absl::InvalidArgumentError("the task sent a second Hello in one session");
    case v1::TaskMessage::kHeartbeat:
      if (parts_.reports->OnHeartbeat(session.task, message.heartbeat())) WarnJobs(session);
      break;
    case v1::TaskMessage::kLeaving: OnLeaving(session, message.leaving()); return absl::OkStatus();
    case v1::TaskMessage::kLogLines:
      parts_.log_reads->OnLines(session.task, message.log_lines());
      return absl::OkStatus();
    case v1::TaskMessage::kDone: named = message.done().job_uid(); break;
    case v1::TaskMessage::kFailed: named = message.failed().job_uid(); break;
    case v1::TaskMessage::kDropped: named = message.dropped().job_uid(); break;
    case v1::TaskMessage::kAssigned: named = message.assigned().job_uid(); break;
    case v1::TaskMessage::kClosed: named = message.closed().job_uid(); break;
    case v1::TaskMessage::kSealed: named = message.sealed().job_uid(); break;
    case v1::TaskMessage::kShardDurable: named = message.shard_durable().job_uid(); break;
    case v1::TaskMessage::kStopped: named = message.stopped().job_uid(); break;
    case v1::TaskMessage::kReceived: named = message.received().job_uid(); break;
    case v1::TaskMessage::kRunFile:
      if (session.role != Role::kWorker)
        return absl::InvalidArgumentError("only a worker may send a file of an export");
      named = message.run_file().job_uid();
      break;
    case v1::TaskMessage::kShardReport: break;
    case v1::TaskMessage::MESSAGE_NOT_SET:
      return absl::InvalidArgumentError("the task sent an empty or unknown message");
  }
  return RouteToJobs(session, message, named);
}

void TaskMessages::WarnJobs(const Session& session) const {
  const TaskReport& report = *parts_.reports->Find(session.task);
  const std::string text =
      absl::StrCat(RoleName(session.role), "/", parts_.membership->Find(session.task)->identity,
                   ": ", report.recommendation);
  if (session.role == Role::kWorker) {
    if (Job* job = parts_.JobOf(session.task)) job->Warn(text);
    return;
  }
  for (const v1::JobUsage& use : report.server.jobs()) {
    if (use.shards() == 0) continue;
    if (Job* job = parts_.jobs->Running(JobUid(use.job_uid()))) job->Warn(text);
  }
}

void TaskMessages::OnLeaving(const Session& session, const v1::Leaving& leaving) {
  const TaskId task = session.task;
  const std::string reason = leaving.reason().substr(0, 200);
  parts_.membership->Leaving(parts_.clock->Now(), task, client::CleanText(leaving.reason(), 200));
  parts_.reports->SetLeaving(task, reason);
  if (session.role == Role::kWorker) {
    if (Job* job = parts_.JobOf(task)) job->OnLeaving(task, reason, false);
    return;
  }
  if (leaving.drains()) parts_.drains->Begin(task);
  for (Job* job : parts_.jobs->Running()) job->OnLeaving(task, reason, parts_.drains->Waits(task));
  parts_.drains->Check(task);
}

// A message that names no job goes to every job that the task belongs to. A worker's message about
// a job that it does not serve is not passed to the job.
absl::Status TaskMessages::RouteToJobs(Session& session, const v1::TaskMessage& message,
                                       std::optional<std::uint64_t> named) {
  const TaskId task = session.task;
  absl::InlinedVector<Job*, 8> to;
  if (session.role == Role::kPsServer && !named) {
    for (Job* job : parts_.jobs->Running()) to.push_back(job);
  } else if (Job* job = session.role == Role::kWorker ? parts_.JobOf(task)
                                                      : parts_.jobs->Running(JobUid(*named));
             job != nullptr && job->uid().value() == named.value_or(job->uid().value())) {
    to.push_back(job);
  }
  for (Job* job : to) {
    absl::Status status = job->OnMessage(task, message);
    if (session.role == Role::kWorker) NoteWork(task, *job, message);
    // The call is posted behind the batches that have arrived so far, which therefore belong to the
    // same turn.
    if (job->turn_open() && !std::exchange(end_posted_, true))
      parts_.control->Post([this] { EndTurns(); });
    if (!status.ok()) return status;
  }
  if (to.empty() && named) AnswerForNoJob(session, message, *named);
  return absl::OkStatus();
}

void TaskMessages::NoteWork(TaskId worker, const Job& job, const v1::TaskMessage& message) {
  WorkTimes& times = parts_.metrics->work_times;
  const MonoTime now = parts_.clock->Now();
  if (message.has_done())
    times.OnDone(worker, job.uid(), client::FromProto<Attempt>(message.done().attempt()), now);
  times.OnMessageOf(worker, job.uid(), job.Holds(worker), now);
}

void TaskMessages::AnswerForNoJob(Session& session, const v1::TaskMessage& message,
                                  std::uint64_t job) {
  if (message.has_done()) {
    parts_.sessions->Queue(session,
                           Superseded(job, message.done().closure(), message.done().attempt()));
  } else if (message.has_assigned() && message.assigned().ok()) {
    parts_.sessions->Queue(session,
                           Drop(job, message.assigned().shard(), message.assigned().epoch()));
  }
}

bool TaskMessages::CommitTurns() {
  for (const auto& [uid, job] : parts_.jobs->all()) {
    if (job->turn_open() && !job->CommitTurn()) return false;
  }
  return true;
}

void TaskMessages::EndTurns() {
  end_posted_ = false;
  if (parts_.life->stopped) return;
  for (const auto& [uid, job] : parts_.jobs->all()) job->EndTurn();
}

}  // namespace evergrad::coordinator
