// Pinned memory between the host and the copies that a stream makes: which bytes are whose, until
// which ticket.
//
//   Acquire ──▶ (the host fills it, or the copy does) ──▶ Submit: a ticket, in the stream's order
//   ──▶ Reached(ticket): the bytes are free
//
// Slots are given out and come back in one order, so the books are two positions and a queue. It
// computes with offsets. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace evergrad::worker {

class StagingRing {
 public:
  using Ticket = std::uint64_t;
  static constexpr std::uint64_t kAlignment = 256;

  struct Slot {
    std::uint64_t offset = 0, bytes = 0;
    Ticket ticket = 0;  // 1, 2, …
  };
  struct Stats {
    std::uint64_t in_use = 0, in_use_peak = 0;  // bytes, with what was skipped at the end
    std::uint64_t slots = 0, refused = 0;
  };

  // `bytes` is rounded down to kAlignment.
  explicit StagingRing(std::uint64_t bytes) : bytes_(bytes / kAlignment * kAlignment) {}

  std::uint64_t capacity() const { return bytes_; }
  // Contiguous bytes; nullopt when the ring is too full: wait for oldest() and try again. `bytes`
  // is in 1..capacity().
  std::optional<Slot> Acquire(std::uint64_t bytes);
  // The copy of this slot is queued: it will be reached. In order of the tickets.
  void Submit(Ticket ticket);
  // Everything submitted up to `ticket` is done. A ticket that was reached already changes nothing.
  void Reached(Ticket ticket);
  // The oldest ticket that was submitted and not reached; nullopt when there is none to wait for.
  std::optional<Ticket> oldest() const;
  Stats stats() const { return stats_; }

 private:
  struct Held {
    Ticket ticket;
    std::uint64_t begin, length;  // `length` with what was skipped before it
  };
  const std::uint64_t bytes_;
  std::uint64_t head_ = 0;  // where the next one begins
  std::deque<Held> held_;
  Ticket last_ = 0, submitted_ = 0;
  Stats stats_;
};

}  // namespace evergrad::worker
