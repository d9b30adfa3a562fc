#include "common/transport/session/server_session.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"
#include "common/base/status.h"
#include "common/transport/frames/message_reader.h"
#include "common/transport/status_detail.h"

namespace evergrad::transport {

using wire::MessageKind;

ServerSession::ServerSession(Options options, std::uint64_t stream, const std::string& peer_name,
                             std::shared_ptr<Budget> budget, std::shared_ptr<BufferPool> pool)
    : options_(std::move(options)),
      stream_(stream),
      budget_(std::move(budget)),
      peer_(budget_->Join(peer_name)),
      pool_(std::move(pool)),
      outbox_(options_.message_bytes_max),
      liveness_(options_.progress_timeout),
      grants_({options_.grant_unused_max, options_.grant_idle_max, options_.unused_in_a_row_max},
              *budget_, peer_) {
  outbox_.AddControl({.kind = MessageKind::kHello,
                      .frame_bytes = options_.frame_bytes_max,
                      .offset = options_.take_lane == nullptr ? 0 : options_.lane_ring_bytes_max,
                      .response_bytes_max = budget_->options().peer_small_bytes_max});
}

ServerSession::~ServerSession() {
  grants_.OnEnd();
  budget_->Leave(peer_, stream_);
}

ServerSession::Request& ServerSession::Add(const wire::StreamHeader& header, MonoTime now) {
  if (requests_.empty()) liveness_.OnWork(now);
  Request& request = requests_[header.request_id];
  request.request_bytes_max = header.frame_bytes;
  request.response_bytes_max = header.response_bytes_max;
  request.frame = Reassembly(header.frame_bytes, pool_.get());
  return request;
}

void ServerSession::Forget(RequestMap::iterator it) {
  grants_.Remove(it->first, it->second.grant);
  requests_.erase(it);
}

void ServerSession::Refuse(std::uint64_t id, const absl::Status& status) {
  ++counters_.refused;
  outbox_.AddControl({.kind = MessageKind::kError, .request_id = id}, EncodeStatus(status));
}

bool ServerSession::RefuseAsTooMany(std::uint64_t id) {
  if (requests_.size() < options_.requests_max) return false;
  Refuse(id, absl::ResourceExhaustedError(
                 absl::StrCat("too many requests of one peer: max=", options_.requests_max)));
  return true;
}

absl::Status ServerSession::OnMessage(MessageView messages, MonoTime now) {
  liveness_.OnReceived(now);
  return lane_.Receive(messages, outbox_,
                       [&](const wire::StreamHeader& header, MessageView payload) {
                         absl::Status status = OnOne(header, payload, now);
                         if (status.ok() && header.in_lane())
                           counters_.lane_received += header.bytes;
                         return status;
                       });
}

absl::Status ServerSession::OnOne(const wire::StreamHeader& header, MessageView payload,
                                  MonoTime now) {
  if (outbox_.size() > 2 * options_.requests_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("peer does not read its answers: unsent=", outbox_.size()));
  }
  switch (header.kind) {
    case MessageKind::kAnnounce: return OnAnnounce(header, now);
    case MessageKind::kRequest: return OnPiece(header, payload, now);
    case MessageKind::kCancel: OnCancel(header.request_id, now); return absl::OkStatus();
    case MessageKind::kPing:
      if (!std::exchange(pong_queued_, true)) outbox_.AddControl({.kind = MessageKind::kPong});
      return absl::OkStatus();
    case MessageKind::kPong: return absl::OkStatus();
    case MessageKind::kLane: return lane_.OnOffer(header, payload, options_.take_lane, outbox_);
    case MessageKind::kRingSpace: return absl::OkStatus();  // NextMessage checks for space itself.
    case MessageKind::kHello:
    case MessageKind::kGrant:
    case MessageKind::kAnswer:
    case MessageKind::kError: break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a client does not send ", wire::MessageKindName(header.kind)));
}

absl::Status ServerSession::OnAnnounce(const wire::StreamHeader& header, MonoTime now) {
  const std::uint64_t id = header.request_id;
  if (requests_.contains(id) || dropping_.contains(id))
    return absl::InvalidArgumentError(absl::StrCat("duplicate request id: request=", id));
  if (header.frame_bytes > options_.frame_bytes_max ||
      header.response_bytes_max > options_.frame_bytes_max) {
    ++counters_.frame_refused;
    Refuse(id, absl::InvalidArgumentError(absl::StrCat(
                   "the frame is too large: request_bytes=", header.frame_bytes, " response_bytes=",
                   header.response_bytes_max, " max=", options_.frame_bytes_max)));
    return absl::OkStatus();
  }
  if (RefuseAsTooMany(id)) return absl::OkStatus();
  const std::uint64_t bytes =
      // Both numbers are at most frame_bytes_max, so the sum does not overflow.
      header.frame_bytes + header.response_bytes_max;
  budget_->Advance(now);
  switch (budget_->AskLarge(peer_, stream_, id, bytes)) {
    case CreditCore::Answer::kGranted:
      Add(header, now);
      Grant(requests_.find(id), now);
      break;
    case CreditCore::Answer::kWaiting:
      Add(header, now);
      if (waiting_++ == 0) advance_at_ = now + options_.grant_idle_max;
      break;
    case CreditCore::Answer::kOverBudget:
      // OutOfRange is not retryable: the request can never fit.
      ++counters_.budget_refused;
      Refuse(id, absl::OutOfRangeError(
                     absl::StrCat("the request is larger than the budget: bytes=", bytes,
                                  " budget_bytes_max=", budget_->options().budget_bytes_max)));
      break;
    case CreditCore::Answer::kFull:
      ++counters_.budget_refused;
      Refuse(id, absl::ResourceExhaustedError(
                     "too many announcements are waiting, from this peer or from all peers"));
      break;
  }
  return absl::OkStatus();
}

void ServerSession::Grant(RequestMap::iterator it, MonoTime now) {
  Request& request = it->second;
  ++counters_.granted;
  request.request_token = budget_->MakeToken(peer_, request.request_bytes_max, /*small=*/false);
  request.response_token = budget_->MakeToken(peer_, request.response_bytes_max, /*small=*/false);
  request.phase = Phase::kGranted;
  grants_.OnGranted(it->first, &request.grant, now);
  outbox_.AddControl({.kind = MessageKind::kGrant,
                      .request_id = it->first,
                      .frame_bytes = request.request_bytes_max,
                      .response_bytes_max = request.response_bytes_max});
}

void ServerSession::OnAdmitted(std::uint64_t id, std::uint64_t bytes, MonoTime now) {
  const auto it = requests_.find(id);
  if (it == requests_.end() || it->second.phase != Phase::kWaiting) {
    budget_->MakeToken(peer_, bytes, /*small=*/false);  // destroyed at once, which frees `bytes`
    return;
  }
  --waiting_;
  Grant(it, now);
}

absl::Status ServerSession::AddSmall(const wire::StreamHeader& header, MonoTime now) {
  const std::uint64_t id = header.request_id;
  const auto bytes = CheckedAdd(header.frame_bytes, header.response_bytes_max);
  if (!bytes || *bytes > wire::kUngrantedBytesMax || header.bytes != header.frame_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("payload without a grant: request=", id, " frame_bytes=", header.frame_bytes,
                     " response_bytes_max=", header.response_bytes_max));
  }
  if (RefuseAsTooMany(id)) return absl::OkStatus();
  if (!budget_->TakeSmall(peer_, *bytes)) {
    ++(budget_->levels().small_used + *bytes > budget_->options().small_reserve_bytes_max
           ? counters_.small_refused
           : counters_.peer_small_refused);
    Refuse(id, absl::ResourceExhaustedError(absl::StrCat(
                   "small requests exceed the memory reserved for them: peer_small_bytes_max=",
                   budget_->options().peer_small_bytes_max)));
    return absl::OkStatus();
  }
  Request& request = Add(header, now);
  request.request_token = budget_->MakeToken(peer_, header.frame_bytes, /*small=*/true);
  request.response_token = budget_->MakeToken(peer_, header.response_bytes_max, /*small=*/true);
  return absl::OkStatus();
}

absl::Status ServerSession::OnPiece(const wire::StreamHeader& header, MessageView payload,
                                    MonoTime now) {
  const std::uint64_t id = header.request_id;
  auto it = requests_.find(id);
  const bool small = it == requests_.end();
  if (small) {
    if (dropping_.contains(id)) return absl::OkStatus();
    EG_RETURN_IF_ERROR(AddSmall(header, now));
    if (it = requests_.find(id); it == requests_.end()) return absl::OkStatus();  // refused
  } else if (it->second.phase != Phase::kGranted && it->second.phase != Phase::kReceiving) {
    return absl::InvalidArgumentError(
        absl::StrCat("payload without a grant: request=", id, " offset=", header.offset));
  }
  Request& request = it->second;
  if (header.response_bytes_max > request.response_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("the answer would exceed its grant: request=", id, " response_bytes_max=",
                     header.response_bytes_max, " granted=", request.response_bytes_max));
  }
  if (auto status = request.frame.Add(header, payload); !status.ok()) return status;
  if (!request.frame.complete()) {
    if (request.phase == Phase::kGranted)
      request.request_token->Shrink(request.frame.frame_bytes());
    request.phase = Phase::kReceiving;
    grants_.OnPiece(id, &request.grant, now);
    return absl::OkStatus();
  }
  request.request_token->Shrink(request.frame.frame_bytes());
  if (!small) grants_.OnComplete(id, request.grant, request.frame.frame_bytes(), now);
  request.phase = Phase::kHandling;
  ready_.push_back({id, {request.frame.Take(), std::move(request.request_token)}});
  return absl::OkStatus();
}

void ServerSession::OnCancel(std::uint64_t id, MonoTime now) {
  dropping_.erase(id);
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  const bool waiting = it->second.phase == Phase::kWaiting;
  if (it->second.phase == Phase::kGranted) grants_.OnReturned(it->second.grant, now);
  outbox_.Drop(id);
  Forget(it);
  if (!waiting) return;
  --waiting_;
  budget_->Withdraw(peer_, stream_, id);
}

void ServerSession::Answer(std::uint64_t id, Frame response, MonoTime now) {
  const auto it = requests_.find(id);
  if (it == requests_.end() || it->second.phase != Phase::kHandling) return;
  const std::uint64_t bytes = response.size();
  const std::uint64_t max = std::min(it->second.response_bytes_max + wire::kAnswerHeaderBytesMax,
                                     options_.frame_bytes_max + wire::kAnswerHeaderBytesMax);
  if (bytes > max) {
    Fail(id, absl::InternalError(
                 absl::StrCat("answer larger than announced: bytes=", bytes, " max=", max)));
    return;
  }
  it->second.phase = Phase::kAnswering;
  liveness_.OnWork(now);
  outbox_.AddFrame(MessageKind::kAnswer, id, 0, std::move(response));
}

void ServerSession::Fail(std::uint64_t id, const absl::Status& status) {
  const auto it = requests_.find(id);
  if (it == requests_.end() || it->second.phase != Phase::kHandling) return;
  Forget(it);
  const auto error = status.ok() ? absl::InternalError("request failed with an OK status") : status;
  outbox_.AddControl({.kind = MessageKind::kError, .request_id = id}, EncodeStatus(error));
}

std::optional<Outbox::Message> ServerSession::NextMessage() {
  auto message = lane_.Next(outbox_);
  if (!message) return message;
  writing_ = true;
  if (message->header.kind == MessageKind::kAnswer && message->last)
    answers_sent_.push_back(message->header.request_id);
  if (message->header.kind == MessageKind::kPong) pong_queued_ = false;
  return message;
}

void ServerSession::OnSent(MonoTime now) {
  liveness_.OnSent(now);
  writing_ = false;
  writing_since_.reset();
  for (const std::uint64_t id : answers_sent_) {
    if (const auto it = requests_.find(id); it != requests_.end()) Forget(it);
  }
  answers_sent_.clear();
}

void ServerSession::TakeBack(std::uint64_t id) {
  const auto it = requests_.find(id);
  ++counters_.taken_back;
  counters_.taken_back_bytes += it->second.request_bytes_max + it->second.response_bytes_max;
  Forget(it);
  dropping_.insert(id);
  Refuse(id, absl::AbortedError("the memory granted for the request was not used in time"));
}

absl::Status ServerSession::Tick(MonoTime now) {
  budget_->Advance(now);
  if (advance_at_ <= now) advance_at_ = now + options_.grant_idle_max;
  EG_RETURN_IF_ERROR(grants_.Tick(now, [this](std::uint64_t id) { TakeBack(id); }));
  if (dropping_.size() > options_.requests_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "peer does not confirm that its requests have ended: requests=", dropping_.size()));
  }
  if (requests_.empty()) return absl::OkStatus();
  if (writing_ && !writing_since_) writing_since_ = now;
  if (writing_since_ && *writing_since_ + options_.grant_unused_max <= now)
    return absl::UnavailableError("peer reads none of the data sent to it");
  return liveness_.Tick(now, &outbox_);
}

std::optional<MonoTime> ServerSession::NextTick() const {
  if (requests_.empty()) return std::nullopt;
  MonoTime next = liveness_.Due();
  if (waiting_ > 0) next = std::min(next, advance_at_);
  if (!grants_.empty()) next = std::min(next, grants_.Due());
  return next;
}

}  // namespace evergrad::transport
