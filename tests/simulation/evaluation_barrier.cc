#include "tests/simulation/evaluation_barrier.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "tests/mutants/mutant.h"

namespace evergrad::simulation {

using mutants::IsActive;
using mutants::Mutant;

void EvaluationBarrier::Advance() {
  if (AllCompleted() || running() || !book_->BarrierReached(limit())) return;
  ++rounds_;
  for (std::uint32_t i = 0; i < kEvaluations; ++i) {
    closures_.push_back({ClosureId((rounds_ << 32) + i), {}, {}, false, nullptr});
  }
  walk_.Trace("evaluation begins: round=", rounds_, " closures=", limit());
}

void EvaluationBarrier::Grant(const SimulatedWorker& w) {
  std::size_t in_hand = 0;
  for (const Closure& e : closures_)
    in_hand += !e.done && e.attempt != Attempt{} && e.worker == w.task;
  if (in_hand >= kInHand) return;
  for (Closure& e : closures_) {
    if (e.done || e.attempt != Attempt{}) continue;
    e.attempt = book_->NextAttempt();
    e.worker = w.task;
    Down m;
    m.kind = Down::kGrant;
    m.work = Work{book_.job(), e.closure, e.attempt, worker::WorkKind::kEvaluate, true, {}};
    book_.Send(w, std::move(m));
    return;
  }
}

void EvaluationBarrier::OnDone(const SimulatedWorker& w, const Up& m, bool counts) {
  bool superseded = true, all = running();
  for (Closure& e : closures_) {
    if (!e.done && counts && e.closure == m.closure && e.attempt == m.attempt &&
        e.worker == w.task) {
      e.done = true;
      e.result = m.evaluated;
      superseded = false;
    }
    all &= e.done;
  }
  book_.Send(w, Down::AnswerToDone(m.attempt, superseded));
  if (all) Finish();
}

void EvaluationBarrier::Finish() {
  for (std::uint32_t p = 0; p < kShards; ++p) {
    for (const Closure& e : closures_) CheckRead(e, p);
  }
  walk_.Count("evaluation");
  walk_.Trace("evaluation ends: closures=", limit());
  closures_.clear();
  book_.Settle();
  ++completed_;
  book_->SetNewLimit(limit());
}

void EvaluationBarrier::CheckRead(const Closure& closure, std::uint32_t p) {
  const DurableState& state = book_.state();
  const Evaluated::OfShard& of = closure.result->shards[p];
  for (std::uint32_t c = 0; c < kClosures; ++c) {
    for (std::uint32_t u = 0; u < kUpdates; ++u) {
      const int n = of.count[c * kUpdates + u],
                want = c < limit() && walk_.Touches(p, c, u) ? 1 : 0;
      const bool at_most = state.dead.Contains(c) || state.lost[p].Contains(c);
      if (at_most ? n > 1 : n != want) {
        walk_.Fail(absl::StrCat(
            "29 an evaluation read values without an update, or with one too many: c=", c, " u=", u,
            " p=", p, " want=", want, " got=", n));
      }
    }
  }
  if (state.dead.empty() && of.values != closures_.front().result->shards[p].values)
    walk_.Fail("29 two closures of an evaluation read different values");
}

void EvaluationBarrier::Void() {
  if (!running() || IsActive(Mutant::kEvalSurvivesRollback)) return;
  walk_.Count("evaluation void");
  for (const Closure& e : closures_) {
    for (const auto& w : tasks_.workers()) {
      if (e.attempt != Attempt{} && w->registered && w->task == e.worker)
        book_.Send(*w, Down::AnswerToDone(e.attempt, true));
    }
  }
  closures_.clear();
}

bool EvaluationBarrier::Adopt(const SimulatedWorker& w, ClosureId closure, Attempt attempt) {
  for (Closure& e : closures_) {
    if (e.closure != closure || e.attempt != attempt || e.done) continue;
    e.worker = w.task;
    return true;
  }
  return false;
}

void EvaluationBarrier::ReleaseAttempt(ClosureId closure, Attempt attempt) {
  for (Closure& e : closures_) {
    if (!e.done && e.closure == closure && e.attempt == attempt) e.attempt = Attempt{};
  }
}

void EvaluationBarrier::ReleaseWorker(TaskId registration) {
  for (Closure& e : closures_) {
    if (!e.done && e.worker == registration) e.attempt = Attempt{};
  }
}

void EvaluationBarrier::ReleaseAll() {
  for (Closure& e : closures_) {
    if (!e.done) e.attempt = Attempt{};
  }
}

void EvaluationBarrier::EndLeases() {
  for (Closure& e : closures_) {
    const bool connected = tasks_.IsConnectedWorker(e.worker);
    if (!e.done && (!connected || (walk_.faults() && walk_.random.Chance(0.05))))
      e.attempt = Attempt{};
  }
}

}  // namespace evergrad::simulation
