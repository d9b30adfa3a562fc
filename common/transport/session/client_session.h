// The client's half of a data stream, as a pure state machine. Its inputs are the caller's calls
// and the events of the link. Its outputs are messages to the server, finished calls, and the time
// of the next tick. The session has no clock, no threads and no I/O. Not thread-safe: the
// DataStream drives the session on its loop.
//
//   held -> (announced -> granted ->) sending -> sent -> finished
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
#include "common/transport/lane/lane_memory.h"
#include "common/transport/session/liveness.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

class ClientSession {
 public:
  struct Options {
    std::uint64_t frame_bytes_max = 1ull << 30;
    std::uint64_t inflight_calls_max = 4096;
    std::uint64_t message_bytes_max = 512u << 10;
    MonoTime progress_timeout = std::chrono::seconds(5);
    // Makes the lane that is offered, with rings up to ring_bytes_max; nullptr to offer no lane.
    std::function<absl::StatusOr<OfferedLane>(std::uint64_t ring_bytes_max)> offer_lane = nullptr;
    std::function<void(const absl::Status&)> on_lane = nullptr;  // receives the result of the offer
  };
  // Answers are received into memory of `pool`, or of the heap if it is nullptr.
  explicit ClientSession(Options options, std::shared_ptr<BufferPool> pool = nullptr);

  struct Finished {
    DataDone done;
    absl::StatusOr<ReceivedFrame> result;
  };

  // `id` must be new, but for Call it may also be the id of the call's announcement. A call that
  // cannot be made appears in TakeFinished at once.
  void Announce(std::uint64_t id, std::uint64_t request_bytes, const DataOptions& options,
                MonoTime now);
  // Withdraws an announcement whose Call will not follow. Has no effect after a Call of `id`.
  void Abandon(std::uint64_t id);
  void Call(std::uint64_t id, Frame request, const DataOptions& options, DataDone done,
            MonoTime now);

  // The link has ended, or could not be opened. Every call ends with `why`, and so do later calls
  // until the next HELLO. Before the first link has come up or has failed, calls are held.
  void OnLinkDown(const absl::Status& why, MonoTime now);
  // Processes one or more messages. An error means that the server violates the protocol; the
  // caller cancels the link.
  absl::Status OnMessage(MessageView messages, MonoTime now);
  // Returns the next message to send, or nullopt if there is none now or lane_status() has an
  // error. The caller has reported earlier messages by OnSent, or sends them together with this
  // message.
  std::optional<Outbox::Message> NextMessage();
  // An error of lane_status has the same meaning as an error of OnMessage.
  const absl::Status& lane_status() const { return lane_.status(); }
  void OnSent(MonoTime now);

  // Ends calls that made no progress within their deadline. An error means that the link must end.
  absl::Status Tick(MonoTime now);
  std::optional<MonoTime> NextTick() const;

  std::vector<Finished> TakeFinished() { return std::exchange(finished_, {}); }
  // Ends every call with Cancelled.
  void Close();

  bool up() const { return state_ == State::kUp; }
  std::size_t outstanding() const { return pending_.size(); }

 private:
  enum class State { kFirst, kUp, kDown };
  enum class Phase { kHeld, kAnnounced, kGranted, kSending, kSent };
  struct Pending {
    Phase phase = Phase::kHeld;
    bool called = false;  // false if only announced
    std::uint64_t request_bytes_max = 0;
    std::uint64_t response_bytes_max = 0;
    // Bytes charged to the peer's share of the small reserve while the call is outstanding.
    std::uint64_t small_charge = 0;
    Frame request;
    DataDone done;
    MonoTime patience{0};  // DataOptions::deadline
    MonoTime moved_at{0};  // time of the call, of its grant, or of the last byte sent or received
    // The time of the call's entry in `checks_`, if it has one; never later than DueAt.
    MonoTime check_at = MonoTime::max();
    Reassembly answer;
  };
  using PendingMap = std::map<std::uint64_t, Pending>;

  absl::Status CheckCall(std::uint64_t request_bytes, const DataOptions& options) const;
  Pending& Add(std::uint64_t id, std::uint64_t request_bytes, const DataOptions& options,
               MonoTime now);
  // Returns the time at which the call ends if it makes no progress.
  MonoTime DueAt(const Pending& pending) const;
  // Restarts the time limit of a call that was made or granted. The call may then be due earlier.
  void BeginPatience(std::uint64_t id, Pending& pending, MonoTime now);
  void CheckAt(std::uint64_t id, Pending& pending, MonoTime at);
  // Puts those parts of the call that can be sent now into the outbox.
  void Advance(std::uint64_t id, Pending& pending);
  void SendRequest(std::uint64_t id, Pending& pending);
  // Ends the call on this side. With `tell`, sends CANCEL, so that the server drops the call, too.
  void Finish(PendingMap::iterator it, absl::StatusOr<ReceivedFrame> result, bool tell);
  absl::Status OnOne(const wire::StreamHeader& header, MessageView payload, MonoTime now);
  absl::Status OnAnswer(const wire::StreamHeader& header, MessageView payload, MonoTime now);
  void OnError(const wire::StreamHeader& header, MessageView payload);
  void OfferLane(std::uint64_t ring_bytes_max);
  absl::Status OnLane(const wire::StreamHeader& header, MessageView payload);

  const Options options_;
  const std::shared_ptr<BufferPool> pool_;  // Shared by the streams of a transport.
  State state_ = State::kFirst;
  absl::Status down_ = absl::UnavailableError("data stream is down");
  std::uint64_t peer_frame_bytes_max_ = 0;
  std::uint64_t small_max_ = 0;
  std::uint64_t small_used_ = 0;
  Outbox outbox_;
  LanePort lane_;
  std::optional<OfferedLane> offered_;  // kept until the server has answered the offer
  Liveness liveness_;
  bool pong_queued_ = false;  // One PONG answers all earlier PINGs.
  PendingMap pending_;
  std::set<std::pair<MonoTime, std::uint64_t>> checks_;  // times to check whether a call is due
  std::vector<std::uint64_t> sent_;  // calls with parts returned by NextMessage since OnSent
  std::vector<Finished> finished_;
};

}  // namespace evergrad::transport
