// Who gets which work, and what comes back of it.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/evaluation.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_error.h"
#include "coordinator/jobs/task_answers.h"
#include "coordinator/jobs/training_rate.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kDeferredMax = 1u << 16;
constexpr std::uint64_t kLostNamedMax = 8;  // closures that an event names

}  // namespace

void Job::Pump() {
  if (in_pump_ || !active() || phases_.window_open()) return;
  in_pump_ = true;
  if (!grants_stopped()) {
    placer_.Place();
    Advance();
    if (phases_.In(JobPhase::kTraining)) source_->Grant(granter_, roster_.workers());
    if (phases_.ReadingKind() != v1::WORK_KIND_UNSPECIFIED) reading_.Grant();
    mover_.Pump();
  }
  in_pump_ = false;
}

// ---------------------------------------------------------------- beside other jobs

void Job::CallBack(TaskId task) {
  Worker* worker = FindWorker(task);
  if (worker == nullptr || std::exchange(worker->called_back, true)) return;
  roster_.RecallAll(worker);
}

void Job::ReleaseWorker(TaskId task) {
  EndTurn();  // what it has said is answered first
  if (worker_admission_.Release(task)) Pump();
}

std::uint32_t Job::useful_workers() const {
  if (WantsSealedExport()) return 1;
  if (!active() || grants_stopped()) return 0;
  if (id_.spec.strategy.deterministic) return 1;
  std::uint64_t useful = 1;
  if (phases_.In(JobPhase::kEvaluating)) useful = reading_.left();
  if (phases_.In(JobPhase::kReporting) || phases_.In(JobPhase::kSaving)) useful = 0;
  if (phases_.In(JobPhase::kTraining)) useful = source_->UsefulWorkers(roster_.workers().size());
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(useful, 1u << 30));
}

void Job::SayNotReproducible(const std::string& why) {
  if (!id_.spec.strategy.deterministic) return;
  Event("warning", absl::StrCat("deterministic: ", why,
                                "; updates that had reached only some of the shards are completed "
                                "from values that were read later, so the results "
                                "may differ in bits from those of an undisturbed run"));
}

// ---------------------------------------------------------------- work that stands still

void Job::CheckStalls() {
  for (const TaskId task : roster_.Stalled(phases_.window_open())) {
    if (grants_stopped()) return;
    if (Worker* worker = FindWorker(task)) TakeAway(*worker);
  }
}

void Job::TakeAway(Worker& worker) {
  const MonoTime now = host_->Now();
  // Judged as a death is (ARCHITECTURE section 4.7): by what it last reported as running.
  const Attempt running = client::FromProto<Attempt>(worker.progress.running_attempt());
  std::optional<PoisonRule::Running> blamed;
  std::string what = "its work";
  ReadingRound::Closure* stalled = nullptr;
  for (const auto& [attempt, held] : worker.held) {
    SendSuperseded(worker.task, held.closure, attempt);
    if (held.kind == v1::TRAIN) {
      if (attempt == running && worker.progress.state() == "running") {
        blamed = PoisonRule::Running{held.closure, worker.progress.running_step()};
        what = absl::StrCat("closure ", held.closure.value(), " step ",
                            worker.progress.running_step());
      }
      if (book_) book_->ReleaseAttempt(held.closure, attempt);
      continue;
    }
    ReadingRound::Closure* reading = reading_.HeldBy(worker.task, held.closure.value(), attempt);
    if (reading == nullptr) continue;
    reading->attempt = Attempt{};
    if (stalled != nullptr && attempt != running) continue;
    stalled = reading;
    what =
        absl::StrCat(v1::WorkKind_Name(held.kind), " closure ", held.closure.value() & 0xffffffffu);
  }
  const std::size_t attempts = worker.held.size();
  roster_.TakeAll(&worker);
  worker.aside_until = now + std::min(options_.aside_max, options_.step_timeout);
  const double seconds = std::chrono::duration<double>(options_.step_timeout).count();
  Event("stall", absl::StrFormat("worker/%s has not advanced a step for %.3g s: %s is revoked "
                                 "(%d attempts) and granted to other workers",
                                 worker.identity, seconds, what, attempts));
  deaths_.OnStall(now, blamed);
  if (blamed) SayNotReproducible(absl::StrCat(what, " was revoked from worker/", worker.identity));
  Touch();
  if (stalled != nullptr && ++stalled->stalls >= options_.poison_deaths) {
    Fail(MakeError(
             absl::DeadlineExceededError(absl::StrCat(
                 "work repeatedly made no progress; raise step_timeout if it is only slow: work=",
                 what, " times=", stalled->stalls, " step_timeout_s=", seconds)),
             "poison", absl::StrCat("worker/", worker.identity)),
         false);
  }
}

// ---------------------------------------------------------------- workers that are cut off

// Which closures the workers of other jobs could run is unknown here.
bool Job::OthersCanRun(const Worker& of, const std::vector<const Worker*>& able) const {
  if (roster_.elsewhere() > 0 && !source_->has_callers()) return true;
  return std::any_of(able.begin(), able.end(), [&](const Worker* other) {
    return std::any_of(of.held.begin(), of.held.end(), [&](const auto& one) {
      return one.second.kind != v1::TRAIN || source_->CanRun(*other, one.second.closure);
    });
  });
}

// The attempts of a worker that is cut off are superseded and granted again elsewhere. The worker
// gets nothing for a time that grows, until it has ended something.
void Job::PassOn(Worker& worker, const v1::UnreachedServer& from) {
  bool trained = false;
  for (const auto& [attempt, held] : worker.held) {
    SendSuperseded(worker.task, held.closure, attempt);
    if (held.kind == v1::TRAIN) {
      trained = true;
      if (book_) book_->ReleaseAttempt(held.closure, attempt);
    } else if (ReadingRound::Closure* reading =
                   reading_.HeldBy(worker.task, held.closure.value(), attempt);
               reading != nullptr) {
      reading->attempt = Attempt{};
    }
  }
  roster_.TakeAll(&worker);
  worker.progress.clear_unreached();  // of the attempt that was taken away
  v1::Failed failure;
  failure.set_lack(v1::REACH);
  failure.mutable_cause()->set_message(absl::StrCat("it cannot reach ", ReachRule::Text(from),
                                                    "; its work goes to workers that can"));
  roster_.SetAside(worker, failure, source_->has_callers());
  roster_.SetUnreached(worker, from);
  if (trained)
    SayNotReproducible(absl::StrCat("the work of worker/", worker.identity, " was passed on"));
  Touch();
  Pump();
}

std::uint32_t Job::LimitOf(const Worker& worker) const {
  if (roster_.UnfitOf(worker) != nullptr) return 1;  // on trial
  const std::uint64_t limit = std::min<std::uint64_t>(plan_->closures(), source_->Limit());
  const std::uint64_t remaining = limit > book_->next_new() ? limit - book_->next_new() : 0;
  return AttemptsAhead(options_.sizing, worker.rate.seconds_per_closure(), remaining,
                       static_cast<std::uint32_t>(roster_.workers().size()));
}

bool Job::GrantsBlocked() {
  if (!host_->StoreTrouble().empty()) return true;  // what cannot be journaled is not begun
  const MonoTime now = host_->Now();
  if (now < grants_held_until_) return true;
  const fault::Hit hit = host_->failpoints().At("coordinator.before_grant");
  if (!hit) return false;
  grants_held_until_ =
      now + std::chrono::milliseconds(hit.action == fault::Action::kDelay ? hit.delay_ms : 50);
  return true;
}

void Job::SendTraining(Worker& worker, const ClosureBook::Granted& granted, bool regrant) {
  closure_totals_.OnGranted(granted.attempt);
  v1::Grant* grant = grant_.mutable_grant();
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
  grant->set_proof(claims_.ProofOf(worker.identity, granted.closure, granted.attempt));
  if (worker.held.empty()) worker.advanced_at = host_->Now();
  worker.Take(granted.attempt, Held{granted.closure, v1::TRAIN, host_->Now(), false,
                                    grant->arguments().size(), regrant});
  host_->Send(worker.task, grant_);
  Touch();
}

// An answer that nobody asked for: the attempt is taken away.
void Job::SendSuperseded(TaskId task, ClosureId closure, Attempt attempt) {
  host_->Send(task, Superseded(id_.uid.value(), closure.value(), client::ToProto(attempt)));
}

absl::Status Job::OnDone(TaskId task, const v1::Done& done) {
  if (done.metrics().step_records_size() > static_cast<int>(kUpdatesPerClosureMax) ||
      done.metrics().sums_size() > 64) {
    return absl::InvalidArgumentError(absl::StrCat(
        "metrics of a closure too large: step_records=", done.metrics().step_records_size(),
        " sums=", done.metrics().sums_size()));
  }
  for (const v1::NamedSum& sum : done.metrics().sums()) {
    if (sum.counts_size() > kMetricCountsMax)
      return absl::InvalidArgumentError(absl::StrCat(
          "metrics of a closure too large: counts=", sum.counts_size(), " max=", kMetricCountsMax));
  }
  if (done.result().size() > client::kResultBytesMax)
    return absl::InvalidArgumentError(
        absl::StrCat("result of a closure too large: bytes=", done.result().size(),
                     " max=", client::kResultBytesMax));
  if (done.kind() == v1::TRAIN) EG_RETURN_IF_ERROR(source_->Check(done));
  Worker* worker = FindWorker(task);
  if (done.kind() == v1::TRAIN) {
    OnTrainDone(worker, done);
  } else {
    OnReadingDone(worker, done);
  }
  return absl::OkStatus();
}

void Job::OnTrainDone(Worker* worker, const v1::Done& done) {
  if (worker == nullptr) return;  // Its registration has ended: it says it again under the new one.
  const Attempt attempt = client::FromProto<Attempt>(done.attempt());
  const ClosureId closure(done.closure());
  turn_.Open();
  if (!book_ || !active()) {
    turn_.Add(worker->task, closure, attempt, /*superseded=*/true);
    return;
  }
  bool repair = false;
  if (const auto current = book_->current().find(closure); current != book_->current().end()) {
    if (current->second.attempt == attempt && current->second.worker != worker->task &&
        !phases_.window_open()) {
      host_->ForeignMessage(worker->task, "Done for an attempt that another worker holds");
      turn_.Add(worker->task, closure, attempt, /*superseded=*/true);
      return;
    }
    repair = !current->second.all_targets;
  }
  const ClosureBook::DoneResult result =
      book_->OnDone(closure, attempt, client::FromProto<MapVersion>(done.v0()),
                    client::FromProto<MapVersion>(done.v1()));
  if (result.deferred) {
    if (deferred_.size() < kDeferredMax) deferred_.push_back({worker->task, done});
    return;
  }
  const MonoTime now = host_->Now();
  if (result.acknowledged && repair) closure_totals_.OnRepaired(source_->StepsOf(closure, done));
  if (result.counted) source_->OnCounted(worker->identity, closure, done);
  if (!result.record.empty()) journal_.Add(result.record);
  if (const auto held = worker->held.find(attempt); held != worker->held.end()) {
    worker->rate.OnDone(now, std::max(held->second.granted_at, worker->last_done));
    worker->Drop(attempt);
  }
  worker->last_done = worker->advanced_at = now;
  roster_.SetFit(*worker);
  if (result.counted) deaths_.OnFirstSuccess();
  if (result.acknowledged) {
    deaths_.OnWorkerProgress(worker->identity);
    if (repair) deaths_.OnRepaired();
    failures_.erase(closure.value());
    claims_.OnEnded(closure);
    deaths_.OnEnded(closure);
  }
  turn_.Add(worker->task, closure, attempt, !result.acknowledged);
}

void Job::EndTurn() {
  if (turn_.End()) Pump();
}

void Job::OnReadingDone(Worker* worker, const v1::Done& done) {
  if (worker == nullptr) return;
  const Attempt attempt = client::FromProto<Attempt>(done.attempt());
  turn_.Open();
  if (worker->Drop(attempt)) worker->advanced_at = host_->Now();
  roster_.SetFit(*worker);
  const bool accepted = active() && reading_.Accept(*worker, done);
  turn_.Add(worker->task, ClosureId(done.closure()), attempt, !accepted);
  if (!accepted) return;
  deaths_.OnWorkerProgress(worker->identity);
  Touch();
  switch (done.kind()) {
    case v1::DESCRIBE:
      deaths_.OnDescribed();
      OnDescribed(done.describe());
      break;
    case v1::EVALUATE:
      deaths_.OnLeft(DeathLimit::Again::kEvaluation, reading_.left());
      if (reading_.left() == 0) FinishEvaluation();
      break;
    default:
      deaths_.OnLeft(DeathLimit::Again::kExport, 0);
      export_.OnExported(done.export_(), worker->identity);
      break;
  }
}

void Job::OnFailed(TaskId task, const v1::Failed& failed) {
  Worker* worker = FindWorker(task);
  if (worker == nullptr) return;
  const Attempt attempt = client::FromProto<Attempt>(failed.attempt());
  if (worker->Drop(attempt)) worker->advanced_at = host_->Now();
  if (phases_.In(JobPhase::kSealedExporting) && failed.kind() == v1::EXPORT)
    return sealed_export_.OnFailed(task, failed);
  if (grants_stopped() && !(phases_.ending() == JobState::kFailed && failed.user_error() &&
                            failed.lack() == v1::NO_LACK))
    return;
  const bool elsewhere =
      failed.lack() != v1::NO_LACK && roster_.SetAside(*worker, failed, source_->has_callers());
  v1::ErrorDetail cause = failed.cause();
  if (cause.origin_text().empty()) cause.set_origin_text(absl::StrCat("worker/", worker->identity));
  CleanCause(&cause);
  if (failed.kind() == v1::TRAIN)
    OnTrainingFailed(*worker, failed, elsewhere, std::move(cause));
  else
    reading_.OnFailed(*worker, failed, elsewhere, std::move(cause));
}

// `elsewhere`: the worker cannot take part, and another one gets what it could not do.
void Job::OnTrainingFailed(const Worker& worker, const v1::Failed& failed, bool elsewhere,
                           v1::ErrorDetail cause) {
  const Attempt attempt = client::FromProto<Attempt>(failed.attempt());
  if (!book_) return;
  const ClosureId closure(failed.closure());
  const auto current = book_->current().find(closure);
  if (current == book_->current().end() || current->second.attempt != attempt)
    return;  // of a closure that has moved on
  if (current->second.worker != worker.task)
    return host_->ForeignMessage(worker.task, "Failed for an attempt that another worker holds");
  if (elsewhere) {
    book_->ReleaseAttempt(closure, attempt);
    return Pump();
  }
  switch (source_->Judge(failed.user_error(), !current->second.all_targets,
                         failures_[closure.value()])) {
    case ClosureSource::OnError::kRetry: break;
    case ClosureSource::OnError::kFailClosure:
      failures_.erase(closure.value());
      source_->FailClosure(closure, std::move(cause));
      return Pump();
    case ClosureSource::OnError::kGiveUpRepair:
      failures_.erase(closure.value());
      GiveUpRepair(closure, attempt, ErrorText(cause));
      return Pump();
  }
  if (failed.user_error()) {
    closure_totals_.SetFailed(current->second.all_targets ? 1 : 0);
    Fail(std::move(cause), true);
    return;
  }
  const std::uint32_t failures = ++failures_[closure.value()];
  Event("warning", absl::StrCat("closure ", closure.value(), " failed on worker/", worker.identity,
                                " (", failures, " in a row): ", cause.message()));
  if (failures > options_.retries_max) {
    closure_totals_.SetFailed(1);
    Fail(std::move(cause), false);
    return;
  }
  delayed_releases_.emplace(host_->Now() + options_.RetryDelay(failures),
                            std::make_pair(closure, attempt));
}

// [20b] It stays succeeded; what its targets lost with a server is not done again, and that is
// said.
void Job::GiveUpRepair(ClosureId closure, Attempt attempt, absl::string_view why) {
  const auto& lost = book_->durable().lost;
  const bool lost_before = std::any_of(lost.begin(), lost.end(), [&](const IntervalSet& of) {
    return of.Contains(closure.value());
  });
  const Record record = book_->FailRepair(closure, attempt);
  if (record.empty()) {  // rolled back once more meanwhile, or not needed any more
    book_->ReleaseAttempt(closure, attempt);
    return;
  }
  failures_.erase(closure.value());
  deaths_.OnEnded(closure);
  const std::size_t shards = record.lost_add.size();
  const std::uint64_t closures =
      closure_totals_.OnLost(!lost_before, shards * source_->OnLost(closure));
  if (closures <= kLostNamedMax) {
    Event("lost",
          absl::StrCat("updates of closure ", closure.value(), " are lost in ", shards,
                       shards == 1 ? " shard" : " shards", ", it cannot be run again: ", why,
                       closures == kLostNamedMax ? "; further losses are only counted" : ""));
  }
  Touch();
  Persist(record);
}

void Job::OnDropped(TaskId task, const v1::AttemptDropped& dropped) {
  Worker* worker = FindWorker(task);
  if (worker == nullptr) return;
  const Attempt attempt = client::FromProto<Attempt>(dropped.attempt());
  bool handed_back = worker->leaving;
  if (const auto held = worker->held.find(attempt); held != worker->held.end()) {
    handed_back |= held->second.recalled;
    worker->Drop(attempt);
    worker->advanced_at = host_->Now();
  }
  if (book_) {
    const auto current = book_->current().find(ClosureId(dropped.closure()));
    if (current != book_->current().end() && current->second.attempt == attempt &&
        current->second.worker != task)
      return host_->ForeignMessage(task, "AttemptDropped for an attempt that another worker holds");
    const bool newest = current != book_->current().end() && current->second.attempt == attempt;
    if (dropped.superseded() && newest && active() && !grants_stopped() &&
        !claims_.OnSuperseded(ClosureId(dropped.closure()), ShardId(dropped.shard()),
                              worker->identity))
      return;
  }
  if (!reading_.OnDropped(task, dropped, handed_back) && book_) {
    // What was called back, or given back by a leaving worker, can go elsewhere at once; else a
    // pause keeps a refusal from becoming a tight loop.
    if (handed_back)
      book_->ReleaseAttempt(ClosureId(dropped.closure()), attempt);
    else
      delayed_releases_.emplace(host_->Now() + options_.retry_min,
                                std::make_pair(ClosureId(dropped.closure()), attempt));
  }
  Pump();
}

}  // namespace evergrad::coordinator
