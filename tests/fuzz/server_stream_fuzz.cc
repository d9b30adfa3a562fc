// The input is a sequence of steps of a server's session: messages from its client, answers,
// passing time, and the contents of the lane (shared memory between client and server).
//
// Property: the server's memory budget is never exceeded, and all of it is free after the session
// and its requests have ended.
#include <deque>

#include "common/base/check.h"
#include "common/transport/session/server_session.h"
#include "tests/fuzz/stream_input.h"

namespace evergrad::transport {
namespace {

using fuzz::ServerStep;

constexpr std::uint64_t kBudget = 256u << 10, kSmall = 128u << 10, kRing = kLaneRingUnit;
constexpr std::size_t kRequestsMax = 8;
constexpr std::uint64_t kStream = 1, kOtherStream = 2;

class Fed {
 public:
  Fed() {
    ServerSession::Options options;
    options.frame_bytes_max = 1u << 20;
    options.requests_max = kRequestsMax;
    options.message_bytes_max = 4096;
    options.lane_ring_bytes_max = kRing;
    options.take_lane = [this](const wire::LaneOffer&) {
      return std::make_unique<Lane>(memory_.memory(), kRing, Lane::Side::kServer);
    };
    session_ = std::make_unique<ServerSession>(options, kStream, "client", budget_);
  }
  ~Fed() {
    session_.reset();
    ready_.clear();
    held_.clear();
    budget_->Leave(other_, kOtherStream);
    EG_CHECK(budget_->levels().used == 0);
    EG_CHECK(budget_->levels().waiting_bytes == 0);
    EG_CHECK(budget_->levels().small_used == 0);
  }

  absl::Status Take(fuzz::Input& input) {
    switch (static_cast<ServerStep>(input.Choice(fuzz::kServerSteps))) {
      case ServerStep::kBytes: {
        const std::string bytes(input.Piece());
        return session_->OnMessage(fuzz::Views(input, bytes), now_);
      }
      case ServerStep::kMessage: {
        const std::string bytes = fuzz::HeaderAndPayload(input);
        return session_->OnMessage(fuzz::Views(input, bytes), now_);
      }
      case ServerStep::kTime:
        now_ += std::chrono::milliseconds(input.Number<std::uint16_t>());
        return session_->Tick(now_);
      case ServerStep::kSend: Send(); return session_->lane_status();
      case ServerStep::kAnswer: Answer(input.Number<std::uint16_t>()); return absl::OkStatus();
      case ServerStep::kFail:
        if (!ready_.empty()) {
          session_->Fail(ready_.front().request, absl::AbortedError("not done"));
          ready_.pop_front();
        }
        return absl::OkStatus();
      case ServerStep::kLane: memory_.Write(input); return absl::OkStatus();
      case ServerStep::kOther: Other(input.Number<std::uint32_t>()); return absl::OkStatus();
    }
    return absl::OkStatus();
  }
  void Collect() {
    for (const auto& admitted : budget_->TakeAdmitted()) {
      if (admitted.stream == kOtherStream)
        held_.push_back(budget_->MakeToken(other_, admitted.bytes, false));
      else
        session_->OnAdmitted(admitted.request, admitted.bytes, now_);
    }
    for (ServerSession::Ready& ready : session_->TakeReady()) ready_.push_back(std::move(ready));
    const Budget::Levels levels = budget_->levels();
    EG_CHECK(levels.used <= kBudget);
    EG_CHECK(levels.small_used <= kSmall);
    EG_CHECK(session_->requests() <= kRequestsMax);
    (void)session_->NextTick();
  }

 private:
  void Send() {
    for (int i = 0; i < 4; ++i)
      if (!session_->NextMessage()) break;
    session_->OnSent(now_);
  }
  void Answer(std::size_t bytes) {
    if (ready_.empty()) return;
    auto owner = std::make_shared<std::string>(bytes, 'a');
    session_->Answer(ready_.front().request, {{{owner, fuzz::BytesOf(*owner)}}}, now_);
    ready_.pop_front();
  }

  // Imitates another peer, which requests `bytes` of the budget, or releases all its bytes. While
  // that peer waits, grants that the session does not use are revoked.
  void Other(std::uint64_t bytes) {
    if (bytes % 4 == 0) return held_.clear();
    const auto answer = budget_->AskLarge(other_, kOtherStream, ++asked_, bytes);
    if (answer == CreditCore::Answer::kGranted)
      held_.push_back(budget_->MakeToken(other_, bytes, false));
  }

  MonoTime now_{std::chrono::seconds(1)};
  fuzz::LaneMemory memory_{kRing};
  const std::shared_ptr<Budget> budget_ =
      std::make_shared<Budget>(CreditCore::Options{.budget_bytes_max = kBudget,
                                                   .small_reserve_bytes_max = kSmall,
                                                   .peer_small_bytes_max = kSmall / 2},
                               [] {});
  std::unique_ptr<ServerSession> session_;
  std::deque<ServerSession::Ready> ready_;
  const std::uint64_t other_ = budget_->Join("other");
  std::uint64_t asked_ = 0;
  std::vector<std::unique_ptr<Budget::Token>> held_;
};

}  // namespace
}  // namespace evergrad::transport

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  evergrad::fuzz::Input input(data, size);
  evergrad::transport::Fed server;
  while (!input.done()) {
    if (!server.Take(input).ok()) break;
    server.Collect();
  }
  return 0;
}
