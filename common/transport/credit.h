// Who may send how much: the budget of a server for payload in flight, and the reserve for small requests. Pure.
//
//   large   announced, and admitted while `used + bytes <= budget`: one peer after the other gets its turn, and each peer's announcements come in
//           the order in which they arrived. The one whose turn it is waits until there is room for it, so that none starves. A peer that already
//           holds something gets more than its share, which is the budget divided by the peers that want some of it, and at most half, only if
//           all that wait would.
//   small   never announced, never waits: it fits its peer's share of the reserve, or is refused
//
// A peer is a client as the server knows it, with any number of streams: more streams do not bring it more.
// No clock, no threads, not thread-safe: `Budget` (budget.h) wraps it for tokens that are released on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <string>
#include <vector>

namespace evergrad::transport {

class CreditCore {
 public:
  struct Options {
    std::uint64_t budget_bytes_max = 0;
    std::uint64_t small_reserve_bytes_max = 0;
    std::uint64_t peer_small_bytes_max = 0;
    std::size_t waiting_max = 65536;  // Announcements waiting, all peers; of one peer an eighth, and at least one.
  };
  explicit CreditCore(Options options) : options_(options) {}

  // A stream of the peer with this name begins. The number that comes back names the peer while it has streams or holds anything.
  std::uint64_t Join(const std::string& name);
  // That stream ends: what it had waiting, or admitted but not taken, is withdrawn.
  void Leave(std::uint64_t peer, std::uint64_t stream);

  enum class Answer {
    kGranted,     // Charged: the caller owes ReleaseLarge(peer, bytes).
    kWaiting,     // Comes out of TakeAdmitted later, charged.
    kOverBudget,  // Larger than the whole budget: can never be granted.
    kFull,        // The waiting list is full, or the peer's part of it.
  };
  // (stream, request) must not be waiting already.
  Answer AskLarge(std::uint64_t peer, std::uint64_t stream, std::uint64_t request, std::uint64_t bytes);
  void ReleaseLarge(std::uint64_t peer, std::uint64_t bytes);

  // False: refused, nothing is charged. True: the caller owes ReleaseSmall.
  bool TakeSmall(std::uint64_t peer, std::uint64_t bytes);
  void ReleaseSmall(std::uint64_t peer, std::uint64_t bytes);

  // Withdraws one announcement, waiting or admitted but not taken. Others may be admitted by that.
  void Withdraw(std::uint64_t peer, std::uint64_t stream, std::uint64_t request);

  struct Admitted {
    std::uint64_t peer = 0;
    std::uint64_t stream = 0;
    std::uint64_t request = 0;
    std::uint64_t bytes = 0;
  };
  // Those that waited and are now charged, in the order of their turns. Each is returned once.
  std::vector<Admitted> TakeAdmitted();
  bool HasAdmitted() const { return !admitted_.empty(); }

  // Whether a peer other than this one waits.
  bool OthersWait(std::uint64_t peer) const;
  // Whether one does while this one holds more than its share.
  bool OverShare(std::uint64_t peer) const;
  // What one peer may hold while others wait.
  std::uint64_t share() const;

  std::uint64_t used() const { return used_; }
  std::uint64_t waiting_bytes() const { return waiting_bytes_; }
  std::size_t waiting() const { return waiting_; }
  std::size_t peers() const { return peers_.size(); }
  std::uint64_t small_used() const { return small_used_; }
  std::uint64_t peer_small_used_max() const;  // of the peer that uses most
  const Options& options() const { return options_; }

 private:
  struct Peer {
    std::string name;
    std::size_t streams = 0;
    std::uint64_t used = 0;
    std::uint64_t small_used = 0;
    std::deque<Admitted> waiting;
    bool active = false;  // uses or wants some of the budget
  };

  void Admit();
  bool MayHaveMore(const Peer& peer) const;
  // After a change of what the peer uses or waits for.
  void Note(std::uint64_t id, Peer& peer);

  const Options options_;
  std::uint64_t used_ = 0;
  std::uint64_t waiting_bytes_ = 0;
  std::size_t waiting_ = 0;
  std::uint64_t small_used_ = 0;
  std::size_t active_ = 0;
  std::uint64_t next_peer_ = 1;
  std::map<std::uint64_t, Peer> peers_;
  std::map<std::string, std::uint64_t> names_;
  std::list<std::uint64_t> turns_;  // Peers with something waiting; the first one's turn is next.
  std::vector<Admitted> admitted_;  // Charged, not taken yet.
};

}  // namespace evergrad::transport
