#include "common/transport/streams/data_stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/transport/streams/post_limit.h"

namespace evergrad::transport {
namespace {

using namespace std::chrono_literals;
constexpr MonoTime kBackoffMin = 20ms;
constexpr MonoTime kBackoffMax = 1s;

// Only the loop's thread accesses the members, except the atomics.
class Core final : public LinkEvents, public std::enable_shared_from_this<Core> {
 public:
  Core(std::shared_ptr<Loop> loop, LinkFactory open, std::shared_ptr<BufferPool> pool,
       const ChannelOptions& options)
      : loop_(std::move(loop)),
        open_(std::move(open)),
        posted_(options.inflight_calls_max),
        session_(SessionOptions(options), std::move(pool)) {}

  Loop& loop() { return *loop_; }
  PostLimit& posted() { return posted_; }
  std::uint64_t NextId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }

  void Dial() {
    if (closed_) return;
    link_ = open_(kDataMethod, std::exchange(suspect_, false));
    link_->Start(shared_from_this());
  }

  void Announce(std::uint64_t id, std::uint64_t bytes, const DataOptions& options) {
    if (closed_) return;
    session_.Announce(id, bytes, options, loop_->Now());
    Pump();
  }

  void Abandon(std::uint64_t id) {
    session_.Abandon(id);
    Pump();
  }

  void Call(std::uint64_t id, Frame request, const DataOptions& options, DataDone done) {
    session_.Call(id, std::move(request), options, std::move(done), loop_->Now());
    PumpSoon();
  }

  void Close() {
    if (std::exchange(closed_, true)) return;
    if (const auto link = std::exchange(link_, nullptr)) link->Detach();
    session_.Close();
    Deliver();
  }

  void OnOpen() override {}  // The server's HELLO reports the success.
  void OnMessage(MessageView message) override {
    const auto status = session_.OnMessage(message, loop_->Now());
    if (!status.ok())
      return Down(absl::UnavailableError(
          absl::StrCat("the server violates the protocol: ", status.message())));
    if (session_.up()) backoff_ = kBackoffMin;
    Pump();
  }
  void OnSent() override {
    sending_ = false;
    session_.OnSent(loop_->Now());
    Pump();
  }
  void OnEnd(absl::Status status) override {
    // These codes come from refusals by the server and from bad certificates. They are kept,
    // because the caller's reaction depends on them. Every other code becomes Unavailable.
    switch (status.code()) {
      case absl::StatusCode::kInvalidArgument:
      case absl::StatusCode::kUnimplemented:
      case absl::StatusCode::kPermissionDenied:
      case absl::StatusCode::kUnauthenticated:
      case absl::StatusCode::kResourceExhausted: return Down(status);
      default:
        return Down(absl::UnavailableError(status.ok() ? "server ended the data stream"
                                                       : status.message()));
    }
  }

 private:
  static ClientSession::Options SessionOptions(const ChannelOptions& options) {
    ClientSession::Options session;
    session.frame_bytes_max = options.frame_bytes_max;
    session.inflight_calls_max = options.inflight_calls_max;
    session.progress_timeout = options.progress_timeout;
    if (options.lane_ring_bytes > 0) {
      session.offer_lane = [wanted = options.lane_ring_bytes](std::uint64_t ring_bytes_max) {
        const std::uint64_t ring_bytes = std::min(wanted, ring_bytes_max);
        return OfferLane(ring_bytes - ring_bytes % kLaneRingUnit);
      };
      session.on_lane = options.on_lane;
    }
    return session;
  }

  void Down(const absl::Status& why) {
    if (const auto link = std::exchange(link_, nullptr)) link->Detach();
    sending_ = false;
    session_.OnLinkDown(why, loop_->Now());
    Deliver();
    if (closed_) return;
    loop_->PostAfter(backoff_, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->Dial();
    });
    backoff_ = std::min(backoff_ * 2, kBackoffMax);
  }

  // Calls Pump after the other posted calls have run, so that small calls are sent together.
  void PumpSoon() {
    if (std::exchange(pump_soon_, true)) return;
    loop_->Defer([self = shared_from_this()] {
      self->pump_soon_ = false;
      self->Pump();
    });
  }

  void Pump() {
    if (link_ != nullptr && !sending_) {
      OutgoingPieces pieces;
      TakeWrite(session_, &pieces);
      if (!pieces.empty()) {
        sending_ = true;
        link_->Send(std::move(pieces));
      } else if (!session_.lane_status().ok()) {
        return Down(absl::UnavailableError(
            absl::StrCat("the server violates the protocol: ", session_.lane_status().message())));
      }
    }
    Deliver();
    ArmTimer();
  }

  void Deliver() {
    for (auto& finished : session_.TakeFinished()) finished.done(std::move(finished.result));
  }

  void ArmTimer() {
    const auto next = session_.NextTick();
    if (!next || (armed_at_ && *armed_at_ <= *next)) return;
    armed_at_ = *next;
    loop_->PostAfter(*next - loop_->Now(), [weak = weak_from_this(), at = *next] {
      const auto self = weak.lock();
      if (self == nullptr || self->closed_) return;
      if (self->armed_at_ == at) self->armed_at_.reset();
      if (const auto status = self->session_.Tick(self->loop_->Now()); !status.ok()) {
        self->suspect_ = true;
        self->Down(status);
      }
      self->Pump();
    });
  }

  const std::shared_ptr<Loop> loop_;
  const LinkFactory open_;
  std::atomic<std::uint64_t> next_id_{1};
  PostLimit posted_;
  ClientSession session_;
  std::shared_ptr<Link> link_;
  bool sending_ = false;
  bool closed_ = false;
  bool pump_soon_ = false;
  bool suspect_ = false;  // the connection made no progress and must not be reused
  MonoTime backoff_ = kBackoffMin;
  std::optional<MonoTime> armed_at_;
};

class DataStreamHandle final : public DataStream {
 public:
  explicit DataStreamHandle(std::shared_ptr<Core> core) : core_(std::move(core)) {
    core_->loop().Post([core = core_] { core->Dial(); });
  }
  ~DataStreamHandle() override {
    core_->loop().RunAndWait([this] { core_->Close(); });
  }

  std::uint64_t Announce(std::uint64_t request_bytes, const DataOptions& options) override {
    const std::uint64_t id = core_->NextId();
    // If too many calls are posted already, the announcement is dropped. The later Call with this
    // ticket then announces its request itself.
    if (core_->posted().Enter().ok()) {
      core_->loop().Post([core = core_, id, request_bytes, options] {
        core->posted().Leave();
        core->Announce(id, request_bytes, options);
      });
    }
    return id;
  }

  void Abandon(std::uint64_t ticket) override {
    core_->loop().Post([core = core_, ticket] { core->Abandon(ticket); });
  }

  void Call(std::uint64_t ticket, Frame request, const DataOptions& options,
            DataDone done) override {
    const std::uint64_t id = ticket != 0 ? ticket : core_->NextId();
    if (absl::Status status = core_->posted().Enter(); !status.ok()) return done(std::move(status));
    const bool posted = core_->loop().Post(
        [core = core_, id, request = std::move(request), options, done]() mutable {
          core->posted().Leave();
          core->Call(id, std::move(request), options, std::move(done));
        });
    if (!posted) done(absl::CancelledError("transport has shut down"));
  }

 private:
  const std::shared_ptr<Core> core_;
};

}  // namespace

std::unique_ptr<DataStream> MakeDataStream(std::shared_ptr<Loop> loop, LinkFactory open,
                                           std::shared_ptr<BufferPool> pool,
                                           const ChannelOptions& options) {
  return std::make_unique<DataStreamHandle>(
      std::make_shared<Core>(std::move(loop), std::move(open), std::move(pool), options));
}

}  // namespace evergrad::transport
