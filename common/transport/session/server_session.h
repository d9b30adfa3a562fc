// The server's half of one data stream, as a pure state machine. Its inputs are the client's
// messages, the handler's answers, and the budget's admissions of waiting requests. Its outputs are
// messages to the client, complete requests for the handler, and the time of the next tick. The
// session has no clock, no threads and no I/O. Not thread-safe: the server drives the session on
// its loop. The tokens of delivered requests may be released on any thread.
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
#include "common/transport/session/grant_watch.h"
#include "common/transport/session/liveness.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

class ServerSession {
 public:
  struct Options {
    std::uint64_t frame_bytes_max = 1ull << 30;
    std::size_t requests_max = 8192;  // requests of this stream in any state
    std::uint64_t message_bytes_max = wire::kMessagePayloadBytesMax;
    MonoTime progress_timeout = std::chrono::seconds(5);
    MonoTime grant_unused_max = std::chrono::seconds(30);
    // grant_idle_max limits how long a grant may be unused while other peers wait (grant_watch.h).
    // grant_idle_max is also the interval at which waiting requests are checked. A stream ends when
    // unused_in_a_row_max grants in a row were taken back from this stream, or from all streams of
    // its peer together.
    MonoTime grant_idle_max = std::chrono::seconds(1);
    std::uint32_t unused_in_a_row_max = 8;
    std::uint64_t lane_ring_bytes_max = 0;  // the largest ring that is accepted; 0 for none
    // If this function is nullptr, no lane is accepted.
    LanePort::TakeLane take_lane = nullptr;
  };
  // Counts of events, which the owner reads after each step.
  struct Counters {
    std::uint64_t refused = 0, granted = 0;  // refused: all refusals together
    std::uint64_t lane_received = 0;         // bytes received through the lane
    // Refusals, by the limit that was exceeded.
    std::uint64_t budget_refused = 0, small_refused = 0, peer_small_refused = 0, frame_refused = 0;
    std::uint64_t taken_back = 0, taken_back_bytes = 0;  // grants that the peer did not use
  };
  // `stream` identifies this stream at the budget; `peer_name` is the peer whose share it uses. The
  // constructor puts HELLO into the outbox. Requests are received into memory of `pool`, or of the
  // heap if it is nullptr.
  ServerSession(Options options, std::uint64_t stream, const std::string& peer_name,
                std::shared_ptr<Budget> budget, std::shared_ptr<BufferPool> pool = nullptr);
  // Withdraws and releases everything except the tokens of requests in handlers.
  ~ServerSession();

  struct Ready {
    std::uint64_t request = 0;
    ReceivedFrame frame;
  };

  // Processes one or more messages. An error means that the client violates the protocol; the
  // caller must end the stream with this status. No part of the violating message has been used.
  absl::Status OnMessage(MessageView messages, MonoTime now);
  // Grants a waiting request that the budget has admitted.
  void OnAdmitted(std::uint64_t request, std::uint64_t bytes, MonoTime now);
  // Both methods have no effect on a request that was cancelled meanwhile.
  void Answer(std::uint64_t request, Frame response, MonoTime now);
  void Fail(std::uint64_t request, const absl::Status& status);

  // Returns the next message, or nullopt if there is nothing to send now, or if lane_status() has
  // an error. Several messages may be taken and sent together; one OnSent then covers all of them.
  std::optional<Outbox::Message> NextMessage();
  // An error of lane_status has the same meaning as an error of OnMessage.
  const absl::Status& lane_status() const { return lane_.status(); }
  void OnSent(MonoTime now);
  // Takes back unused grants. An error means that the caller must end the stream. ResourceExhausted
  // means that the peer has left too many grants unused; the stream must then end with this status.
  // Any other error comes from the watchdog.
  absl::Status Tick(MonoTime now);
  std::optional<MonoTime> NextTick() const;
  std::vector<Ready> TakeReady() { return std::exchange(ready_, {}); }
  Counters TakeCounters() { return std::exchange(counters_, {}); }
  std::size_t requests() const { return requests_.size(); }

 private:
  enum class Phase { kWaiting, kGranted, kReceiving, kHandling, kAnswering };
  struct Request {
    Phase phase = Phase::kWaiting;
    std::uint64_t request_bytes_max = 0;
    std::uint64_t response_bytes_max = 0;
    std::unique_ptr<Budget::Token> request_token, response_token;
    Reassembly frame;
    GrantWatch::Grant grant;
  };
  using RequestMap = std::map<std::uint64_t, Request>;

  absl::Status OnOne(const wire::StreamHeader& header, MessageView payload, MonoTime now);
  absl::Status OnAnnounce(const wire::StreamHeader& header, MonoTime now);
  absl::Status OnPiece(const wire::StreamHeader& header, MessageView payload, MonoTime now);
  void OnCancel(std::uint64_t id, MonoTime now);
  void Grant(RequestMap::iterator it, MonoTime now);
  void Refuse(std::uint64_t id, const absl::Status& status);
  // Refuses a request if the stream has requests_max requests. Returns whether the request was
  // refused.
  bool RefuseAsTooMany(std::uint64_t id);
  // Adds a small request, which arrives in one piece and needs no grant, or refuses it.
  absl::Status AddSmall(const wire::StreamHeader& header, MonoTime now);
  Request& Add(const wire::StreamHeader& header, MonoTime now);
  void Forget(RequestMap::iterator it);
  // Ends the request `id`, whose grant the peer has left unused.
  void TakeBack(std::uint64_t id);

  const Options options_;
  const std::uint64_t stream_;
  const std::shared_ptr<Budget> budget_;
  const std::uint64_t peer_;                // id of the peer at the budget
  const std::shared_ptr<BufferPool> pool_;  // Shared by the streams of a server.
  Outbox outbox_;
  LanePort lane_;
  Liveness liveness_;
  RequestMap requests_;
  GrantWatch grants_;
  // Requests ended by the server. Their pieces are dropped until the client's CANCEL arrives.
  std::set<std::uint64_t> dropping_;
  std::vector<std::uint64_t> answers_sent_;  // Requests whose last piece is being sent.
  std::size_t waiting_ = 0;                  // Requests in the waiting phase.
  // The next time at which Tick passes the time to the budget while requests wait.
  MonoTime advance_at_{0};
  bool writing_ = false;  // NextMessage has returned a message that is not sent yet
  std::optional<MonoTime> writing_since_;  // first tick at which that message was unsent
  bool pong_queued_ = false;
  std::vector<Ready> ready_;
  Counters counters_;
};

}  // namespace evergrad::transport
