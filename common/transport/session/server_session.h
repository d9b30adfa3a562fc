// The server's half of one data stream as a pure state machine: messages, answers and admissions
// in; messages, whole requests and the time of the next tick out. No clock, no threads, no I/O. Not
// thread-safe: its server drives it on its loop. The tokens it hands out with requests may be
// released on any thread.
//
//   (waiting -> granted ->) receiving -> handling -> answering -> gone
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/time/clock.h"
#include "common/transport/frames/outbox.h"
#include "common/transport/frames/reassembly.h"
#include "common/transport/lane/lane.h"
#include "common/transport/session/budget.h"
#include "common/transport/session/liveness.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

class ServerSession {
 public:
  struct Options {
    std::uint64_t frame_bytes_max = 1ull << 30;
    std::size_t requests_max = 8192;  // Of this stream, in any state.
    std::uint64_t message_bytes_max = wire::kMessagePayloadBytesMax;
    MonoTime progress_timeout = std::chrono::seconds(5);
    MonoTime grant_unused_max = std::chrono::seconds(30);
    // While others wait: a grant is taken back that is unused for so long, if the stream has sent
    // no payload for as long or its peer holds more than its share; and a stream is ended to which,
    // or to whose peer, this has happened so often in a row. What waits looks whether it may have
    // room now as often.
    MonoTime grant_idle_max = std::chrono::seconds(1);
    std::uint32_t unused_in_a_row_max = 8;
    std::uint64_t lane_ring_bytes_max = 0;  // The largest that is taken; 0: none.
    // Our end of the memory that the client offers, or in words why not. Null: none is taken.
    std::function<absl::StatusOr<std::unique_ptr<Lane>>(const wire::LaneOffer&)> take_lane =
        nullptr;
  };
  // Counts what happens; read by the owner after each step.
  struct Counters {
    std::uint64_t refused = 0, granted = 0;  // refused: all
    std::uint64_t lane_received = 0;         // bytes, through the lane
    std::uint64_t budget_refused = 0, small_refused = 0, peer_small_refused = 0,
                  frame_refused = 0;                     // by limit
    std::uint64_t taken_back = 0, taken_back_bytes = 0;  // grants that the peer did not use
  };
  // `stream` names this stream at the budget, `peer_name` whose share it takes part in. Puts HELLO
  // into the outbox. Requests are received into memory of `pool` (null: the heap).
  ServerSession(Options options, std::uint64_t stream, const std::string& peer_name,
                std::shared_ptr<Budget> budget, std::shared_ptr<BufferPool> pool = nullptr);
  // Withdraws and releases everything but the tokens that requests in handlers hold.
  ~ServerSession();

  struct Ready {
    std::uint64_t request = 0;
    ReceivedFrame frame;
  };

  // One message or several. Not OK: the client breaks the protocol, the stream is to be ended with
  // this status. No part of the message that breaks it was used.
  absl::Status OnMessage(MessageView messages, MonoTime now);
  // The budget has admitted a request that waited.
  void OnAdmitted(std::uint64_t request, std::uint64_t bytes, MonoTime now);
  // For a request that was cancelled meanwhile both do nothing.
  void Answer(std::uint64_t request, Frame response, MonoTime now);
  void Fail(std::uint64_t request, const absl::Status& status);

  // Several may be taken to leave together; OnSent then says so of all. nullopt: nothing to send
  // now, or lane_status() says why nothing can be.
  std::optional<Outbox::Message> NextMessage();
  const absl::Status& lane_status() const { return lane_.status(); }  // Not OK: as of OnMessage.
  void OnSent(MonoTime now);
  // Takes back grants that are not used. Not OK: the stream is to be ended, with this status if it
  // is ResourceExhausted (the peer has left too many grants unused); else the watchdog gives it up.
  absl::Status Tick(MonoTime now);
  std::optional<MonoTime> NextTick() const;
  std::vector<Ready> TakeReady() { return std::exchange(ready_, {}); }
  Counters TakeCounters() { return std::exchange(counters_, {}); }
  bool has_lane() const { return lane_.open(); }
  std::size_t requests() const { return requests_.size(); }

 private:
  enum class Phase { kWaiting, kGranted, kReceiving, kHandling, kAnswering };
  struct Request {
    Phase phase = Phase::kWaiting;
    std::uint64_t request_bytes_max = 0;
    std::uint64_t response_bytes_max = 0;
    std::unique_ptr<Budget::Token> request_token, response_token;
    Reassembly frame;
    MonoTime granted_at{0};
    MonoTime last_piece{0};
  };
  using RequestMap = std::map<std::uint64_t, Request>;

  absl::Status OnOne(const wire::StreamHeader& header, MessageView payload, MonoTime now);
  absl::Status OnAnnounce(const wire::StreamHeader& header, MonoTime now);
  absl::Status OnPiece(const wire::StreamHeader& header, MessageView payload, MonoTime now);
  absl::Status OnLane(const wire::StreamHeader& header, MessageView payload);
  void OnCancel(std::uint64_t id, MonoTime now);
  void Grant(RequestMap::iterator it, MonoTime now);
  void Refuse(std::uint64_t id, const absl::Status& status);
  Request& Add(const wire::StreamHeader& header, MonoTime now);
  void Forget(RequestMap::iterator it);
  void Touch(std::uint64_t id, Request& request, MonoTime now);
  // The grant of `id` ends unused.
  void TakeBack(std::uint64_t id);
  // What others wait for and this one does not use, or not fast enough.
  void TakeBackForOthers(MonoTime now);

  const Options options_;
  const std::uint64_t stream_;
  const std::shared_ptr<Budget> budget_;
  const std::uint64_t peer_;                // at the budget
  const std::shared_ptr<BufferPool> pool_;  // Shared by the streams of a server.
  Outbox outbox_;
  LanePort lane_;
  bool lane_asked_ = false;
  Liveness liveness_;
  RequestMap requests_;
  std::set<std::pair<MonoTime, std::uint64_t>> granted_;  // By last piece: which grants are dead.
  std::set<std::uint64_t>
      dropping_;  // Ended by us; their pieces are dropped until the client's CANCEL.
  std::vector<std::uint64_t> answers_sent_;  // Requests whose last piece is on its way.
  MonoTime check_at_{
      0};  // While granted_ is not empty: when it is looked for grants that others could use.
  std::size_t waiting_ = 0;            // Requests in that phase.
  MonoTime advance_at_{0};             // While there are any: when the budget is told the time.
  MonoTime last_payload_{0};           // Of a granted request.
  std::uint32_t unused_in_a_row_ = 0;  // How often grants were taken back since one was last used.
  std::uint32_t unused_of_peer_ = 0;   // Likewise on any of its streams.
  bool writing_ = false;               // Something was taken by NextMessage and is not sent yet …
  std::optional<MonoTime> writing_since_;  // … and was not at this tick either.
  bool pong_queued_ = false;
  std::vector<Ready> ready_;
  Counters counters_;
};

}  // namespace evergrad::transport
