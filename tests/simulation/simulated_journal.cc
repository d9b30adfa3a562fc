#include "tests/simulation/simulated_journal.h"

#include <cstddef>
#include <utility>

#include "common/base/check.h"
#include "coordinator/closures/term_rule.h"
#include "tests/mutants/mutant.h"

namespace evergrad::simulation {
namespace {

using coordinator::MemoryStateStore;
using mutants::IsActive;
using mutants::Mutant;

// The number of commits that the store can lose. It is larger than the sum of kUndurableMax (in
// journaled_book.cc) and the number of torn records.
constexpr std::size_t kTailKept = 64;

std::unique_ptr<MemoryStateStore> NewStore() {
  return std::make_unique<MemoryStateStore>(
      MemoryStateStore::Options{.jobs_max = 4, .torn_max = kTailKept});
}

}  // namespace

SimulatedJournal::SimulatedJournal(WalkContext& walk) : walk_(walk), store_(NewStore()) {}

void SimulatedJournal::LoseUndurable() {
  const std::uint64_t lost = undurable();
  if (lost == 0) return;
  walk_.Count("commits lost with the coordinator");
  EG_CHECK(store_->TearTail(lost) == lost);
  MakeDurable();
}

void SimulatedJournal::Recover(bool knows_newest_life) {
  const bool torn = walk_.options.torn;
  Random& random = walk_.random;
  if (torn && random.Chance(0.3) && store_->TearTail(1 + random.Below(4)) > 0)
    walk_.Count("journal torn");
  if (torn && backup_ && knows_newest_life && random.Chance(0.2)) {
    walk_.Count("journal from a backup");
    backup_used_ = true;
    store_ = std::exchange(backup_, nullptr);
  }
  if (forgotten_ && forgotten_->journal && knows_newest_life) {
    walk_.Count("journal forgot a move");
    store_ = std::exchange(forgotten_->journal, nullptr);
    forgotten_->source = 0;
  } else {
    forgotten_.reset();
  }
  if (unsynced_ && random.Chance(0.5)) store_ = std::exchange(unsynced_, nullptr);
  if (torn && random.Chance(0.2)) backup_ = Copy();
}

Term SimulatedJournal::TakeTerm(std::uint64_t reported) {
  const Term term =
      coordinator::FirstTerm(store_->term(), IsActive(Mutant::kTermIgnoresTasks) ? 0 : reported);
  if (IsActive(Mutant::kTermNotSynced)) unsynced_ = Copy();
  EG_CHECK(store_->CommitTerm(term).ok());
  MakeDurable();
  return term;
}

void SimulatedJournal::LoseAll() {
  store_ = NewStore();
  lost_ = true;  // as if an operator had passed --forget-unknown-jobs
  backup_.reset();
  forgotten_.reset();
  unsynced_.reset();
}

bool SimulatedJournal::HasLost(const MemoryStateStore& journal, JobUid job) {
  if (IsActive(Mutant::kLostJobDropped)) return false;
  return coordinator::JournalHasLost(
      {.journaled = true,
       .known = journal.Load(job).ok(),
       .removed = journal.Removed(job) && !IsActive(Mutant::kRemovedIsLost)});
}

std::unique_ptr<MemoryStateStore> SimulatedJournal::Copy() const {
  return std::make_unique<MemoryStateStore>(*store_);
}

void SimulatedJournal::BeginForgetting(std::unique_ptr<MemoryStateStore> before, int source,
                                       int next) {
  const int at = walk_.result.events + static_cast<int>(walk_.random.Below(200));
  forgotten_ = ForgottenMove{std::move(before), at, source, walk_.random.Chance(0.5) ? next : 0};
}

bool SimulatedJournal::ForgetsNow() const {
  return forgotten_ && forgotten_->journal &&
         (forgotten_->at <= walk_.result.events || !walk_.faults());
}

bool SimulatedJournal::KeepsDisconnected(int process) const {
  return walk_.faults() && forgotten_ &&
         (forgotten_->source == process || (!forgotten_->journal && forgotten_->next == process));
}

void SimulatedJournal::OnWindowClosed() {
  if (forgotten_ && !forgotten_->journal) forgotten_.reset();
}

}  // namespace evergrad::simulation
