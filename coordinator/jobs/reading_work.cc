#include "coordinator/jobs/reading_work.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/task_answers.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kHeldMax = 2;  // Limit for the attempts that one worker holds: one runs, and
                                     // one waits.
// While the job has no ClosureBook, which would number the attempts, attempts get numbers above
// this number. This number is far above the attempt numbers of any book.
constexpr std::uint64_t kDescribeNumbers = 1ull << 62;

}  // namespace

void ReadingWork::Begin(v1::WorkKind kind, std::uint64_t closures, MonoTime not_before) {
  kind_ = kind;
  ReadingRound::Begin(closures, not_before);
}

void ReadingWork::Void() {
  Clear();
  for (auto& [task, worker] : roster_.workers()) {
    for (auto it = worker.held.begin(); it != worker.held.end();) {
      const auto here = it++;
      if (here->second.kind == v1::TRAIN) continue;
      host_->Send(task, Superseded(id_.uid.value(), here->second.closure.value(),
                                   client::ToProto(here->first)));
      worker.Drop(Attempt(here->first));
    }
  }
}

void ReadingWork::Grant() {
  const MonoTime now = host_->Now();
  const WorkerPin::Choice pin = roster_.Pinned();
  while (Closure* const closure = Waiting(now)) {
    JobWorker* best = nullptr;
    for (auto& [task, worker] : roster_.workers()) {
      if (!roster_.Usable(worker, now) || worker.held.size() >= kHeldMax || pin.Excludes(worker))
        continue;
      if (best == nullptr || worker.held.size() < best->held.size()) best = &worker;
    }
    if (best == nullptr || hooks_.blocked()) return;
    GrantTo(*best, closure);
  }
}

void ReadingWork::GrantTo(JobWorker& worker, Closure* closure) {
  closure->attempt = book_ ? book_->NextAttempt()
                           : Attempt{host_->term().value(), kDescribeNumbers + host_->NextNumber()};
  closure->worker = worker.task;
  v1::CoordinatorMessage message;
  v1::Grant* grant = message.mutable_grant();
  grant->set_job_uid(id_.uid.value());
  grant->set_closure(closure->number);
  *grant->mutable_attempt() = client::ToProto(closure->attempt);
  grant->set_kind(kind_);
  grant->set_all_targets(true);
  if (kind_ == v1::EXPORT) hooks_.fill_order(grant->mutable_export_order());
  if (worker.held.empty()) worker.advanced_at = host_->Now();
  worker.Take(closure->attempt, {ClosureId(closure->number), kind_, host_->Now()});
  host_->Send(worker.task, message);
  job_.Touch();
}

bool ReadingWork::Accept(const JobWorker& worker, const v1::Done& done) {
  Closure* const closure =
      HeldBy(worker.task, done.closure(), client::FromProto<Attempt>(done.attempt()));
  if (closure == nullptr || done.kind() != kind_) return false;
  ReadingRound::Accept(closure, done.metrics());
  return true;
}

void ReadingWork::OnFailed(const JobWorker& worker, const v1::Failed& failed, bool elsewhere,
                           v1::ErrorDetail cause) {
  Closure* const closure =
      HeldBy(worker.task, failed.closure(), client::FromProto<Attempt>(failed.attempt()));
  if (closure == nullptr) return;
  if (elsewhere) {
    closure->attempt = Attempt{};
    return job_.Pump();
  }
  if (failed.user_error()) return job_.Fail(std::move(cause), true);
  if (failed.kind() == v1::EXPORT &&
      cause.code() == static_cast<int>(absl::StatusCode::kResourceExhausted)) {
    closure->attempt = Attempt{};
    return hooks_.no_space(closure, cause.message());
  }
  ++closure->failures;
  job_.Event("warning",
             absl::StrCat(v1::WorkKind_Name(failed.kind()), " failed on worker/", worker.identity,
                          " (failures in a row: ", closure->failures, "): ", cause.message()));
  if (closure->failures > options_.retries_max) return job_.Fail(std::move(cause), false);
  closure->attempt = Attempt{};
  closure->not_before = host_->Now() + options_.RetryDelay(closure->failures);
}

bool ReadingWork::OnDropped(TaskId worker, const v1::AttemptDropped& dropped, bool asked) {
  Closure* const closure =
      HeldBy(worker, dropped.closure(), client::FromProto<Attempt>(dropped.attempt()));
  if (closure == nullptr) return false;
  closure->attempt = Attempt{};
  const MonoTime now = host_->Now();
  closure->not_before = std::max(closure->not_before, asked ? now : now + options_.retry_min);
  return true;
}

}  // namespace evergrad::coordinator
