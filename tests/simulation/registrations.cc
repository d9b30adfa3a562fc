#include "tests/simulation/registrations.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "coordinator/closures/term_rule.h"
#include "tests/mutants/mutant.h"

namespace evergrad::simulation {

using mutants::IsActive;
using mutants::Mutant;

void Registrations::BeginAnewIfNeeded(const coordinator::ReportedLife& reported, const Task& from) {
  JournaledBook& book = parts_.book;
  const auto term =
      coordinator::BeginAnewWith(book.state().term, life_, parts_.journal.store().term(), reported);
  if (!term || IsActive(Mutant::kNoBeginAnew)) return;
  walk_.Count("begun anew");
  parts_.checker.OnTermReported(term->value());
  walk_.Trace("begins anew: term=", term->value());
  EG_CHECK(parts_.journal.store().CommitTerm(*term).ok());
  book.Settle();
  // All tasks except the one that reported the later life must register again.
  parts_.tasks.Each([&](Task& t) {
    if (&t != &from && t.connected) book.EndSession(t);
    t.earlier.clear();
  });
  Clear();
  parts_.evaluation.ReleaseAll();
  book.Commit(book->BeginLife(*term));
}

// ---------------------------------------------------------------- workers

void Registrations::CloseWindow() {
  parts_.book->CloseWindow();
  walk_.Trace("start-up window closes");
  for (auto& [task, hello] : std::exchange(waiting_, {})) {
    for (const auto& w : parts_.tasks.workers()) {
      if (w->connected && w->task == task) Register(*w, std::move(hello));
    }
  }
}

void Registrations::Register(SimulatedWorker& w, Up hello) {
  JournaledBook& book = parts_.book;
  BeginAnewIfNeeded(hello.reported, w);
  if (book->window_open()) {
    waiting_.emplace_back(w.task, std::move(hello));
    return;
  }
  w.registered = true;
  Down answer;
  if (!parts_.early_end.begun()) {
    answer.adopted = book->RegisterWorker(w.task, ProvedAttempts(hello));
    for (const auto& [closure, attempt] : hello.evaluations) {
      if (parts_.evaluation.Adopt(w, closure, attempt))
        answer.adopted_evaluations.push_back(attempt);
    }
  }
  ReleaseEarlier(w);
  answer.term = book.state().term;
  answer.life = life_;
  answer.map = parts_.changes.CurrentMap();
  book.Send(w, std::move(answer));
}

std::vector<ClosureBook::HeldAttempt> Registrations::ProvedAttempts(const Up& hello) {
  std::vector<ClosureBook::HeldAttempt> held;
  for (const HeldAttempt& h : hello.attempts) {
    if (h.job != parts_.book.job()) continue;
    ClosureBook::HeldAttempt attempt = h.attempt;
    attempt.proved =
        parts_.proofs.Fits({h.job, attempt.closure, attempt.attempt, h.worker, h.proof});
    if (!attempt.proved)
      walk_.Fail(absl::StrCat("26 a granted attempt is not believed: c=", attempt.closure.value()));
    held.push_back(std::move(attempt));
  }
  return held;
}

void Registrations::ReleaseEarlier(SimulatedWorker& w) {
  for (const TaskId earlier : w.earlier) {
    parts_.book->ReleaseWorker(earlier);
    parts_.evaluation.ReleaseWorker(earlier);
  }
  w.earlier.clear();
}

// ---------------------------------------------------------------- servers

void Registrations::Register(SimulatedServer& s, Up hello) {
  JournaledBook& book = parts_.book;
  BeginAnewIfNeeded(hello.reported, s);
  s.registered = true;
  Down answer;
  answer.version = book.state().version;
  answer.term = book.state().term;
  answer.life = life_;
  book.Send(s, std::move(answer));
  const Held held = SortShards(s, std::move(hello));
  if (parts_.early_end.told()) return;
  RegisterShards(s, held.shards);
  parts_.early_end.SendSeals(s);
  if (!parts_.early_end.begun()) {
    book.SendCloses(s);
    BeginMovesAgain(s, held);
  }
}

Registrations::Held Registrations::SortShards(const SimulatedServer& s, Up hello) {
  Held held;
  std::set<JobUid> ended;  // jobs that have ended; the server must drop their shards
  for (auto& [job, shard] : hello.shards) {
    const bool running = job == parts_.book.job();
    if (!running) CheckUnknownJob(job);
    if (!running || parts_.early_end.told()) {
      ended.insert(job);
      continue;
    }
    if (shard.stopped_in != 0) held.stopped.emplace_back(shard.shard.value(), shard.epoch);
    held.shards.push_back(std::move(shard));
  }
  for (const JobUid job : ended) parts_.book.Send(s, Down::JobEnded(job));
  return held;
}

void Registrations::CheckUnknownJob(JobUid job) {
  if (parts_.journal.may_lack_jobs()) return;
  if (parts_.journal.HasLost(job))
    walk_.Fail(absl::StrCat(
        "18a a job that the journal has removed is taken for one that it has lost: job=",
        job.value()));
}

void Registrations::RegisterShards(const SimulatedServer& s,
                                   const std::vector<ClosureBook::HeldShard>& held) {
  const bool one_way = IsActive(Mutant::kRegisterOneWay);
  ClosureBook::ServerRegistration registration =
      parts_.book->RegisterServer(s.identity(), held, !parts_.early_end.begun() && !one_way);
  if (one_way) registration.unheld.clear();
  if (IsActive(Mutant::kNoDrop)) {
    registration.change.drops.clear();
    registration.change.former.clear();
  }
  // A shard was adopted or rolled back, so closures may have to be done again. The values that an
  // evaluation has read then no longer count.
  if (registration.change.map_changed) parts_.evaluation.Void();
  for (std::size_t i = 0; i < registration.change.assigns.size(); ++i)
    walk_.Count("shard not held");
  parts_.changes.Apply(std::move(registration.change), s, nullptr);
  for (const ShardId p : registration.unheld) parts_.early_end.OnUnheld(p);
}

void Registrations::BeginMovesAgain(const SimulatedServer& s, const Held& held) {
  for (const auto& [p, epoch] : held.stopped) {
    const coordinator::ShardOwner& owner = parts_.book.state().map[p];
    if (owner.server != s.identity()) continue;
    if (owner.epoch != epoch) {
      walk_.Count("stopped by a former life");
      continue;
    }
    walk_.Count("move begun again");
    parts_.book.Send(s, Down::AboutShard(Down::kRelease, p, epoch));
  }
}

}  // namespace evergrad::simulation
