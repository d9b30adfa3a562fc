// The client's half of a data stream as a pure state machine: calls and link events in; messages,
// finished calls and the time of the next tick out. No clock, no threads, no I/O. Not thread-safe:
// the DataStream drives it on its loop.
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
    // Memory to offer to the server, its rings at most so large; null: no lane is wanted.
    std::function<absl::StatusOr<OfferedLane>(std::uint64_t ring_bytes_max)> offer_lane = nullptr;
    std::function<void(const absl::Status&)> on_lane = nullptr;  // What came of it.
  };
  // Answers are received into memory of `pool` (null: the heap).
  explicit ClientSession(Options options, std::shared_ptr<BufferPool> pool = nullptr);

  struct Finished {
    DataDone done;
    absl::StatusOr<ReceivedFrame> result;
  };

  // `id` is fresh, or for Call the one that was announced. A call that cannot be made is in
  // TakeFinished at once.
  void Announce(std::uint64_t id, std::uint64_t request_bytes, const DataOptions& options,
                MonoTime now);
  void Abandon(std::uint64_t id);  // of an announcement whose Call will not come; nothing once it
                                   // has been called or has ended
  void Call(std::uint64_t id, Frame request, const DataOptions& options, DataDone done,
            MonoTime now);

  // The link has ended (or could not be made): every call ends with `why`, and so do later ones
  // until the next HELLO. Before the first link has come up or gone down, calls are held.
  void OnLinkDown(const absl::Status& why, MonoTime now);
  // One message or several. Not OK: the server breaks the protocol, the link is to be cancelled.
  absl::Status OnMessage(MessageView messages, MonoTime now);
  // The next message to send; those before it have been reported by OnSent or leave together with
  // it. nullopt: nothing to send now, or lane_status() says why nothing can be.
  std::optional<Outbox::Message> NextMessage();
  const absl::Status& lane_status() const { return lane_.status(); }  // Not OK: as of OnMessage.
  void OnSent(MonoTime now);

  // Ends calls of which nothing has moved for their deadline. Not OK: the watchdog gives the link
  // up.
  absl::Status Tick(MonoTime now);
  std::optional<MonoTime> NextTick() const;

  std::vector<Finished> TakeFinished() { return std::exchange(finished_, {}); }
  // Every call ends with Cancelled.
  void Close();

  bool up() const { return state_ == State::kUp; }
  std::size_t outstanding() const { return pending_.size(); }

 private:
  enum class State { kFirst, kUp, kDown };
  enum class Phase { kHeld, kAnnounced, kGranted, kSending, kSent };
  struct Pending {
    Phase phase = Phase::kHeld;
    bool called = false;  // False: announced only.
    std::uint64_t request_bytes_max = 0;
    std::uint64_t response_bytes_max = 0;
    std::uint64_t small_charge = 0;  // Of the peer's share of the small reserve, while outstanding.
    Frame request;
    DataDone done;
    MonoTime patience{0};  // DataOptions::deadline
    MonoTime moved_at{
        0};  // when it was made, was granted, or a part of it was last sent or received
    MonoTime check_at = MonoTime::max();  // its place in `checks_`, once it has one; may be earlier
                                          // than DueAt, never later
    Reassembly answer;
  };
  using PendingMap = std::map<std::uint64_t, Pending>;

  absl::Status CheckCall(std::uint64_t request_bytes, const DataOptions& options) const;
  Pending& Add(std::uint64_t id, std::uint64_t request_bytes, const DataOptions& options,
               MonoTime now);
  // When it ends if nothing moves before.
  MonoTime DueAt(const Pending& pending) const;
  // It was called, or granted: its patience begins anew, and may be shorter than what it was looked
  // at for.
  void BeginPatience(std::uint64_t id, Pending& pending, MonoTime now);
  void CheckAt(std::uint64_t id, Pending& pending, MonoTime at);
  // Sends what can be sent of it now.
  void Advance(std::uint64_t id, Pending& pending);
  void SendRequest(std::uint64_t id, Pending& pending);
  // Ends it on our side; `tell` sends CANCEL so that the server forgets it too.
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
  std::optional<OfferedLane> offered_;  // Until the server has said what it makes of it.
  Liveness liveness_;
  bool pong_queued_ = false;  // One PONG answers all PINGs before it.
  PendingMap pending_;
  std::set<std::pair<MonoTime, std::uint64_t>> checks_;  // when to look whether a call is due
  std::vector<std::uint64_t> sent_;  // calls of which NextMessage has given parts since OnSent
  std::vector<Finished> finished_;
};

}  // namespace evergrad::transport
