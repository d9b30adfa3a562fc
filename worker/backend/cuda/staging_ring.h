// Assigns parts of a buffer of pinned memory to the copies of a stream. The ring tracks which bytes
// are in use, and until which ticket.
//
//   Acquire ──▶ (the host or the copy fills it) ──▶ Submit: tickets in the stream's order ──▶
//   Reached(ticket): the bytes are free
//
// Blocks are assigned and freed in the same order, so two positions and a queue describe them. The
// ring works on offsets only and never touches the memory itself. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace evergrad::worker {

class StagingRing {
 public:
  using Ticket = std::uint64_t;
  static constexpr std::uint64_t kAlignment = 256;

  struct StagingBlock {
    std::uint64_t offset = 0, bytes = 0;
    Ticket ticket = 0;  // 1, 2, …
  };
  struct Stats {
    std::uint64_t in_use = 0, in_use_peak = 0;  // bytes, including bytes skipped at the end
    std::uint64_t blocks = 0, refused = 0;
  };

  // `bytes` is rounded down to kAlignment.
  explicit StagingRing(std::uint64_t bytes) : bytes_(bytes / kAlignment * kAlignment) {}

  std::uint64_t capacity() const { return bytes_; }
  // Returns contiguous bytes, or nullopt if the ring is too full; the caller then waits for
  // oldest() and tries again. `bytes` must be in 1..capacity().
  std::optional<StagingBlock> Acquire(std::uint64_t bytes);
  // Declares that the copy of the block is queued, so that Reached will follow. The caller submits
  // the tickets in order.
  void Submit(Ticket ticket);
  // Declares that all copies submitted up to `ticket` are done. A ticket that was already reached
  // changes nothing.
  void Reached(Ticket ticket);
  // Returns the oldest submitted ticket that was not reached, or nullopt.
  std::optional<Ticket> oldest() const;
  Stats stats() const { return stats_; }

 private:
  struct Held {
    Ticket ticket;
    std::uint64_t begin, length;  // `length` includes bytes skipped before the block
  };
  const std::uint64_t bytes_;
  std::uint64_t head_ = 0;  // begin of the next block
  std::deque<Held> held_;
  Ticket last_ = 0, submitted_ = 0;
  Stats stats_;
};

}  // namespace evergrad::worker
