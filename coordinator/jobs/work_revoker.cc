#include "coordinator/jobs/work_revoker.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/job_error.h"
#include "coordinator/jobs/task_answers.h"

namespace evergrad::coordinator {

WorkRevoker::WorkRevoker(const JobPart& part, const Parts& parts)
    : JobPart(part),
      parts_(parts),
      source_(*parts.source),
      reach_(part, parts.roster,
             {.others_can = std::bind_front(&WorkRevoker::OthersCanRun, this),
              .pass_on = std::bind_front(&WorkRevoker::PassOn, this)}) {}

void WorkRevoker::Check(bool window_open) {
  for (const TaskId task : parts_.roster->Stalled(window_open)) {
    if (job_.grants_stopped()) return;
    if (JobWorker* worker = parts_.roster->Find(task)) RevokeStalled(*worker);
  }
  if (!job_.grants_stopped() && !window_open) reach_.Check();
}

void WorkRevoker::Supersede(JobWorker& worker) {
  for (const auto& [attempt, held] : worker.held) {
    host_->Send(worker.task,
                Superseded(id_.uid.value(), held.closure.value(), client::ToProto(attempt)));
    if (held.kind == v1::TRAIN) {
      if (book_) book_->ReleaseAttempt(held.closure, attempt);
    } else if (ReadingRound::Closure* const reading =
                   parts_.reading->HeldBy(worker.task, held.closure.value(), attempt)) {
      reading->attempt = Attempt{};
    }
  }
  parts_.roster->TakeAll(&worker);
}

// ---------------------------------------------------------------- stalled work

// Returns the work that has stalled. A stall is judged like a death, by the closure that the worker
// last reported as running (ARCHITECTURE section 4.7).
WorkRevoker::Stalled WorkRevoker::StalledWork(const JobWorker& worker) const {
  const Attempt running = client::FromProto<Attempt>(worker.progress.running_attempt());
  Stalled stalled;
  for (const auto& [attempt, held] : worker.held) {
    if (held.kind == v1::TRAIN) {
      if (attempt != running || worker.progress.state() != "running") continue;
      stalled.blamed = PoisonRule::Running{held.closure, worker.progress.running_step()};
      stalled.what =
          absl::StrCat("closure ", held.closure.value(), " step ", worker.progress.running_step());
      continue;
    }
    ReadingRound::Closure* const reading =
        parts_.reading->HeldBy(worker.task, held.closure.value(), attempt);
    if (reading == nullptr || (stalled.reading != nullptr && attempt != running)) continue;
    stalled.reading = reading;
    stalled.what =
        absl::StrCat(v1::WorkKind_Name(held.kind), " closure ", held.closure.value() & 0xffffffffu);
  }
  return stalled;
}

void WorkRevoker::RevokeStalled(JobWorker& worker) {
  const MonoTime now = host_->Now();
  const Stalled stalled = StalledWork(worker);
  const std::size_t attempts = worker.held.size();
  Supersede(worker);
  worker.aside_until = now + std::min(options_.aside_max, options_.step_timeout);
  const double seconds = std::chrono::duration<double>(options_.step_timeout).count();
  job_.Event("stall", absl::StrFormat("worker/%s has not advanced a step for %.3g s: %s is revoked "
                                      "(%d attempts) and granted to other workers",
                                      worker.identity, seconds, stalled.what, attempts));
  parts_.deaths->OnStall(now, stalled.blamed);
  if (stalled.blamed)
    job_.SayNotReproducible(
        absl::StrCat(stalled.what, " was revoked from worker/", worker.identity));
  job_.Touch();
  if (stalled.reading == nullptr || ++stalled.reading->stalls < options_.poison_deaths) return;
  job_.Fail(
      MakeError(absl::DeadlineExceededError(absl::StrCat(
                    "work repeatedly made no progress; raise step_timeout if the work is only "
                    "slow: work=",
                    stalled.what, " times=", stalled.reading->stalls, " step_timeout_s=", seconds)),
                "poison", absl::StrCat("worker/", worker.identity)),
      false);
}

// ---------------------------------------------------------------- unreachable servers

// Returns whether another worker could run the closures. The coordinator does not know which
// closures the workers of other jobs can run, so these workers count as able unless the job has
// callers.
bool WorkRevoker::OthersCanRun(const JobWorker& of,
                               const std::vector<const JobWorker*>& able) const {
  if (parts_.roster->elsewhere() > 0 && !source_->has_callers()) return true;
  return std::any_of(able.begin(), able.end(), [&](const JobWorker* other) {
    return std::any_of(of.held.begin(), of.held.end(), [&](const auto& one) {
      return one.second.kind != v1::TRAIN || source_->CanRun(*other, one.second.closure);
    });
  });
}

// Passes the work of the worker to others. The worker then gets no work for a time, which grows
// with each repetition until the worker completes some work.
void WorkRevoker::PassOn(JobWorker& worker, const v1::UnreachedServer& from) {
  const bool trained = std::any_of(worker.held.begin(), worker.held.end(),
                                   [](const auto& one) { return one.second.kind == v1::TRAIN; });
  Supersede(worker);
  worker.progress.clear_unreached();  // The report belongs to the revoked attempt.
  v1::Failed failure;
  failure.set_lack(v1::REACH);
  failure.mutable_cause()->set_message(absl::StrCat("it cannot reach ", ReachRule::Text(from),
                                                    "; its work goes to workers that can"));
  parts_.roster->SetAside(worker, failure, source_->has_callers());
  parts_.roster->SetUnreached(worker, from);
  if (trained)
    job_.SayNotReproducible(
        absl::StrCat("the work of worker/", worker.identity, " was given to other workers"));
  job_.Touch();
  job_.Pump();
}

}  // namespace evergrad::coordinator
