// The grants of one data stream for requests that have not arrived completely. The class decides
// when a grant is taken back, and when the peer has left too many grants unused. The class has no
// clock and no threads. Not thread-safe.
//
// A grant is taken back when no piece of its request has come for `unused_max`. While other peers
// wait for the budget, a grant is taken back earlier in two cases. An unused grant is taken back
// after `idle_max` if the stream has sent no payload meanwhile, or if its peer holds more than its
// share. A grant whose request has begun is taken back `unused_max` after the grant if its peer
// holds more than its share.
#pragma once

#include <cstdint>
#include <functional>
#include <set>

#include "absl/status/status.h"
#include "common/time/clock.h"
#include "common/transport/session/budget.h"

namespace evergrad::transport {

class GrantWatch {
 public:
  struct Options {
    MonoTime unused_max{0};
    MonoTime idle_max{0};
    std::uint32_t unused_in_a_row_max = 0;
  };
  // The state of a request's grant, which the caller keeps with the request. A default-constructed
  // Grant means that the request has no grant.
  struct Grant {
    MonoTime granted_at{0};
    MonoTime last_piece{0};
  };
  // `peer` is the peer's number at `budget`, which outlives the watch.
  GrantWatch(Options options, Budget& budget, std::uint64_t peer)
      : options_(options), budget_(budget), peer_(peer) {}

  void OnGranted(std::uint64_t request, Grant* grant, MonoTime now);
  // Reports that a piece has arrived, and that more pieces follow.
  void OnPiece(std::uint64_t request, Grant* grant, MonoTime now);
  // Reports that the last piece of the request has arrived. `bytes` is the size of the request.
  void OnComplete(std::uint64_t request, const Grant& grant, std::uint64_t bytes, MonoTime now);
  // Reports that the peer has cancelled a request before it sent a piece. The grant counts as left
  // unused if the peer has kept it for more than a quarter of idle_max, and other peers wait.
  void OnReturned(const Grant& grant, MonoTime now);
  // Reports that the request has ended. Has no effect if its grant is not watched.
  void Remove(std::uint64_t request, const Grant& grant) {
    granted_.erase({grant.last_piece, request});
  }
  // Reports that the stream has ended. If the stream has an unused grant while other peers wait,
  // the peer counts as having left a grant unused.
  void OnEnd();

  // Calls `take_back` for each grant to be taken back; the caller ends the request and calls
  // Remove. Returns ResourceExhausted if the peer has left too many grants unused in a row, on this
  // stream or on all of its streams.
  absl::Status Tick(MonoTime now, const std::function<void(std::uint64_t request)>& take_back);
  bool empty() const { return granted_.empty(); }
  // Returns the time of the next tick. Requires that a grant is watched.
  MonoTime Due() const;

 private:
  struct Entry {
    MonoTime last_piece{0};
    std::uint64_t request = 0;
    MonoTime granted_at{0};
    bool begun = false;  // a piece has come
    bool operator<(const Entry& other) const {
      return last_piece != other.last_piece ? last_piece < other.last_piece
                                            : request < other.request;
    }
  };
  using TakeBack = std::function<void(std::uint64_t)>;
  void TakeBackOne(std::uint64_t request, const TakeBack& take_back);
  // Takes back grants that other peers wait for and that this peer does not use, or uses too
  // slowly.
  void TakeBackForOthers(MonoTime now, const TakeBack& take_back);

  const Options options_;
  Budget& budget_;
  const std::uint64_t peer_;
  std::set<Entry> granted_;   // in the order of their last pieces, so that inactive ones come first
  MonoTime check_at_{0};      // the next time to look for grants that others could use
  MonoTime last_payload_{0};  // time of the last payload of a granted request
  std::uint64_t taken_back_ = 0;
  std::uint32_t unused_in_a_row_ = 0;  // grants taken back since the stream last used one
  std::uint32_t unused_of_peer_ = 0;   // unused_in_a_row of the peer, over all of its streams
};

}  // namespace evergrad::transport
