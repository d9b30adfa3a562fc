// Who may send how much: the budget of a server for payload in flight, and the reserve for small requests. Pure.
//
//   large   announced, admitted in order of arrival while `used + bytes <= budget`; one that does not fit makes all later
//           ones wait, so that none starves
//   small   never announced, never waits: it fits its peer's share of the reserve, or is refused
//
// No clock, no threads, not thread-safe: `Budget` (budget.h) wraps it for tokens that are released on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

namespace evergrad::transport {

class CreditCore {
 public:
  struct Options {
    std::uint64_t budget_bytes_max = 0;
    std::uint64_t small_reserve_bytes_max = 0;
    std::uint64_t peer_small_bytes_max = 0;
    std::size_t waiting_max = 65536;  // Announcements waiting, all peers.
  };
  explicit CreditCore(Options options) : options_(options) {}

  enum class Answer {
    kGranted,     // Charged: the caller owes ReleaseLarge(bytes).
    kWaiting,     // Comes out of TakeAdmitted later, charged.
    kOverBudget,  // Larger than the whole budget: can never be granted.
    kFull,        // The waiting list is full.
  };
  // (peer, request) must not be waiting already.
  Answer AskLarge(std::uint64_t peer, std::uint64_t request, std::uint64_t bytes);
  void ReleaseLarge(std::uint64_t bytes);

  // False: refused, nothing is charged. True: the caller owes ReleaseSmall.
  bool TakeSmall(std::uint64_t peer, std::uint64_t bytes);
  void ReleaseSmall(std::uint64_t peer, std::uint64_t bytes);

  // Withdraws one announcement, or all of a peer, waiting or admitted but not taken. Others may be admitted by that.
  void Withdraw(std::uint64_t peer, std::uint64_t request);
  void DropPeer(std::uint64_t peer);

  struct Admitted {
    std::uint64_t peer = 0;
    std::uint64_t request = 0;
    std::uint64_t bytes = 0;
  };
  // Those that waited and are now charged, in order of arrival. Each is returned once.
  std::vector<Admitted> TakeAdmitted();
  bool HasAdmitted() const { return !admitted_.empty(); }

  std::uint64_t used() const { return used_; }
  std::uint64_t waiting_bytes() const { return waiting_bytes_; }
  std::size_t waiting() const { return waiting_.size(); }
  std::uint64_t small_used() const { return small_used_; }
  std::uint64_t peer_small_used_max() const;  // of the peer that uses most
  const Options& options() const { return options_; }

 private:
  void Admit();

  const Options options_;
  std::uint64_t used_ = 0;
  std::uint64_t waiting_bytes_ = 0;
  std::uint64_t small_used_ = 0;
  std::deque<Admitted> waiting_;
  std::vector<Admitted> admitted_;  // Charged, not taken yet.
  std::map<std::uint64_t, std::uint64_t> peer_small_;
};

}  // namespace evergrad::transport
