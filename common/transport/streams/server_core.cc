#include "common/transport/streams/server_core.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/base/text.h"
#include "common/transport/health_protocol.h"
#include "common/transport/lane/lane_memory.h"
#include "common/transport/session/server_session.h"
#include "common/transport/status_detail.h"

namespace evergrad::transport {

using namespace std::chrono_literals;

namespace {

constexpr std::chrono::milliseconds kReorderMax = 50ms;

// Answers a call of the gRPC health protocol. Without `health` (in tests) the process is live and
// ready.
absl::StatusOr<std::string> AnswerHealth(const std::string& request, const health::Health* health) {
  EG_ASSIGN_OR_RETURN(const std::string service, ParseHealthRequest(request));
  const std::optional<health::Question> question = health::QuestionOf(service);
  if (!question)
    return absl::NotFoundError(
        absl::StrCat("unknown service: ", CleanText(service, kHealthServiceBytesMax)));
  return HealthResponse(health == nullptr || health->Ask(*question).ok);
}

// Returns the name of the peer that shares the budget: the task that the certificate names. Without
// such a task, the name is the client's host with the unproved name that the client has chosen.
std::string SharerOf(const PeerInfo& peer) {
  if (absl::StrContains(peer.certificate_task, '/')) return peer.certificate_task;
  const absl::string_view address = peer.address;
  const std::size_t colon = address.rfind(':');
  const absl::string_view host =
      absl::StartsWith(address, "ipv") && colon != absl::string_view::npos
          ? address.substr(0, colon)
          : address;
  return peer.client_name.empty() ? std::string(host)
                                  : absl::StrCat(peer.client_name, " at ", host);
}

class PostedUnaryResponder final : public UnaryResponder {
 public:
  PostedUnaryResponder(std::shared_ptr<Loop> loop, ServerCore::UnaryAnswer answer)
      : loop_(std::move(loop)), answer_(std::move(answer)) {}
  ~PostedUnaryResponder() override {
    if (answer_) Answer(absl::InternalError("call dropped without an answer"));
  }
  void Answer(absl::StatusOr<std::string> response) override {
    if (!answer_) return;
    if (!response.ok()) response = OwnCopy(response.status());
    loop_->Post([answer = std::exchange(answer_, nullptr),
                 response = std::move(response)]() mutable { answer(std::move(response)); });
  }

 private:
  const std::shared_ptr<Loop> loop_;
  ServerCore::UnaryAnswer answer_;
};

}  // namespace

// Drives the ServerSession of one data stream.
class ServerCore::DataPeer final : public LinkEvents,
                                   public std::enable_shared_from_this<DataPeer> {
 public:
  DataPeer(std::shared_ptr<ServerCore> server, std::uint64_t id, std::shared_ptr<Link> link,
           PeerInfo peer)
      : server_(std::move(server)),
        id_(id),
        link_(std::move(link)),
        peer_(std::move(peer)),
        session_(std::in_place, SessionOptions(*server_, peer_), id, SharerOf(peer_),
                 server_->budget_, server_->pool_) {}

  void Start() { link_->Start(shared_from_this()); }

  void OnOpen() override { Pump(); }
  void OnMessage(MessageView message) override {
    if (gone()) return;
    std::uint64_t bytes = 0;
    for (const auto& part : message) bytes += part.size();
    server_->received_.fetch_add(bytes, std::memory_order_relaxed);
    const auto status = session_->OnMessage(message, Now());
    if (!status.ok()) return Malformed(status);
    for (auto& ready : session_->TakeReady()) {
      Deliver(std::move(ready));
      if (gone()) return;
    }
    Pump();
  }
  void OnSent() override {
    if (gone()) return;
    server_->sent_.fetch_add(sending_bytes_, std::memory_order_relaxed);
    sending_ = false;
    session_->OnSent(Now());
    Pump();
  }
  void OnEnd(absl::Status) override { Gone(); }

  // Called only while this peer is in data_peers_, so that session_ exists.
  void OnAdmitted(std::uint64_t request, std::uint64_t bytes) {
    session_->OnAdmitted(request, bytes, Now());
    Pump();
  }
  void Answer(std::uint64_t request, Frame response) {
    if (gone()) return;
    session_->Answer(request, std::move(response), Now());
    PumpSoon();
  }
  void Fail(std::uint64_t request, const absl::Status& status) {
    if (gone()) return;
    session_->Fail(request, status);
    PumpSoon();
  }
  void Abort() {
    if (link_ != nullptr) link_->Finish(absl::UnavailableError("server shuts down"));
    Gone();
  }

 private:
  MonoTime Now() const { return server_->loop_->Now(); }
  bool gone() const { return !session_.has_value(); }

  static ServerSession::Options SessionOptions(ServerCore& server, const PeerInfo& peer) {
    ServerSession::Options session;
    session.frame_bytes_max = server.options_.frame_bytes_max;
    session.progress_timeout = server.options_.progress_timeout;
    session.grant_unused_max = server.options_.grant_unused_max;
    session.grant_idle_max = server.options_.grant_idle_max;
    if (server.options_.lane_bytes_max > 0) {
      session.lane_ring_bytes_max = std::min(server.options_.lane_bytes_max / 2, kLaneRingBytesMax);
      // The pointer stays valid, because the session belongs to a DataPeer, which shares the
      // ownership of the server.
      session.take_lane = [server = &server, address = peer.address](const wire::LaneOffer& offer) {
        return server->TakeLaneOf(address, offer);
      };
    }
    return session;
  }

  void Malformed(const absl::Status& status) {
    server_->malformed_.fetch_add(1, std::memory_order_relaxed);
    link_->Finish(status);  // sends the status to the client
    Gone();
  }

  // Ends a stream that keeps memory from other peers. The stream's client receives `status`, and
  // may open a new stream after a pause.
  void EndForUnused(const absl::Status& status) {
    const auto counters = session_->TakeCounters();
    server_->TakenBack(SharerOf(peer_), counters.taken_back, counters.taken_back_bytes,
                       /*ended=*/true);
    link_->Finish(status);
    Gone();
  }

  void Gone() {
    if (gone()) return;
    const auto self = shared_from_this();
    link_ = nullptr;
    held_.reset();
    session_.reset();  // releases every token except those of requests in handlers
    server_->CallEnded();
    server_->data_peers_.erase(id_);
  }

  // Calls Pump after the other posted answers have been queued, so that small answers are sent
  // together.
  void PumpSoon() {
    if (std::exchange(pump_soon_, true)) return;
    server_->loop_->Defer([self = shared_from_this()] {
      self->pump_soon_ = false;
      self->Pump();
    });
  }

  void Pump() {
    if (gone()) return;
    if (!sending_) {
      OutgoingPieces pieces;
      sending_bytes_ = TakeWrite(*session_, &pieces);
      if (!pieces.empty()) {
        sending_ = true;
        link_->Send(std::move(pieces));
      } else if (!session_->lane_status().ok()) {
        return Malformed(absl::Status(session_->lane_status()));
      }
    }
    const auto counters = session_->TakeCounters();
    server_->received_.fetch_add(counters.lane_received, std::memory_order_relaxed);
    server_->refused_.fetch_add(counters.refused, std::memory_order_relaxed);
    server_->granted_.fetch_add(counters.granted, std::memory_order_relaxed);
    server_->budget_refused_.fetch_add(counters.budget_refused, std::memory_order_relaxed);
    server_->small_refused_.fetch_add(counters.small_refused, std::memory_order_relaxed);
    server_->peer_small_refused_.fetch_add(counters.peer_small_refused, std::memory_order_relaxed);
    server_->frame_refused_.fetch_add(counters.frame_refused, std::memory_order_relaxed);
    if (counters.taken_back > 0)
      server_->TakenBack(SharerOf(peer_), counters.taken_back, counters.taken_back_bytes,
                         /*ended=*/false);
    ArmTimer();
  }

  void ArmTimer() {
    const auto next = session_->NextTick();
    if (!next || (armed_at_ && *armed_at_ <= *next)) return;
    armed_at_ = *next;
    server_->loop_->PostAfter(*next - Now(), [weak = weak_from_this(), at = *next] {
      const auto self = weak.lock();
      if (self == nullptr || self->gone()) return;
      if (self->armed_at_ == at) self->armed_at_.reset();
      if (const absl::Status status = self->session_->Tick(self->Now());
          status.code() == absl::StatusCode::kResourceExhausted) {
        return self->EndForUnused(status);
      } else if (!status.ok()) {
        self->link_->Detach();
        self->Gone();
        return;
      }
      self->Pump();
    });
  }

  // Passes a request to the handler, after it has applied the failpoints push.reorder and
  // push.duplicate.
  void Deliver(ServerSession::Ready ready) {
    if (server_->failpoints_ == nullptr || !server_->failpoints_->AnyArmed())
      return DeliverOnce(std::move(ready), /*answered=*/true);
    if (!held_) {
      if (const auto hit = server_->failpoints_->At("push.reorder")) {
        held_.emplace(std::move(ready));
        const auto hold = hit.action == fault::Action::kDelay
                              ? std::chrono::milliseconds(hit.delay_ms)
                              : kReorderMax;
        server_->loop_->PostAfter(hold, [weak = weak_from_this()] {
          const auto self = weak.lock();
          if (self != nullptr && !self->gone()) self->DeliverHeld();
        });
        return;
      }
    }
    Duplicated(std::move(ready));
    if (!gone()) DeliverHeld();
  }
  void DeliverHeld() {
    if (!held_) return;
    auto held = std::move(*held_);
    held_.reset();
    Duplicated(std::move(held));
  }
  void Duplicated(ServerSession::Ready ready) {
    const auto hit = server_->failpoints_->At("push.duplicate");
    if (!hit) return DeliverOnce(std::move(ready), true);
    ServerSession::Ready twin{ready.request,
                              {tensor::AlignedBuffer(ready.frame.bytes.size()), nullptr}};
    if (twin.frame.bytes.size() > 0)
      std::memcpy(twin.frame.bytes.data(), ready.frame.bytes.data(), twin.frame.bytes.size());
    DeliverOnce(std::move(ready), true);
    if (!gone()) DeliverOnce(std::move(twin), false);
  }
  void DeliverOnce(ServerSession::Ready ready, bool answered);

  // Shared, because a handler's responder may outlive the server object.
  const std::shared_ptr<ServerCore> server_;
  const std::uint64_t id_;
  std::shared_ptr<Link> link_;
  const PeerInfo peer_;
  std::optional<ServerSession> session_;
  bool sending_ = false;
  bool pump_soon_ = false;
  std::uint64_t sending_bytes_ = 0;
  std::optional<MonoTime> armed_at_;
  std::optional<ServerSession::Ready> held_;  // a request that the failpoint push.reorder holds
};

// May be called on any thread, and posts the answer to the loop. Has no effect if the stream has
// ended.
class ServerCore::Responder final : public DataResponder {
 public:
  // With `request` 0 the answer is dropped. This is for the copy of a request that a failpoint has
  // duplicated.
  Responder(std::shared_ptr<Loop> loop, std::weak_ptr<DataPeer> peer, std::uint64_t request)
      : loop_(std::move(loop)), peer_(std::move(peer)), request_(request) {}
  ~Responder() override { Fail(absl::InternalError("request dropped without an answer")); }
  void Answer(Frame response) override {
    if (std::exchange(answered_, true) || request_ == 0) return;
    loop_->Post([peer = peer_, request = request_, response = std::move(response)]() mutable {
      if (const auto p = peer.lock()) p->Answer(request, std::move(response));
    });
  }
  void Fail(absl::Status status) override {
    if (std::exchange(answered_, true) || request_ == 0) return;
    loop_->Post([peer = peer_, request = request_, status = OwnCopy(status)] {
      if (const auto p = peer.lock()) p->Fail(request, status);
    });
  }

 private:
  const std::shared_ptr<Loop> loop_;
  const std::weak_ptr<DataPeer> peer_;
  const std::uint64_t request_;
  bool answered_ = false;
};

void ServerCore::DataPeer::DeliverOnce(ServerSession::Ready ready, bool answered) {
  auto responder =
      std::make_unique<Responder>(server_->loop_, weak_from_this(), answered ? ready.request : 0);
  server_->handlers_.data(peer_, std::move(ready.frame), std::move(responder));
}

// ------------------------------------------------------------------------------------------------

ServerCore::ServerCore(const ServerOptions& options, Handlers handlers, std::shared_ptr<Loop> loop,
                       fault::Failpoints* failpoints, const health::Health* health)
    : options_(options),
      handlers_(std::move(handlers)),
      loop_(std::move(loop)),
      failpoints_(failpoints),
      health_(health),
      pool_(std::make_shared<BufferPool>(options.budget_bytes_max)) {}

std::shared_ptr<ServerCore> ServerCore::Make(const ServerOptions& options, Handlers handlers,
                                             std::shared_ptr<Loop> loop,
                                             fault::Failpoints* failpoints,
                                             const health::Health* health) {
  std::shared_ptr<ServerCore> core(
      new ServerCore(options, std::move(handlers), std::move(loop), failpoints, health));
  core->budget_ = std::make_shared<Budget>(
      CreditCore::Options{.budget_bytes_max = options.budget_bytes_max,
                          .small_reserve_bytes_max = options.small_reserve_bytes_max,
                          .peer_small_bytes_max = options.peer_small_bytes_max,
                          .lately = 10 * options.grant_idle_max},
      [weak = std::weak_ptr<ServerCore>(core), loop = core->loop_] {
        loop->Post([weak] {
          if (const auto server = weak.lock()) server->DispatchAdmitted();
        });
      });
  return core;
}

absl::StatusOr<std::unique_ptr<Lane>> ServerCore::TakeLaneOf(const std::string& address,
                                                             const wire::LaneOffer& offer) {
  absl::StatusOr<std::unique_ptr<Lane>> lane = absl::UnknownError("");
  const std::uint64_t bytes =
      offer.ring_bytes > kLaneRingBytesMax ? 0 : LaneMemoryBytes(offer.ring_bytes);
  const std::uint64_t used = lanes_->bytes.load(std::memory_order_relaxed);
  if (bytes > options_.lane_bytes_max || used > options_.lane_bytes_max - bytes) {
    lanes_->refused.fetch_add(1, std::memory_order_relaxed);
    lane = absl::FailedPreconditionError(
        absl::StrCat("the lanes would exceed lane_bytes_max: used=", used, " want=", bytes,
                     " max=", options_.lane_bytes_max));
  } else {
    lane = TakeLane(offer, options_.lane_bytes_max / 2, [lanes = lanes_, bytes] {
      lanes->bytes.fetch_sub(bytes, std::memory_order_relaxed);
      lanes->count.fetch_sub(1, std::memory_order_relaxed);
    });
    if (lane.ok()) {
      lanes_->bytes.fetch_add(bytes, std::memory_order_relaxed);
      lanes_->count.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (options_.on_lane) options_.on_lane(address, lane.status());
  return lane;
}

void ServerCore::TakenBack(const std::string& peer, std::uint64_t grants, std::uint64_t bytes,
                           bool ended) {
  taken_back_.fetch_add(grants, std::memory_order_relaxed);
  if (ended) kept_out_[peer] = loop_->Now() + options_.unused_pause;
  if (options_.on_unused_grants) options_.on_unused_grants(peer, grants, bytes, ended);
}

absl::Status ServerCore::CheckNotKeptOut(const std::string& peer) {
  std::erase_if(kept_out_, [now = loop_->Now()](const auto& entry) { return entry.second <= now; });
  if (!kept_out_.contains(peer)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the peer left its grants unused, so its new data streams are refused during a pause: peer=",
      peer, " pause_ms=",
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.unused_pause).count()));
}

bool ServerCore::AdmitCall() {
  if (open_calls_.load(std::memory_order_relaxed) >= options_.streams_max) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    streams_refused_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  open_calls_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void ServerCore::DispatchAdmitted() {
  for (const auto& admitted : budget_->TakeAdmitted()) {
    const auto it = data_peers_.find(admitted.stream);
    if (it != data_peers_.end()) {
      it->second->OnAdmitted(admitted.request, admitted.bytes);
    } else {
      // The stream has ended. The token is destroyed at once, which frees the bytes.
      budget_->MakeToken(admitted.peer, admitted.bytes, /*small=*/false);
    }
  }
}

void ServerCore::AcceptData(std::shared_ptr<Link> link, const PeerInfo& peer) {
  if (shut_ || !handlers_.data) {
    link->Finish(absl::UnimplementedError("this task serves no data stream"));
    CallEnded();
    return;
  }
  absl::Status status;
  for (const absl::string_view task : absl::StrSplit(options_.data_peers, ',')) {
    if (status = CheckPeer(peer, task); status.ok()) break;
  }
  if (!status.ok()) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    link->Finish(status);
    CallEnded();
    return;
  }
  if (const absl::Status free = CheckNotKeptOut(SharerOf(peer)); !free.ok()) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    link->Finish(free);
    CallEnded();
    return;
  }
  const std::uint64_t id = next_peer_++;
  const auto data_peer = std::make_shared<DataPeer>(shared_from_this(), id, std::move(link), peer);
  data_peers_.emplace(id, data_peer);
  data_peer->Start();
}

void ServerCore::AcceptStream(std::shared_ptr<Link> link, const PeerInfo& peer,
                              absl::string_view method) {
  const std::uint64_t id = next_peer_++;
  std::optional<MessageStreamEvents> events;
  const auto stream = std::make_shared<MessageStreamCore>(
      loop_, failpoints_,
      MessageStreamCore::Options{
          .message_bytes_max = options_.message_bytes_max,
          .unsent_bytes_max = options_.unsent_bytes_max,
          .progress_timeout = options_.progress_timeout,
          .on_gone =
              [weak = weak_from_this(), id] {
                const auto self = weak.lock();
                if (self == nullptr) return;
                self->CallEnded();
                self->streams_.erase(id);
              },
          .count =
              [weak = weak_from_this()](std::uint64_t received, std::uint64_t sent) {
                const auto self = weak.lock();
                if (self == nullptr) return;
                self->received_.fetch_add(received, std::memory_order_relaxed);
                self->sent_.fetch_add(sent, std::memory_order_relaxed);
              }});
  if (!shut_ && handlers_.stream) events = handlers_.stream(peer, method, stream->MakeHandle());
  if (!events) {
    link->Finish(absl::UnimplementedError(
        absl::StrCat("this task does not serve this stream method: method=", method)));
    CallEnded();
    return;
  }
  streams_.emplace(id, stream);
  stream->Start(std::move(link), std::move(*events));
}

void ServerCore::Unary(const PeerInfo& peer, absl::string_view method, std::string request,
                       UnaryAnswer answer) {
  received_.fetch_add(request.size(), std::memory_order_relaxed);
  UnaryAnswer counted = [weak = weak_from_this(),
                         answer = std::move(answer)](absl::StatusOr<std::string> response) {
    if (const auto self = weak.lock(); self != nullptr) {
      if (response.ok()) self->sent_.fetch_add(response->size(), std::memory_order_relaxed);
    }
    answer(std::move(response));
  };
  if (shut_) return counted(absl::UnavailableError("server shuts down"));
  if (request.size() > options_.message_bytes_max) {
    return counted(absl::ResourceExhaustedError(absl::StrCat(
        "message too large: bytes=", request.size(), " max=", options_.message_bytes_max)));
  }
  if (method == kHealthMethod) return counted(AnswerHealth(request, health_));
  if (!handlers_.unary)
    return counted(absl::UnimplementedError(
        absl::StrCat("this task does not serve this method: method=", method)));
  handlers_.unary(peer, method, std::move(request),
                  std::make_unique<PostedUnaryResponder>(loop_, std::move(counted)));
}

void ServerCore::Shutdown() {
  if (std::exchange(shut_, true)) return;
  while (!data_peers_.empty()) {
    const auto peer = data_peers_.begin()->second;
    peer->Abort();
  }
  while (!streams_.empty()) {
    const auto stream = streams_.begin()->second;
    stream->Abort(absl::UnavailableError("server shuts down"));
  }
  // The reset is posted, because the caller of the shutdown may be a handler.
  loop_->Post([self = shared_from_this()] { self->handlers_ = {}; });
}

Server::Stats ServerCore::stats() const {
  const auto levels = budget_->levels();
  Server::Stats stats;
  stats.budget_used = levels.used;
  stats.budget_waiting = levels.waiting_bytes;
  stats.small_used = levels.small_used;
  stats.peer_small_used = levels.peer_small_used;
  stats.budget_refused = budget_refused_.load(std::memory_order_relaxed);
  stats.small_refused = small_refused_.load(std::memory_order_relaxed);
  stats.peer_small_refused = peer_small_refused_.load(std::memory_order_relaxed);
  stats.frame_refused = frame_refused_.load(std::memory_order_relaxed);
  stats.streams_refused = streams_refused_.load(std::memory_order_relaxed);
  stats.lanes = lanes_->count.load(std::memory_order_relaxed);
  stats.lane_bytes = lanes_->bytes.load(std::memory_order_relaxed);
  stats.lane_bytes_refused = lanes_->refused.load(std::memory_order_relaxed);
  stats.streams = open_calls_.load(std::memory_order_relaxed);
  stats.taken_back_total = taken_back_.load(std::memory_order_relaxed);
  stats.refused_total = refused_.load(std::memory_order_relaxed);
  stats.granted_total = granted_.load(std::memory_order_relaxed);
  stats.malformed_total = malformed_.load(std::memory_order_relaxed);
  stats.bytes_received = received_.load(std::memory_order_relaxed);
  stats.bytes_sent = sent_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace evergrad::transport
