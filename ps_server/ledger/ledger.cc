#include "ps_server/ledger/ledger.h"

#include <algorithm>
#include <bit>

namespace evergrad::ps_server {
namespace {

bool AnyFrom(const std::vector<std::uint64_t>& bits, std::uint32_t u) {
  std::size_t word = u / 64;
  if (word >= bits.size()) return false;
  if (bits[word] >> (u % 64) != 0) return true;
  return std::any_of(bits.begin() + static_cast<std::ptrdiff_t>(word) + 1, bits.end(),
                     [](std::uint64_t w) { return w != 0; });
}

}  // namespace

Admission Ledger::Check(ClosureId closure, UpdateIndex update, Attempt attempt) {
  if (done_.Contains(closure.value())) return Admission::kDuplicate;
  if (refused_.Contains(closure.value()) && mutant_ != fault::Mutant::kRefusedAdmits)
    return Admission::kRefused;
  const auto it = open_.find(closure);
  if (it == open_.end()) return Admission::kAdmit;
  Open& open = it->second;
  if (open.attempt > attempt && mutant_ != fault::Mutant::kNoAttemptFence)
    return Admission::kSuperseded;
  bool recorded = open.Test(update.value());
  if (mutant_ == fault::Mutant::kLedgerOff) recorded = false;
  if (mutant_ == fault::Mutant::kWatermarkOnly) recorded = AnyFrom(open.bits, update.value());
  if (!recorded) return Admission::kAdmit;
  if (mutant_ != fault::Mutant::kDuplicateLowersNoBar)
    open.attempt = std::max(open.attempt, attempt);
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
  if (mutant_ == fault::Mutant::kOpenNotFreed) return true;
  for (auto it = open_.begin(); it != open_.end();) {
    const std::uint64_t c = it->first.value();
    it = done_.Contains(c) || refused_.Contains(c) ? open_.erase(it) : std::next(it);
  }
  if (mutant_ == fault::Mutant::kPrune || mutant_ == fault::Mutant::kDoneMergesHoles) {
    const std::vector<IntervalSet::Interval> intervals = done_.Intervals();
    if (intervals.size() > 1 && mutant_ == fault::Mutant::kPrune)
      done_.RemoveRange(0, intervals.back().begin);
    if (intervals.size() > 1 && mutant_ == fault::Mutant::kDoneMergesHoles)
      done_.AddRange(intervals.front().begin, intervals.back().end);
  }
  return true;
}

Ledger Ledger::Restored(IntervalSet done, IntervalSet refused, std::map<ClosureId, Open> open,
                        fault::Mutant mutant) {
  Ledger ledger(mutant);
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
  if (mutant_ == fault::Mutant::kResumeForgetsOpen) return WithoutOpen();
  Ledger copy = *this;
  if (mutant_ == fault::Mutant::kResumeKeepsAttempts) return copy;
  for (auto& [c, open] : copy.open_) open.attempt = Attempt{};
  return copy;
}

Ledger Ledger::WithoutOpen() const {
  Ledger copy = *this;
  copy.open_.clear();
  return copy;
}

std::uint64_t Ledger::MemoryBytes() const {
  constexpr std::uint64_t kTreeNode = 32;  // colour, parent, left, right of a std::map node
  std::uint64_t bytes =
      sizeof(*this) + (done_.interval_count() + refused_.interval_count()) * (kTreeNode + 16);
  for (const auto& [c, open] : open_)
    bytes += kTreeNode + sizeof(c) + sizeof(open) + open.bits.capacity() * 8;
  return bytes;
}

}  // namespace evergrad::ps_server
