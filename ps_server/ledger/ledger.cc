#include "ps_server/ledger/ledger.h"

#include <algorithm>
#include <utility>

#include "ps_server/ledger/ledger_rules.h"

namespace evergrad::ps_server {

Admission Ledger::Check(ClosureId closure, UpdateIndex update, Attempt attempt) {
  if (LedgerRules::IsDone(done_, closure)) return Admission::kDuplicate;
  if (LedgerRules::IsRefused(refused_, closure)) return Admission::kRefused;
  const auto it = open_.find(closure);
  if (it == open_.end()) return Admission::kAdmit;
  Open& open = it->second;
  if (LedgerRules::IsSuperseded(attempt, open.attempt)) return Admission::kSuperseded;
  if (!LedgerRules::IsRecorded(open, update)) return Admission::kAdmit;
  open.attempt = LedgerRules::AfterDuplicate(open.attempt, attempt);
  return Admission::kDuplicate;
}

void Ledger::Record(ClosureId closure, UpdateIndex update, Attempt attempt) {
  Open& open = open_[closure];
  open.attempt = std::max(open.attempt, attempt);
  const std::size_t word = update.value() / 64;
  if (word >= open.bits.size()) open.bits.resize(word + 1);
  open.bits[word] |= std::uint64_t{1} << (update.value() % 64);
}

bool Ledger::Close(const IntervalSet& done, const IntervalSet& refused) {
  const bool done_grew = done_.UnionWith(done);
  const bool refused_grew = refused_.UnionWith(refused);
  if (!done_grew && !refused_grew) return false;
  std::erase_if(
      open_, [&](const auto& open) { return LedgerRules::HasEnded(done_, refused_, open.first); });
  return true;
}

Ledger Ledger::Restored(const IntervalSet& done, const IntervalSet& refused,
                        std::map<ClosureId, Open> open) {
  Ledger ledger;
  ledger.open_ = std::move(open);
  ledger.Close(done, refused);
  return ledger;
}

bool Ledger::Has(ClosureId closure, UpdateIndex update) const {
  if (done_.Contains(closure.value())) return true;
  const auto it = open_.find(closure);
  return it != open_.end() && it->second.Test(update.value());
}

Ledger Ledger::WithoutAttempts() const {
  Ledger copy = *this;
  copy.open_ = LedgerRules::OpenInNewJob(std::move(copy.open_));
  return copy;
}

std::uint64_t Ledger::MemoryBytes() const {
  // Colour, parent, left and right pointer of a std::map node.
  constexpr std::uint64_t kTreeNode = 32;
  std::uint64_t bytes =
      sizeof(*this) + (done_.interval_count() + refused_.interval_count()) * (kTreeNode + 16);
  for (const auto& [c, open] : open_)
    bytes += kTreeNode + sizeof(c) + sizeof(open) + open.bits.capacity() * 8;
  return bytes;
}

}  // namespace evergrad::ps_server
