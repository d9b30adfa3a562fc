#include "ps_server/storage/duplicate_ids.h"

#include <utility>

namespace evergrad::ps_server::storage {

void DuplicateIds::Begin(std::size_t size) {
  positions_.clear();
  next_.clear();
  seen_.Begin(size);
  if (suspect_positions_.size() < size) suspect_positions_.resize(size);
}

void DuplicateIds::Find(std::span<const std::uint64_t> hashes, std::size_t suspects) {
  if (suspects == 0) return;
  suspects_.clear();
  suspect_of_.Begin(suspects);
  suspicious_.Begin(suspects);
  HashFilter::View suspicious = suspicious_.view();
  const auto hash_at = [this](std::uint32_t at) { return suspects_[at].hash; };
  for (const std::uint32_t position : std::span(suspect_positions_.data(), suspects)) {
    const std::uint64_t hash = hashes[position];
    suspicious.Set(hash);
    if (suspect_of_.FindOrAdd(hash, static_cast<std::uint32_t>(suspects_.size()), hash_at) == kNone)
      suspects_.push_back({hash, kNone});
  }
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (!suspicious.Get(hashes[i])) continue;
    const std::uint32_t at = suspect_of_.Find(hashes[i], hash_at);
    if (at == kNone) continue;
    const std::uint32_t before = std::exchange(suspects_[at].last, static_cast<std::uint32_t>(i));
    if (before == kNone) continue;
    if (positions_.empty()) next_.assign(hashes.size(), kNone);
    next_[before] = static_cast<std::uint32_t>(i);
    positions_.push_back(static_cast<std::uint32_t>(i));
  }
}

}  // namespace evergrad::ps_server::storage
