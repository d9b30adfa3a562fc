#include "tests/simulation/simulated_coordinator.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace evergrad::simulation {

// ---------------------------------------------------------------- lives

void SimulatedCoordinator::StartWithoutJournal() {
  const coordinator::MemoryStateStore empty;
  for (const auto& s : parts_.tasks.servers()) {
    if (walk_.random.Chance(0.3)) continue;  // this task cannot reach the coordinator
    for (std::uint32_t p = 0; p < kShards; ++p) {
      const std::optional<JobUid> job = s->JobAt(p);
      if (!job) continue;
      if (SimulatedJournal::HasLost(empty, *job)) {
        walk_.Count("lost journal refused");
        walk_.Trace("a coordinator with an empty journal ends: server ", s->process,
                    " holds a shard of job ", job->value());
        return;
      }
      if (*job == book_.job())
        walk_.Fail(
            absl::StrCat("18a a shard of a job that the journal has lost is dropped: p=", p));
      s->DropJob(*job);
      return;
    }
  }
}

void SimulatedCoordinator::Start() {
  if (walk_.options.loses_journal && lives_ > 0 && walk_.random.Chance(0.5)) StartWithoutJournal();
  // Before the coordinator sends its first message, it has collected registrations. Every living
  // task has therefore reported the lives that it has seen.
  std::uint64_t reported = 0;
  parts_.tasks.Each([&](const Task& t) { reported = std::max(reported, t.highest_term); });
  parts_.journal.Recover(reported >= parts_.checker.newest_term());
  DurableState state;
  if (auto loaded = parts_.journal.store().Load(book_.job()); loaded.ok())
    state = *std::move(loaded);
  const Term term = parts_.journal.TakeTerm(reported);
  parts_.checker.OnTermTaken(term);
  registrations_.BeginLife(walk_.random.Next() | 1);
  parts_.evaluation.Clear();
  book_.Open(std::move(state));
  if (lives_ > 0) parts_.checker.CheckReplayed(book_.state());
  parts_.proofs.BeginLife(++lives_);
  parts_.checker.BeginBook(book_.state());
  CheckNamedFiles();
  book_.Commit(book_->BeginLife(term));
  book_->SetNewLimit(parts_.evaluation.limit());
  parts_.early_end.BeginLife();
  walk_.Trace("coordinator starts: term=", book_.state().term.value(),
              " V=", book_.state().version.ToString());
}

void SimulatedCoordinator::CheckNamedFiles() {
  for (const auto& of_shard : book_.state().snapshots) {
    for (const Snapshot& snapshot : of_shard) {
      if (!walk_.options.torn && parts_.folder.Find(snapshot.Uri()) == nullptr)
        walk_.Fail(absl::StrCat("27 the journal names a file that is not there: ", snapshot.Uri()));
    }
  }
}

void SimulatedCoordinator::Kill() {
  parts_.tasks.Each([&](Task& t) {
    book_.EndSession(t);
    t.earlier.clear();
  });
  book_.Close();
  parts_.rounds.Clear();
  registrations_.Clear();
  walk_.Trace("coordinator dies");
}

void SimulatedCoordinator::DieToForgetMove() {
  if (!running()) return;
  if (parts_.journal.ForgetsNow()) {
    Kill();
  } else if (!book_->window_open()) {
    parts_.journal.OnWindowClosed();
  }
}

void SimulatedCoordinator::ForgetLives() {
  lives_ = 0;
  parts_.checker.ForgetTerms();
  parts_.tasks.Each([&](Task& t) {
    t.earlier.clear();
    parts_.checker.OnTermReported(t.highest_term);
  });
}

void SimulatedCoordinator::BeginJob(Term term) {
  book_.Open({});
  parts_.checker.BeginBook(book_.state());
  book_.Commit(book_->BeginLife(term));
}

// ---------------------------------------------------------------- messages

void SimulatedCoordinator::Handle(SimulatedWorker& w, Up m) {
  if (m.kind == Up::kHello) {
    registrations_.Register(w, std::move(m));
    return;
  }
  if (m.job != book_.job()) return;
  if (m.kind == Up::kDone && m.evaluated != nullptr) {
    parts_.evaluation.OnDone(w, m, !parts_.early_end.begun());
  } else if (m.kind == Up::kDone) {
    OnDone(w, m);
  } else if (m.kind == Up::kDropped) {
    book_->ReleaseAttempt(m.closure, m.attempt);
    parts_.evaluation.ReleaseAttempt(m.closure, m.attempt);
  } else if (m.kind == Up::kFailed) {
    const coordinator::Record record = book_->FailRepair(m.closure, m.attempt);
    if (!record.empty()) walk_.Count("repair failed");
    book_.Commit(record);
  }
}

void SimulatedCoordinator::OnDone(SimulatedWorker& w, const Up& m) {
  const ClosureBook::DoneResult result = book_->OnDone(m.closure, m.attempt, m.v0, m.v1);
  book_.Commit(result.record);
  const std::uint64_t c = m.closure.value();
  walk_.Trace("Done c=", c, " attempt=", m.attempt.ToString(),
              result.acknowledged ? " acknowledged" : " superseded");
  if (result.counted) {
    parts_.end_checks.OnReport(c, m.touched_less);
    book_.Tell([this, c] { parts_.end_checks.OnMetricsCounted(c); });
  }
  book_.Send(w, Down::AnswerToDone(m.attempt, !result.acknowledged));
  for (const auto& s : parts_.tasks.servers()) {
    if (s->registered && walk_.random.Chance(0.7)) SendCloses(*s);
  }
}

void SimulatedCoordinator::Handle(SimulatedServer& s, Up m) {
  if (m.kind == Up::kHello) {
    registrations_.Register(s, std::move(m));
    return;
  }
  if (m.job != book_.job()) return;
  switch (m.kind) {
    case Up::kAssigned: OnAssigned(s, m); break;
    case Up::kSealed: parts_.early_end.OnSealed(std::move(m)); break;
    case Up::kClosed:
      book_->OnClosed(s.task, ShardId(m.p), m.epoch, m.taken);
      book_.TellCancelled();
      break;
    case Up::kSnapshot:
      if (!parts_.early_end.told()) parts_.rounds.OnSnapshot(m.p, *std::move(m.snapshot));
      break;
    case Up::kReleased: OnReleased(s, std::move(m)); break;
    default: break;
  }
}

void SimulatedCoordinator::OnAssigned(SimulatedServer& s, const Up& m) {
  const coordinator::ShardOwner& owner = book_.state().map[m.p];
  if (m.ok || owner.server != s.identity() || owner.epoch != m.epoch) return;
  if (parts_.early_end.begun()) {
    parts_.early_end.OnUnloadable(m.p);
    return;
  }
  walk_.Count("snapshot given up");
  walk_.Trace("gives up ", m.snapshot->Uri());
  book_.Commit(book_->RemoveSnapshots(ShardId(m.p), {m.snapshot->Uri()}));
  parts_.changes.RollBack(m.p, s);
}

void SimulatedCoordinator::OnReleased(SimulatedServer& s, Up m) {
  // Moves end when sealing begins. The source of the move still owns the shard and answers the
  // Seal. The state that it sent before the Seal is given to no server.
  if (parts_.early_end.begun()) return;
  if (parts_.changes.Move(s, std::move(m))) book_.EndSession(s);
}

// ---------------------------------------------------------------- actions without a message

bool SimulatedCoordinator::Act() {
  if (!running()) return false;
  if (book_->window_open()) {
    CloseWindowIfDue();
    return false;
  }
  const bool faults = walk_.faults();
  const double y = walk_.random.Unit();
  if (parts_.early_end.begun()) {
    parts_.early_end.Check(y < (faults ? 0.02 : 0.1));
    return parts_.early_end.told() && walk_.options.resumes && faults && y > 0.9;
  }
  if (faults && walk_.random.Chance(0.02)) {
    walk_.Count("journal checkpoint");
    EG_CHECK(parts_.journal.store().Checkpoint(book_.job(), book_.state(), "").ok());
    if (!walk_.options.gated) book_.Settle();
  }
  if (y < 0.5) {
    GrantWork();
  } else if (y < 0.6) {
    for (const auto& s : parts_.tasks.servers()) {
      if (s->registered) SendCloses(*s);
    }
  } else if (y < 0.7) {
    if (walk_.options.snapshots) parts_.rounds.OrderCuts();
  } else if (y < 0.8) {
    EndLeases();
  } else if (y < 0.95) {
    parts_.changes.ReplaceLostOwners();
  } else if (faults) {
    parts_.changes.BeginMove(walk_.AnyShard());
  }
  return false;
}

void SimulatedCoordinator::CloseWindowIfDue() {
  bool all_here = true;
  for (const auto& s : parts_.tasks.servers()) {
    all_here &= s->registered ||
                (!s->connected && parts_.tasks.ConnectedServer(s->identity(), true) != nullptr);
  }
  for (const auto& w : parts_.tasks.workers()) all_here &= w->connected && w->out.empty();
  if (walk_.random.Chance(0.2) && (walk_.faults() || all_here)) registrations_.CloseWindow();
}

void SimulatedCoordinator::GrantWork() {
  const SimulatedWorker& w = parts_.tasks.AnyWorker();
  if (!w.registered) return;
  parts_.evaluation.Advance();
  if (parts_.evaluation.running()) {
    parts_.evaluation.Grant(w);
    return;
  }
  std::size_t in_hand = 0;
  for (const auto& [c, current] : book_->current()) in_hand += current.worker == w.task;
  if (in_hand >= kInHand) return;
  if (const auto granted = book_->NextGrant(w.task)) SendGrant(w, *granted);
}

void SimulatedCoordinator::SendGrant(const SimulatedWorker& w,
                                     const ClosureBook::Granted& granted) {
  walk_.Trace("grant c=", granted.closure.value(), " attempt=", granted.attempt.ToString(),
              granted.repair ? " repair" : "", " to worker ", w.process);
  if (granted.repair) walk_.Count("repair granted");
  Down m;
  m.kind = Down::kGrant;
  m.work = Work{book_.job(),         granted.closure, granted.attempt, worker::WorkKind::kTrain,
                granted.all_targets, granted.targets};
  m.work.granted_to = absl::StrCat("w", w.process);
  m.work.proof =
      parts_.proofs.Prove({book_.job(), granted.closure, granted.attempt, m.work.granted_to, ""});
  book_.Send(w, std::move(m));
}

void SimulatedCoordinator::EndLeases() {
  std::vector<std::pair<ClosureId, Attempt>> ended;
  for (const auto& [c, current] : book_->current()) {
    const bool connected = parts_.tasks.IsConnectedWorker(current.worker);
    if (!connected || (walk_.faults() && walk_.random.Chance(0.05)))
      ended.emplace_back(c, current.attempt);
  }
  for (const auto& [c, attempt] : ended) book_->ReleaseAttempt(c, attempt);
  parts_.evaluation.EndLeases();
}

void SimulatedCoordinator::SendCloses(const SimulatedServer& s) {
  if (!parts_.early_end.begun()) book_.SendCloses(s);
}

void SimulatedCoordinator::EndEarly() {
  parts_.evaluation.Clear();
  parts_.early_end.Begin();
}

}  // namespace evergrad::simulation
