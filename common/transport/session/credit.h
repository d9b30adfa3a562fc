// The budget of a server for payload in flight, and the reserve for small requests. Pure.
//
// Large requests are announced. They are admitted while `used + bytes <= budget`, by these rules:
//
// - Peers take turns, and the announcements of a peer are admitted in the order of arrival. If the
//   next peer's request does not fit, other peers wait with this peer, so that no peer starves.
// - The share of a peer is the budget divided by the number of peers that use or request some of
//   it, and at most half. A peer that holds memory gets more than its share only if all waiting
//   requests could be admitted as well. A peer gets more than half only while no other peer has
//   been active lately. (A peer that sends small requests one after another is not always waiting,
//   and must find free memory at its next request.)
// - A peer that leaves its grants unused has a lower limit for a while: a quarter of the budget,
//   then an eighth, and so on. Meanwhile no part of the budget is kept free for this peer.
//
// Small requests are never announced and never wait. A request that does not fit its peer's share
// of the reserve is refused.
//
// A peer is a client as the server identifies it, with any number of streams: more streams do not
// get more memory, and a new stream does not reset the peer's history. The class has no clock
// (Advance passes the time) and no threads, and is not thread-safe. `Budget` (budget.h) wraps this
// class for tokens that any thread may release.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/time/clock.h"

namespace evergrad::transport {

class CreditCore {
 public:
  struct Options {
    std::uint64_t budget_bytes_max = 0;
    std::uint64_t small_reserve_bytes_max = 0;
    std::uint64_t peer_small_bytes_max = 0;
    // Limit of waiting announcements of all peers; one peer may have an eighth of the limit, and at
    // least one announcement.
    std::size_t waiting_max = 65536;
    // A peer counts as active for this time after it last held or requested some of the budget.
    MonoTime lately = std::chrono::seconds(10);
  };
  explicit CreditCore(Options options) : options_(options) {}

  // Sets the time, and may admit waiting requests. A time before the latest one changes nothing.
  void Advance(MonoTime now);

  // Adds a stream of the peer `name`. The returned id identifies the peer while it has streams or
  // holds memory.
  std::uint64_t Join(const std::string& name);
  // Removes a stream, and withdraws its requests that wait, or that were admitted but not
  // taken.
  void Leave(std::uint64_t peer, std::uint64_t stream);

  enum class Answer {
    kGranted,     // The request is charged: the caller must call ReleaseLarge(peer, bytes).
    kWaiting,     // TakeAdmitted returns the request later, when it is charged.
    kOverBudget,  // The request is larger than the whole budget, and can never be granted.
    kFull,        // The waiting list, or the peer's part of it, is full.
  };
  // (stream, request) must not be waiting already.
  Answer AskLarge(std::uint64_t peer, std::uint64_t stream, std::uint64_t request,
                  std::uint64_t bytes);
  void ReleaseLarge(std::uint64_t peer, std::uint64_t bytes);

  // Returns whether the bytes were charged; if they were, the caller must call ReleaseSmall.
  bool TakeSmall(std::uint64_t peer, std::uint64_t bytes);
  void ReleaseSmall(std::uint64_t peer, std::uint64_t bytes);

  // Reports a grant that the peer left unused and that is about to be released. The peer's limit is
  // lowered for a while. Returns the number of grants left unused since the peer last used one.
  // Several events within half a second (for `lately` of ten seconds) count once.
  std::uint32_t LeftUnused(std::uint64_t peer);
  // Reports that the peer has sent `bytes` of payload for a grant. If the limit of the peer was
  // lowered, it is raised to at least four times `bytes` or to its full value, because a client has
  // up to four parts of a request in flight (common/client/request_limits.h).
  void Used(std::uint64_t peer, std::uint64_t bytes);

  // Withdraws an announcement that waits, or that was admitted but not taken. This may admit other
  // requests.
  void Withdraw(std::uint64_t peer, std::uint64_t stream, std::uint64_t request);

  struct Admitted {
    std::uint64_t peer = 0;
    std::uint64_t stream = 0;
    std::uint64_t request = 0;
    std::uint64_t bytes = 0;
  };
  // Returns the requests that waited and are now charged, in the order of admission. Each request
  // is returned once.
  std::vector<Admitted> TakeAdmitted();
  bool HasAdmitted() const { return !admitted_.empty(); }

  // Returns whether another peer waits.
  bool OthersWait(std::uint64_t peer) const;
  // Returns whether another peer waits while this peer holds more than its share.
  bool OverShare(std::uint64_t peer) const;
  // Returns the share of one peer while others wait.
  std::uint64_t share() const;

  std::uint64_t used() const { return used_; }
  std::uint64_t waiting_bytes() const { return waiting_bytes_; }
  std::size_t waiting() const { return waiting_; }
  std::size_t peers() const { return peers_.size(); }
  std::uint64_t small_used() const { return small_used_; }
  std::uint64_t peer_small_used_max() const;  // largest use of the small reserve by one peer
  const Options& options() const { return options_; }

 private:
  struct Peer {
    std::string name;
    std::size_t streams = 0;
    std::uint64_t used = 0;
    std::uint64_t small_used = 0;
    std::deque<Admitted> waiting;
    bool active = false;    // the peer uses or requests some of the budget
    MonoTime active_at{0};  // last time that `active` was true
    // The number of times that the peer's limit, half of the budget, is halved because of unused
    // grants.
    std::uint32_t unused = 0;
    MonoTime unused_at{0};              // last time that the peer left a grant unused
    MonoTime distrusted_to{0};          // end of the time for which the peer's limit is lowered
    std::uint32_t unused_in_a_row = 0;  // grants left unused since the peer last used one
  };

  void Admit();
  std::uint64_t half() const { return options_.budget_bytes_max / 2; }
  bool Distrusted(const Peer& peer) const { return peer.unused > 0 && now_ < peer.distrusted_to; }
  // Returns whether another peer whose limit is not lowered is active, or was active lately.
  bool OthersLately(std::uint64_t id) const;
  // Return whether the oldest announcement of a waiting peer may be admitted if it fits the budget.
  // InTurn applies the peer's share. MayGoBeyond allows more than the share, and is asked only if
  // InTurn is false for every waiting peer.
  bool InTurn(std::uint64_t id) const;
  bool MayGoBeyond(std::uint64_t id) const;
  // Updates turns_, lately_ and the activity of the peer after a change in its use or in its
  // waiting requests.
  void Note(std::uint64_t id, Peer& peer);
  void ForgetIfGone(std::uint64_t id, const Peer& peer);

  const Options options_;
  MonoTime now_{0};
  MonoTime look_at_{0};  // next time to search for peers that have become inactive
  std::uint64_t used_ = 0;
  std::uint64_t waiting_bytes_ = 0;
  std::size_t waiting_ = 0;
  std::uint64_t small_used_ = 0;
  std::size_t active_ = 0;
  std::uint64_t next_peer_ = 1;
  std::map<std::uint64_t, Peer> peers_;
  std::map<std::string, std::uint64_t> names_;
  // Peers that are active, or were active lately. The set includes peers without streams.
  std::set<std::uint64_t> lately_;
  std::list<std::uint64_t> turns_;  // peers with waiting requests, the next one first
  // Requests that are charged and not yet returned by TakeAdmitted.
  std::vector<Admitted> admitted_;
};

}  // namespace evergrad::transport
