#include "tests/simulation/early_end.h"

#include <utility>

#include "tests/mutants/mutant.h"

namespace evergrad::simulation {

using mutants::IsActive;
using mutants::Mutant;

void EarlyEnd::Begin() {
  walk_.Count("ended early");
  walk_.Trace("the user cancels the job");
  book_.Settle();
  begun_ = true;
  for (const auto& w : tasks_.workers()) {
    if (w->registered) book_.Send(*w, Down::JobEnded());
  }
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const std::string& identity = book_.state().map[p].server;
    if (identity.empty()) continue;
    unsealed_.insert(p);
    if (const SimulatedServer* s = tasks_.ConnectedServer(identity, true)) SendSeal(*s, p);
  }
}

void EarlyEnd::BeginLife() {
  unsealed_.clear();
  if (!begun_ || told_) return;
  for (std::uint32_t p = 0; p < kShards; ++p) {
    if (!book_.state().map[p].server.empty()) unsealed_.insert(p);
  }
}

void EarlyEnd::BeginJob() {
  begun_ = told_ = false;
  unsealed_.clear();
  cuts_ = {};
}

void EarlyEnd::SendSeals(const SimulatedServer& s) {
  for (const std::uint32_t p : unsealed_) SendSeal(s, p);
}

void EarlyEnd::SendSeal(const SimulatedServer& s, std::uint32_t p) {
  const coordinator::ShardOwner& owner = book_.state().map[p];
  if (owner.server == s.identity()) book_.Send(s, Down::AboutShard(Down::kSeal, p, owner.epoch));
}

void EarlyEnd::OnSealed(Up m) {
  if (!begun_ || told_ || book_.state().map[m.p].epoch != m.epoch) return;
  if (m.snapshot) {
    cuts_[m.p] = m.snapshot->Uri();
    book_.Commit(book_->AddSnapshot(ShardId(m.p), *std::move(m.snapshot)));
  }
  unsealed_.erase(m.p);
  Check(false);
}

void EarlyEnd::OnUnheld(ShardId p) {
  if (unsealed_.erase(p.value()) > 0) Unmap(p);
}

void EarlyEnd::Unmap(ShardId p) {
  if (!IsActive(Mutant::kSilentOwnerKept)) book_.Commit(book_->Unmap(p).record);
}

void EarlyEnd::Check(bool out_of_time) {
  if (told_) return;
  if (out_of_time) {
    for (const std::uint32_t p : unsealed_) {
      walk_.Count("silent owner unmapped");
      Unmap(ShardId(p));
    }
    unsealed_.clear();
  }
  if (!unsealed_.empty() || book_->window_open()) return;
  walk_.Trace("the user is told of the end");
  rounds_.SaveLastManifest();
  book_.Settle();
  told_ = true;
  checker_.OnEndTold();
  for (const auto& s : tasks_.servers()) {
    if (s->registered) book_.Send(*s, Down::JobEnded());
  }
}

void EarlyEnd::CheckLastCuts(const SnapshotFolder& folder, EndChecks& checks) const {
  for (std::uint32_t p = 0; p < kShards; ++p) {
    if (const File* cut = folder.Find(cuts_[p])) checks.CheckLastCut(book_.state(), p, *cut->state);
  }
}

}  // namespace evergrad::simulation
