#include "coordinator/jobs/worker_admission.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"

namespace evergrad::coordinator {

void WorkerAdmission::Admit(TaskId task, const std::string& identity, MonoTime backoff_until,
                            const std::optional<FormerTask>& former, const v1::Hello& hello,
                            v1::Registered* registered) {
  const MonoTime backs_off = parts_.deaths->backoff().Until(Role::kWorker, identity);
  JobWorker worker = parts_.roster->Make(task, identity, std::max(backoff_until, backs_off), hello);
  const bool works = !parts_.phases->grants_stopped();
  if (works) AdoptAttempts(hello, &worker, registered);
  if (former) ReplaceFormer(*former, &worker);
  if (works) {
    parts_.notices->FillInfo(registered->mutable_job());
    if (book_) parts_.notices->FillMap(registered->mutable_map());
  }
  parts_.roster->workers().insert_or_assign(task, std::move(worker));
  if (former) TellPauses(identity);
  job_.Touch();
}

// Returns whether another living worker holds the attempt. A worker cannot take over such an
// attempt by claiming it.
bool WorkerAdmission::IsOfAnother(TaskId holder, const JobWorker& worker) {
  const JobWorker* other = Find(holder);
  if (other == nullptr || other->identity == worker.identity) return false;
  host_->ForeignMessage(worker.task, "Hello with an attempt that another worker holds");
  return true;
}

// Returns whether the worker has proved that the attempt was granted to it (LEDGER line 35).
bool WorkerAdmission::CheckProof(const v1::HeldAttempt& said, Attempt attempt,
                                 const JobWorker& worker) {
  if (parts_.claims->IsProved(said, attempt)) return true;
  host_->ForeignMessage(worker.task, "Hello with an attempt that was not granted to the worker");
  return false;
}

// Handles an attempt at a closure that only reads. Such closures push nothing and have no proofs,
// so a worker keeps an attempt only if the attempt is current and this life granted it to the
// worker.
bool WorkerAdmission::AdoptReading(const v1::HeldAttempt& said, JobWorker* worker) {
  const Attempt attempt = client::FromProto<Attempt>(said.attempt());
  ReadingRound::Closure* reading = parts_.reading->Running(said.closure(), attempt);
  if (reading == nullptr || IsOfAnother(reading->worker, *worker)) return false;
  reading->worker = worker->task;
  worker->Take(attempt, {ClosureId(said.closure()), said.kind(), host_->Now()});
  return true;
}

// Lets the worker keep its attempts that are still needed.
void WorkerAdmission::AdoptAttempts(const v1::Hello& hello, JobWorker* worker,
                                    v1::Registered* registered) {
  std::vector<ClosureBook::HeldAttempt> held;
  std::map<Attempt, const v1::HeldAttempt*> said;  // Claimed training attempts.
  for (const v1::HeldAttempt& h : hello.attempts()) {
    if (h.job_uid() != id_.uid.value()) continue;
    if (h.kind() != v1::TRAIN) {
      if (AdoptReading(h, worker)) *registered->add_adopted() = h;
      continue;
    }
    const Attempt attempt = client::FromProto<Attempt>(h.attempt());
    if (!hooks_.knows(ClosureId(h.closure()))) continue;
    if (!said.try_emplace(attempt, &h).second) continue;
    if (book_) {
      const auto current = book_->current().find(ClosureId(h.closure()));
      if (current != book_->current().end() && current->second.attempt == attempt &&
          IsOfAnother(current->second.worker, *worker))
        continue;
    }
    ClosureBook::HeldAttempt& one = held.emplace_back();
    one.closure = ClosureId(h.closure());
    one.attempt = attempt;
    one.all_targets = h.all_targets();
    for (const std::uint32_t p : h.targets()) one.targets.insert(ShardId(p));
    one.v1 = client::FromProto<MapVersion>(h.v1());
    one.proved = CheckProof(h, attempt, *worker);
  }
  if (!book_ || held.empty()) return;
  for (const ClosureBook::HeldAttempt& h : book_->RegisterWorker(worker->task, held)) {
    worker->Take(h.attempt, {h.closure, v1::TRAIN, host_->Now()});
    hooks_.adopted(h.closure, h.attempt);
    v1::HeldAttempt& adopted = *registered->add_adopted();
    adopted = *said.at(h.attempt);
    adopted.clear_proof();  // The worker already has the proof.
    adopted.clear_granted_to();
  }
}

void WorkerAdmission::ReplaceFormer(const FormerTask& former, JobWorker* worker) {
  JobWorkers& workers = parts_.roster->workers();
  if (const auto old = workers.find(former.task); old != workers.end()) {
    if (former.died) {
      if (parts_.phases->active())
        parts_.deaths->OnDeath(Role::kWorker, worker->identity, "a newer process has its identity",
                               false, &old->second, old->second.host);
      worker->backoff_until = std::max(
          worker->backoff_until, parts_.deaths->backoff().Until(Role::kWorker, worker->identity));
    }
    parts_.roster->Replace(old->second, parts_.totals->HasCountedClosures(worker->identity),
                           worker);
    workers.erase(old);
  }
  if (book_) book_->ReleaseWorker(former.task);
  parts_.reading->Release(former.task);
}

bool WorkerAdmission::Ready(TaskId task) {
  JobWorker* worker = Find(task);
  if (worker == nullptr) return false;
  worker->ready = true;
  if (!worker->silent) BeginTotals(*worker);
  return true;
}

void WorkerAdmission::Withhold(TaskId task) {
  if (JobWorker* worker = Find(task)) worker->silent = true;
}

bool WorkerAdmission::Speaks(TaskId task) {
  JobWorker* worker = Find(task);
  if (worker == nullptr || !std::exchange(worker->silent, false)) return false;
  BeginTotals(*worker);
  return true;
}

// Notes that the worker's process serves the job.
void WorkerAdmission::BeginTotals(const JobWorker& worker) {
  if (parts_.totals->BeginWorker(worker.identity, worker.process)) hooks_.want_whole();
}

bool WorkerAdmission::OnLeaving(TaskId task, const std::string& reason) {
  JobWorker* worker = Find(task);
  if (worker == nullptr) return false;
  if (std::exchange(worker->leaving, true)) return true;
  if (parts_.phases->active())
    job_.Event("drain", absl::StrCat("worker/", worker->identity, " leaves: ", reason));
  job_.Touch();
  return true;
}

bool WorkerAdmission::OnGone(TaskId task, absl::string_view reason, bool leaving) {
  JobWorkers& workers = parts_.roster->workers();
  const auto found = workers.find(task);
  if (found == workers.end()) return false;
  const JobWorker worker = std::move(found->second);
  workers.erase(found);
  parts_.roster->Forget(worker, parts_.totals->HasCountedClosures(worker.identity));
  if (parts_.phases->active())
    parts_.deaths->OnDeath(Role::kWorker, worker.identity, reason, leaving, &worker, worker.host);
  parts_.totals->ForgetIdleWorker(worker.identity);
  TellPauses(worker.identity);
  if (book_) {
    const std::vector<ClosureId> released = book_->ReleaseWorker(task);
    if (!released.empty() && !parts_.phases->grants_stopped())
      job_.Event("requeue", absl::StrCat("worker/", worker.identity, " is gone: ", released.size(),
                                         released.size() == 1 ? " closure is" : " closures are",
                                         " granted again"));
  }
  parts_.reading->Release(task);
  return true;
}

bool WorkerAdmission::Release(TaskId task) {
  JobWorkers& workers = parts_.roster->workers();
  const auto found = workers.find(task);
  if (found == workers.end()) return false;
  const std::string identity = found->second.identity;
  workers.erase(found);
  TellPauses(identity);
  if (book_) book_->ReleaseWorker(task);
  parts_.reading->Release(task);
  job_.Touch();
  return true;
}

void WorkerAdmission::TellPauses(const std::string& gone) {
  if (parts_.phases->active()) parts_.roster->TellPauses(gone);
}

}  // namespace evergrad::coordinator
