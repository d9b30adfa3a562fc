// Who may send how much: the budget of a server for payload in flight, and the reserve for small
// requests. Pure.
//
//   large   announced, and admitted while `used + bytes <= budget`: one peer after the other gets
//   its turn, and each peer's announcements come in
//           the order in which they arrived. The one whose turn it is waits until there is room for
//           it, so that none starves. A peer that already holds something gets more than its share,
//           which is the budget divided by the peers that want some of it, and at most half, only
//           if all that wait would; and more than half of the budget only while no other peer has
//           been active lately. Who works with small requests one after another does not wait at
//           every moment, and what is free in between has to be free when it asks again. A peer
//           that leaves its grants unused gets less for a while: a half of half of the budget, a
//           quarter, and so on, be it all that it holds. Nobody leaves room for it meanwhile.
//   small   never announced, never waits: it fits its peer's share of the reserve, or is refused
//
// A peer is a client as the server knows it, with any number of streams: more streams do not bring
// it more, and a new stream forgets nothing. No clock (the time is what Advance said last), no
// threads, not thread-safe: `Budget` (budget.h) wraps it for tokens that are released on any
// thread.
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
    std::size_t waiting_max =
        65536;  // Announcements waiting, all peers; of one peer an eighth, and at least one.
    MonoTime lately = std::chrono::seconds(
        10);  // A peer that held or wanted some of the budget so long ago counts as active.
  };
  explicit CreditCore(Options options) : options_(options) {}

  // It is `now`. Others may be admitted by that; a time before the last one changes nothing.
  void Advance(MonoTime now);

  // A stream of the peer with this name begins. The number that comes back names the peer while it
  // has streams or holds anything.
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
  Answer AskLarge(std::uint64_t peer, std::uint64_t stream, std::uint64_t request,
                  std::uint64_t bytes);
  void ReleaseLarge(std::uint64_t peer, std::uint64_t bytes);

  // False: refused, nothing is charged. True: the caller owes ReleaseSmall.
  bool TakeSmall(std::uint64_t peer, std::uint64_t bytes);
  void ReleaseSmall(std::uint64_t peer, std::uint64_t bytes);

  // The peer has left a grant unused, which is about to be released: it gets less for a while. How
  // often that was since it used any; once in half a second counts (where `lately` is ten).
  std::uint32_t LeftUnused(std::uint64_t peer);
  // The peer has sent so much payload for a grant: that it uses four times as much (parts of a
  // request, see RequestLimits) is believed.
  void Used(std::uint64_t peer, std::uint64_t bytes);

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
    bool active = false;    // uses or wants some of the budget …
    MonoTime active_at{0};  // … and last did
    std::uint32_t unused =
        0;  // how often it has left grants unused: so often its half of the budget is halved …
    MonoTime unused_at{0};              // … the last time,
    MonoTime distrusted_to{0};          // … until then.
    std::uint32_t unused_in_a_row = 0;  // since it used any
  };

  void Admit();
  std::uint64_t half() const { return options_.budget_bytes_max / 2; }
  bool Distrusted(const Peer& peer) const { return peer.unused > 0 && now_ < peer.distrusted_to; }
  // Whether a peer other than this one, and worth leaving room for, is active or was so lately.
  bool OthersLately(std::uint64_t id) const;
  // Whether its oldest announcement is admitted in its turn, if it fits: whoever else waits; or if
  // nobody who waits is so.
  bool InTurn(std::uint64_t id) const;
  bool MayGoBeyond(std::uint64_t id) const;
  // After a change of what the peer uses or waits for.
  void Note(std::uint64_t id, Peer& peer);
  void ForgetIfGone(std::uint64_t id, const Peer& peer);

  const Options options_;
  MonoTime now_{0};
  MonoTime look_at_{0};  // When it is looked again for who is no longer active lately.
  std::uint64_t used_ = 0;
  std::uint64_t waiting_bytes_ = 0;
  std::size_t waiting_ = 0;
  std::uint64_t small_used_ = 0;
  std::size_t active_ = 0;
  std::uint64_t next_peer_ = 1;
  std::map<std::uint64_t, Peer> peers_;
  std::map<std::string, std::uint64_t> names_;
  std::set<std::uint64_t> lately_;  // Peers that are active or were so lately. Those among them
                                    // that have gone are remembered.
  std::list<std::uint64_t> turns_;  // Peers with something waiting; the first one's turn is next.
  std::vector<Admitted> admitted_;  // Charged, not taken yet.
};

}  // namespace evergrad::transport
