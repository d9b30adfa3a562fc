#include "coordinator/jobs/training_work.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/job_error.h"
#include "coordinator/jobs/task_answers.h"
#include "coordinator/scheduler/grant_sizing.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kDeferredMax = 1u << 16;
constexpr std::uint64_t kLostNamedMax = 8;  // Number of lost closures that get their own events.

}  // namespace

// ---------------------------------------------------------------- grants

std::uint32_t TrainingWork::LimitOf(const JobWorker& worker) const {
  if (parts_.roster->UnfitOf(worker) != nullptr)
    return 1;  // An unfit worker is tried with one attempt.
  const std::uint64_t limit = std::min<std::uint64_t>(plan_->closures(), source_->Limit());
  const std::uint64_t remaining = limit > book_->next_new() ? limit - book_->next_new() : 0;
  return AttemptsAhead(options_.sizing, worker.rate.seconds_per_closure(), remaining,
                       static_cast<std::uint32_t>(parts_.roster->workers().size()));
}

bool TrainingWork::GrantsBlocked() {
  // While the journal accepts no records, no work begins.
  return !host_->StoreTrouble().empty() || hold_.Holds(host_);
}

void TrainingWork::SendTraining(JobWorker& worker, const ClosureBook::Granted& granted,
                                bool regrant) {
  parts_.totals->OnGranted(granted.attempt);
  v1::Grant* grant = message_.mutable_grant();
  grant->set_job_uid(id_.uid.value());
  grant->set_closure(granted.closure.value());
  *grant->mutable_attempt() = client::ToProto(granted.attempt);
  grant->set_kind(v1::TRAIN);
  grant->set_all_targets(granted.all_targets);
  grant->clear_targets();
  for (const ShardId p : granted.targets) grant->add_targets(p.value());
  grant->set_first(regrant);
  grant->clear_function();
  grant->clear_arguments();
  source_->FillGrant(granted.closure, grant);
  grant->set_proof(parts_.claims->ProofOf(worker.identity, granted.closure, granted.attempt));
  if (worker.held.empty()) worker.advanced_at = host_->Now();
  worker.Take(granted.attempt, {granted.closure, v1::TRAIN, host_->Now(), false,
                                grant->arguments().size(), regrant});
  host_->Send(worker.task, message_);
  job_.Touch();
}

// The closure still counts as succeeded (LEDGER line 20b). The updates that the shards of the
// repair lost with a server are not made again, and an event reports these updates.
void TrainingWork::GiveUpRepair(ClosureId closure, Attempt attempt, absl::string_view why) {
  const auto& lost = book_->durable().lost;
  const bool lost_before = std::any_of(lost.begin(), lost.end(), [&](const IntervalSet& of) {
    return of.Contains(closure.value());
  });
  const Record record = book_->FailRepair(closure, attempt);
  if (record.empty()) {  // A shard was rolled back again, or needs no repair.
    book_->ReleaseAttempt(closure, attempt);
    return;
  }
  ForgetErrors(closure);
  const std::size_t shards = record.lost_add.size();
  const std::uint64_t closures =
      parts_.totals->OnLost(!lost_before, shards * source_->OnLost(closure));
  if (closures <= kLostNamedMax) {
    job_.Event("lost",
               absl::StrCat("updates of closure ", closure.value(), " are lost in ", shards,
                            shards == 1 ? " shard" : " shards",
                            ", because the closure cannot be run again: ", why,
                            closures == kLostNamedMax ? "; further losses are only counted" : ""));
  }
  job_.Touch();
  job_.Persist(record);
}

// ---------------------------------------------------------------- answers

bool TrainingWork::IsOfAnother(const JobWorker& worker, ClosureId closure, Attempt attempt) const {
  const auto current = book_->current().find(closure);
  return current != book_->current().end() && current->second.attempt == attempt &&
         current->second.worker != worker.task;
}

void TrainingWork::ForgetErrors(ClosureId closure) {
  failures_.erase(closure.value());
  parts_.deaths->OnEnded(closure);
}

void TrainingWork::OnDone(JobWorker* worker, const v1::Done& done, bool window_open) {
  // The worker's registration has ended. The worker repeats the Done in its next registration.
  if (worker == nullptr) return;
  const Attempt attempt = client::FromProto<Attempt>(done.attempt());
  const ClosureId closure(done.closure());
  DoneTurn& turn = *parts_.turn;
  turn.Open();
  if (!book_) return turn.Add(worker->task, closure, attempt, /*superseded=*/true);
  if (!window_open && IsOfAnother(*worker, closure, attempt)) {
    host_->ForeignMessage(worker->task, "Done for an attempt that another worker holds");
    return turn.Add(worker->task, closure, attempt, /*superseded=*/true);
  }
  const auto current = book_->current().find(closure);
  const bool repair = current != book_->current().end() && !current->second.all_targets;
  const ClosureBook::DoneResult result =
      book_->OnDone(closure, attempt, client::FromProto<MapVersion>(done.v0()),
                    client::FromProto<MapVersion>(done.v1()));
  if (result.deferred) {
    if (deferred_.size() < kDeferredMax) deferred_.push_back({worker->task, done});
    return;
  }
  const MonoTime now = host_->Now();
  if (result.acknowledged && repair) parts_.totals->OnRepaired(source_->StepsOf(closure, done));
  if (result.counted) source_->OnCounted(worker->identity, closure, done);
  if (!result.record.empty()) parts_.journal->Add(result.record);
  if (const auto held = worker->held.find(attempt); held != worker->held.end()) {
    worker->rate.OnDone(now, std::max(held->second.granted_at, worker->last_done));
    worker->Drop(attempt);
  }
  worker->last_done = worker->advanced_at = now;
  parts_.roster->SetFit(*worker);
  if (result.counted) parts_.deaths->OnFirstSuccess();
  if (result.acknowledged) {
    parts_.deaths->OnWorkerProgress(worker->identity);
    if (repair) parts_.deaths->OnRepaired();
    parts_.claims->OnEnded(closure);
    ForgetErrors(closure);
  }
  turn.Add(worker->task, closure, attempt, !result.acknowledged);
}

void TrainingWork::CloseWindow() {
  const std::vector<Deferred> deferred = std::exchange(deferred_, {});
  for (const Deferred& d : deferred)
    OnDone(parts_.roster->Find(d.task), d.done, /*window_open=*/false);
}

void TrainingWork::OnFailed(const JobWorker& worker, const v1::Failed& failed, bool elsewhere,
                            v1::ErrorDetail cause) {
  if (!book_) return;
  const Attempt attempt = client::FromProto<Attempt>(failed.attempt());
  const ClosureId closure(failed.closure());
  const auto current = book_->current().find(closure);
  if (current == book_->current().end() || current->second.attempt != attempt)
    return;  // A newer attempt has replaced this one.
  if (current->second.worker != worker.task)
    return host_->ForeignMessage(worker.task, "Failed for an attempt that another worker holds");
  if (elsewhere) {
    book_->ReleaseAttempt(closure, attempt);
    return job_.Pump();
  }
  const bool repair = !current->second.all_targets;
  switch (source_->Judge(failed.user_error(), repair, failures_[closure.value()])) {
    case ClosureSource::OnError::kRetry: break;
    case ClosureSource::OnError::kFailClosure:
      failures_.erase(closure.value());
      source_->FailClosure(closure, std::move(cause));
      return job_.Pump();
    case ClosureSource::OnError::kGiveUpRepair:
      failures_.erase(closure.value());
      GiveUpRepair(closure, attempt, ErrorText(cause));
      return job_.Pump();
  }
  if (failed.user_error()) {
    parts_.totals->SetFailed(repair ? 0 : 1);
    return job_.Fail(std::move(cause), true);
  }
  Retry(closure, attempt, worker, std::move(cause));
}

void TrainingWork::Retry(ClosureId closure, Attempt attempt, const JobWorker& worker,
                         v1::ErrorDetail cause) {
  const std::uint32_t failures = ++failures_[closure.value()];
  job_.Event("warning",
             absl::StrCat("closure ", closure.value(), " failed on worker/", worker.identity,
                          " (failures in a row: ", failures, "): ", cause.message()));
  if (failures > options_.retries_max) {
    parts_.totals->SetFailed(1);
    return job_.Fail(std::move(cause), false);
  }
  releases_.emplace(host_->Now() + options_.RetryDelay(failures), std::pair(closure, attempt));
}

void TrainingWork::OnDropped(const JobWorker& worker, const v1::AttemptDropped& dropped,
                             bool asked) {
  if (!book_) return job_.Pump();
  const Attempt attempt = client::FromProto<Attempt>(dropped.attempt());
  const ClosureId closure(dropped.closure());
  if (IsOfAnother(worker, closure, attempt))
    return host_->ForeignMessage(worker.task,
                                 "AttemptDropped for an attempt that another worker holds");
  const auto current = book_->current().find(closure);
  const bool newest = current != book_->current().end() && current->second.attempt == attempt;
  if (dropped.superseded() && newest && !job_.grants_stopped() &&
      !parts_.claims->OnSuperseded(closure, ShardId(dropped.shard()), worker.identity))
    return;
  // The closure of a recalled attempt, or of one that a leaving worker gave back, can be granted
  // again at once. Otherwise a pause prevents a tight loop of grants and refusals.
  if (asked)
    book_->ReleaseAttempt(closure, attempt);
  else
    releases_.emplace(host_->Now() + options_.retry_min, std::pair(closure, attempt));
  job_.Pump();
}

void TrainingWork::OnCancelled(ClosureId closure, const ClosureBook::Current& current) {
  ForgetErrors(closure);
  JobWorker* worker = parts_.roster->Find(current.worker);
  if (worker == nullptr) return;
  if (worker->Drop(current.attempt)) worker->advanced_at = host_->Now();
  host_->Send(worker->task,
              Superseded(id_.uid.value(), closure.value(), client::ToProto(current.attempt)));
}

void TrainingWork::Release(MonoTime now) {
  while (!releases_.empty() && releases_.begin()->first <= now) {
    const auto [closure, attempt] = releases_.begin()->second;
    releases_.erase(releases_.begin());
    if (book_) book_->ReleaseAttempt(closure, attempt);
  }
}

}  // namespace evergrad::coordinator
