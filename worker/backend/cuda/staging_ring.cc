#include "worker/backend/cuda/staging_ring.h"

#include <algorithm>

#include "common/base/check.h"

namespace evergrad::worker {

std::optional<StagingRing::StagingBlock> StagingRing::Acquire(std::uint64_t bytes) {
  EG_CHECK(bytes > 0 && bytes <= bytes_);
  const std::uint64_t want = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (held_.empty()) head_ = 0;
  const bool wraps = head_ + want > bytes_;  // a block must be contiguous
  const std::uint64_t skipped = wraps ? bytes_ - head_ : 0;
  if (stats_.in_use + skipped + want > bytes_) {
    ++stats_.refused;
    return std::nullopt;
  }
  StagingBlock block;
  block.offset = wraps ? 0 : head_;
  block.bytes = bytes;
  block.ticket = ++last_;
  held_.push_back({block.ticket, block.offset, skipped + want});
  head_ = block.offset + want;
  stats_.in_use += skipped + want;
  stats_.in_use_peak = std::max(stats_.in_use_peak, stats_.in_use);
  ++stats_.blocks;
  return block;
}

void StagingRing::Submit(Ticket ticket) {
  EG_CHECK(ticket == submitted_ + 1 && ticket <= last_);
  submitted_ = ticket;
}

void StagingRing::Reached(Ticket ticket) {
  EG_CHECK(ticket <= submitted_);
  while (!held_.empty() && held_.front().ticket <= ticket) {
    stats_.in_use -= held_.front().length;
    held_.pop_front();
  }
}

std::optional<StagingRing::Ticket> StagingRing::oldest() const {
  if (held_.empty() || held_.front().ticket > submitted_) return std::nullopt;
  return held_.front().ticket;
}

}  // namespace evergrad::worker
