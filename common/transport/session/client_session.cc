#include "common/transport/session/client_session.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/transport/frames/message_reader.h"
#include "common/transport/status_detail.h"

namespace evergrad::transport {

using wire::MessageKind;

namespace {

// A call waits for its grant up to this multiple of its deadline. While it waits, the server is
// alive (otherwise the watchdog would end the stream) and serves other clients first.
constexpr int kGrantPatience = 6;

}  // namespace

ClientSession::ClientSession(Options options, std::shared_ptr<BufferPool> pool)
    : options_(std::move(options)),
      pool_(std::move(pool)),
      outbox_(options_.message_bytes_max),
      liveness_(options_.progress_timeout) {}

absl::Status ClientSession::CheckCall(std::uint64_t request_bytes,
                                      const DataOptions& options) const {
  const std::uint64_t max = state_ == State::kUp
                                ? std::min(options_.frame_bytes_max, peer_frame_bytes_max_)
                                : options_.frame_bytes_max;
  if (request_bytes > max)
    return absl::InvalidArgumentError(
        absl::StrCat("the request is too large: bytes=", request_bytes, " max=", max));
  if (options.response_bytes_max > options_.frame_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("the answer is too large: response_bytes_max=", options.response_bytes_max,
                     " max=", options_.frame_bytes_max));
  }
  if (pending_.size() >= options_.inflight_calls_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("too many calls in flight: max=", options_.inflight_calls_max));
  }
  return absl::OkStatus();
}

ClientSession::Pending& ClientSession::Add(std::uint64_t id, std::uint64_t request_bytes,
                                           const DataOptions& options, MonoTime now) {
  if (pending_.empty()) liveness_.OnWork(now);
  Pending& pending = pending_[id];
  pending.request_bytes_max = request_bytes;
  pending.response_bytes_max = options.response_bytes_max;
  pending.patience = options.deadline;
  pending.answer =
      Reassembly(options.response_bytes_max + wire::kAnswerHeaderBytesMax, pool_.get());
  BeginPatience(id, pending, now);
  return pending;
}

MonoTime ClientSession::DueAt(const Pending& pending) const {
  const bool waits_for_grant = state_ == State::kUp && pending.phase == Phase::kAnnounced;
  return pending.moved_at + pending.patience * (waits_for_grant ? kGrantPatience : 1);
}

void ClientSession::BeginPatience(std::uint64_t id, Pending& pending, MonoTime now) {
  pending.moved_at = now;
  if (const MonoTime due = DueAt(pending); due < pending.check_at) CheckAt(id, pending, due);
}

void ClientSession::CheckAt(std::uint64_t id, Pending& pending, MonoTime at) {
  checks_.erase({pending.check_at, id});
  pending.check_at = at;
  checks_.emplace(at, id);
}

void ClientSession::Announce(std::uint64_t id, std::uint64_t request_bytes,
                             const DataOptions& options, MonoTime now) {
  // A small call needs no announcement. If an announcement is impossible now, the later Call is
  // refused and reports the error to its caller.
  if (state_ == State::kDown || !CheckCall(request_bytes, options).ok()) return;
  if (request_bytes + options.response_bytes_max <= wire::kUngrantedBytesMax) return;
  Advance(id, Add(id, request_bytes, options, now));
}

void ClientSession::Abandon(std::uint64_t id) {
  const auto it = pending_.find(id);
  if (it != pending_.end() && !it->second.called)
    Finish(it, absl::CancelledError("data ticket abandoned"), /*tell=*/up());
}

void ClientSession::Call(std::uint64_t id, Frame request, const DataOptions& options, DataDone done,
                         MonoTime now) {
  const std::uint64_t bytes = request.size();
  auto it = pending_.find(id);
  if (it != pending_.end()) {
    Pending& pending = it->second;
    absl::Status refused;
    if (pending.called) {
      refused = absl::InvalidArgumentError(absl::StrCat("duplicate use of a ticket: ticket=", id));
    } else if (bytes > pending.request_bytes_max ||
               options.response_bytes_max > pending.response_bytes_max) {
      refused = absl::InvalidArgumentError(
          absl::StrCat("a call is larger than announced: bytes=", bytes, " announced_bytes=",
                       pending.request_bytes_max, " response_bytes=", options.response_bytes_max,
                       " announced_response_bytes=", pending.response_bytes_max));
    }
    if (!refused.ok()) {
      finished_.push_back({std::move(done), std::move(refused)});
      return;
    }
    pending.patience = options.deadline;
    BeginPatience(id, pending, now);
  } else {
    absl::Status refused = state_ == State::kDown ? OwnCopy(down_) : CheckCall(bytes, options);
    if (!refused.ok()) {
      finished_.push_back({std::move(done), std::move(refused)});
      return;
    }
    Add(id, bytes, options, now);
    it = pending_.find(id);
  }
  Pending& pending = it->second;
  pending.called = true;
  pending.request = std::move(request);
  pending.done = std::move(done);
  Advance(id, pending);
}

void ClientSession::Advance(std::uint64_t id, Pending& pending) {
  if (state_ != State::kUp) return;
  if (pending.phase == Phase::kHeld) {
    const std::uint64_t bytes = pending.request_bytes_max + pending.response_bytes_max;
    if (pending.called && bytes <= wire::kUngrantedBytesMax && bytes <= small_max_ &&
        small_used_ <= small_max_ - bytes) {
      pending.small_charge = bytes;
      small_used_ += bytes;
      SendRequest(id, pending);
      return;
    }
    pending.phase = Phase::kAnnounced;
    outbox_.AddControl({.kind = MessageKind::kAnnounce,
                        .request_id = id,
                        .frame_bytes = pending.request_bytes_max,
                        .response_bytes_max = pending.response_bytes_max});
  } else if (pending.phase == Phase::kGranted && pending.called) {
    SendRequest(id, pending);
  }
}

void ClientSession::SendRequest(std::uint64_t id, Pending& pending) {
  pending.phase = Phase::kSending;
  outbox_.AddFrame(MessageKind::kRequest, id, pending.response_bytes_max,
                   std::move(pending.request));
  pending.request = {};
}

void ClientSession::Finish(PendingMap::iterator it, absl::StatusOr<ReceivedFrame> result,
                           bool tell) {
  auto node = pending_.extract(it);
  Pending& pending = node.mapped();
  checks_.erase({pending.check_at, node.key()});
  small_used_ -= pending.small_charge;
  outbox_.Drop(node.key());
  if (tell && pending.phase != Phase::kHeld)
    outbox_.AddControl({.kind = MessageKind::kCancel, .request_id = node.key()});
  if (pending.done) finished_.push_back({std::move(pending.done), std::move(result)});
}

void ClientSession::OnLinkDown(const absl::Status& why, MonoTime) {
  state_ = State::kDown;
  down_ = why;
  outbox_.Clear();
  pong_queued_ = false;
  sent_.clear();
  offered_.reset();
  lane_.Close();
  while (!pending_.empty()) Finish(pending_.begin(), OwnCopy(why), /*tell=*/false);
}

absl::Status ClientSession::OnMessage(MessageView messages, MonoTime now) {
  liveness_.OnReceived(now);
  return lane_.Receive(messages, outbox_,
                       [&](const wire::StreamHeader& header, MessageView payload) {
                         return OnOne(header, payload, now);
                       });
}

absl::Status ClientSession::OnOne(const wire::StreamHeader& header, MessageView payload,
                                  MonoTime now) {
  if ((header.kind == MessageKind::kHello) == up()) {
    return absl::InvalidArgumentError(absl::StrCat("only the first message must be HELLO: kind=",
                                                   wire::MessageKindName(header.kind)));
  }
  switch (header.kind) {
    case MessageKind::kHello:
      state_ = State::kUp;
      liveness_.OnWork(now);
      peer_frame_bytes_max_ = header.frame_bytes;
      // Uses half of the limit, because the server counts a request until after its answer arrives.
      small_max_ = header.response_bytes_max / 2;
      OfferLane(header.offset);
      for (auto& [id, pending] : pending_) Advance(id, pending);
      return absl::OkStatus();
    case MessageKind::kGrant: {
      const auto it = pending_.find(header.request_id);
      if (it == pending_.end()) return absl::OkStatus();  // the GRANT crossed this client's CANCEL
      if (it->second.phase != Phase::kAnnounced)
        return absl::InvalidArgumentError(
            absl::StrCat("grant of a request that was not announced: request=", header.request_id));
      it->second.phase = Phase::kGranted;
      BeginPatience(it->first, it->second, now);
      Advance(it->first, it->second);
      return absl::OkStatus();
    }
    case MessageKind::kAnswer: return OnAnswer(header, payload, now);
    case MessageKind::kError: OnError(header, payload); return absl::OkStatus();
    case MessageKind::kPing:
      if (!std::exchange(pong_queued_, true)) outbox_.AddControl({.kind = MessageKind::kPong});
      return absl::OkStatus();
    case MessageKind::kPong: return absl::OkStatus();
    case MessageKind::kLane: return OnLane(header, payload);
    case MessageKind::kRingSpace: return absl::OkStatus();  // NextMessage checks for space itself.
    case MessageKind::kAnnounce:
    case MessageKind::kRequest:
    case MessageKind::kCancel: break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a server does not send ", wire::MessageKindName(header.kind)));
}

void ClientSession::OfferLane(std::uint64_t ring_bytes_max) {
  if (options_.offer_lane == nullptr) return;
  auto offered = ring_bytes_max < kLaneRingUnit
                     ? absl::FailedPreconditionError("the server accepts no lane")
                     : options_.offer_lane(ring_bytes_max);
  if (!offered.ok()) {
    if (options_.on_lane) options_.on_lane(offered.status());
    return;
  }
  offered_ = *std::move(offered);
  const auto bytes = wire::EncodeLaneOffer(offered_->offer);
  outbox_.AddControl({.kind = MessageKind::kLane},
                     std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

absl::Status ClientSession::OnLane(const wire::StreamHeader& header, MessageView payload) {
  if (!offered_) return absl::InvalidArgumentError("answer to a lane that was not offered");
  absl::Status status;
  if (header.bytes > 0) {
    std::string why(header.bytes, '\0');
    CopyPayload(payload, reinterpret_cast<std::byte*>(why.data()));
    status = absl::FailedPreconditionError(CleanText(why, 256));
  } else {
    lane_.Open(std::move(offered_->lane));
  }
  offered_.reset();
  if (options_.on_lane) options_.on_lane(status);
  return absl::OkStatus();
}

absl::Status ClientSession::OnAnswer(const wire::StreamHeader& header, MessageView payload,
                                     MonoTime now) {
  const auto it = pending_.find(header.request_id);
  if (it == pending_.end()) return absl::OkStatus();  // the answer crossed this client's CANCEL
  Pending& pending = it->second;
  if (pending.phase != Phase::kSent)
    return absl::InvalidArgumentError(
        absl::StrCat("answer before the request was sent: request=", header.request_id));
  if (auto status = pending.answer.Add(header, payload); !status.ok()) return status;
  pending.moved_at = now;
  if (pending.answer.complete()) {
    ReceivedFrame frame{pending.answer.Take(), nullptr};
    Finish(it, std::move(frame), /*tell=*/false);
  }
  return absl::OkStatus();
}

void ClientSession::OnError(const wire::StreamHeader& header, MessageView payload) {
  const auto it = pending_.find(header.request_id);
  if (it == pending_.end()) return;
  std::string detail(header.bytes, '\0');
  CopyPayload(payload, reinterpret_cast<std::byte*>(detail.data()));
  // The client sends CANCEL after an ERROR, too. Pieces of the request may be in flight, and the
  // server drops them until it receives the CANCEL.
  Finish(it, DecodeStatus(detail), /*tell=*/true);
}

std::optional<Outbox::Message> ClientSession::NextMessage() {
  auto message = lane_.Next(outbox_);
  if (message && message->header.kind == MessageKind::kPong) pong_queued_ = false;
  if (!message || message->header.kind != MessageKind::kRequest) return message;
  const std::uint64_t id = message->header.request_id;
  if (sent_.empty() || sent_.back() != id) sent_.push_back(id);
  if (message->last) {
    if (const auto it = pending_.find(id); it != pending_.end()) it->second.phase = Phase::kSent;
  }
  return message;
}

void ClientSession::OnSent(MonoTime now) {
  liveness_.OnSent(now);
  for (const std::uint64_t id : sent_) {
    if (const auto it = pending_.find(id); it != pending_.end()) it->second.moved_at = now;
  }
  sent_.clear();
}

absl::Status ClientSession::Tick(MonoTime now) {
  while (!checks_.empty() && checks_.begin()->first <= now) {
    const auto it = pending_.find(checks_.begin()->second);
    Pending& pending = it->second;
    if (const MonoTime due = DueAt(pending); due > now) {
      CheckAt(it->first, pending, due);
    } else if (!up()) {
      Finish(it, absl::UnavailableError("no connection before the deadline of the data call"),
             /*tell=*/false);
    } else {
      Finish(it,
             absl::DeadlineExceededError(pending.called ? "the data call made no progress in time"
                                                        : "the data ticket has expired"),
             /*tell=*/true);
    }
  }
  if (!up() || pending_.empty()) return absl::OkStatus();
  return liveness_.Tick(now, &outbox_);
}

std::optional<MonoTime> ClientSession::NextTick() const {
  if (pending_.empty()) return std::nullopt;
  const MonoTime check = checks_.begin()->first;
  return up() ? std::min(check, liveness_.Due()) : check;
}

void ClientSession::Close() { OnLinkDown(absl::CancelledError("data stream closed"), MonoTime{0}); }

}  // namespace evergrad::transport
