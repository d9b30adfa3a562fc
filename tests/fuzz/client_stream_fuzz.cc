// The input is a sequence of steps of a client's session: calls, messages from its server, passing
// time, and the contents of the lane (shared memory between client and server).
//
// Property: every call ends exactly once, and ends at the latest when the session is closed. No
// answer has more bytes than its call has reserved.
#include "common/base/check.h"
#include "common/transport/session/client_session.h"
#include "tests/fuzz/stream_input.h"

namespace evergrad::transport {
namespace {

using fuzz::ClientStep;

constexpr std::uint64_t kRing = kLaneRingUnit;

class Client {
 public:
  ~Client() {
    session_.Close();
    Collect();
    EG_CHECK(session_.outstanding() == 0);
    EG_CHECK(ended_ == called_);
  }

  absl::Status Take(fuzz::Input& input) {
    switch (static_cast<ClientStep>(input.Choice(fuzz::kClientSteps))) {
      case ClientStep::kBytes: {
        const std::string bytes(input.Piece());
        return session_.OnMessage(fuzz::Views(input, bytes), now_);
      }
      case ClientStep::kMessage: {
        const std::string bytes = fuzz::HeaderAndPayload(input);
        return session_.OnMessage(fuzz::Views(input, bytes), now_);
      }
      case ClientStep::kTime:
        now_ += std::chrono::milliseconds(input.Number<std::uint16_t>());
        return session_.Tick(now_);
      case ClientStep::kSend:
        for (int i = 0; i < 4; ++i)
          if (!session_.NextMessage()) break;
        session_.OnSent(now_);
        return session_.lane_status();
      case ClientStep::kCall: {
        const bool ticket = input.Choice(2) == 1 && !announced_.empty();
        const std::size_t bytes = input.Number<std::uint32_t>() % kRequestBytesMax;
        Call(ticket ? announced_.back() : next_++, bytes, input.Number<std::uint32_t>());
        if (ticket) announced_.pop_back();
        return absl::OkStatus();
      }
      case ClientStep::kAnnounce: {
        const std::uint64_t bytes = input.Number<std::uint32_t>();
        session_.Announce(next_, bytes, Options(input.Number<std::uint32_t>()), now_);
        announced_.push_back(next_++);
        return absl::OkStatus();
      }
      case ClientStep::kAbandon: session_.Abandon(input.Number()); return absl::OkStatus();
      case ClientStep::kLinkDown:
        session_.OnLinkDown(absl::UnavailableError("cut"), now_);
        return absl::OkStatus();
      case ClientStep::kLane: memory_.Write(input); return absl::OkStatus();
    }
    return absl::OkStatus();
  }
  void Collect() {
    for (ClientSession::Finished& finished : session_.TakeFinished())
      finished.done(std::move(finished.result));
    (void)session_.NextTick();
  }

 private:
  static constexpr std::size_t kRequestBytesMax = 256u << 10;
  static DataOptions Options(std::uint64_t response_bytes_max) {
    return {.response_bytes_max = response_bytes_max, .deadline = std::chrono::seconds(5)};
  }
  void Call(std::uint64_t id, std::size_t bytes, std::uint64_t response_bytes_max) {
    auto owner = std::make_shared<std::string>(bytes, 'r');
    ++called_;
    session_.Call(
        id, {{{owner, fuzz::BytesOf(*owner)}}}, Options(response_bytes_max),
        [this, response_bytes_max, done = false](auto result) mutable {
          EG_CHECK(!done);
          done = true;
          ++ended_;
          if (result.ok())
            EG_CHECK(result->bytes.size() <= response_bytes_max + wire::kAnswerHeaderBytesMax);
        },
        now_);
  }
  ClientSession::Options SessionOptions() {
    ClientSession::Options options;
    options.frame_bytes_max = 1u << 20;
    options.inflight_calls_max = 16;
    options.message_bytes_max = 4096;
    options.offer_lane = [this](std::uint64_t) -> absl::StatusOr<OfferedLane> {
      OfferedLane offered;
      offered.lane = std::make_unique<Lane>(memory_.memory(), kRing, Lane::Side::kClient);
      return offered;
    };
    return options;
  }

  MonoTime now_{std::chrono::seconds(1)};
  fuzz::LaneMemory memory_{kRing};
  ClientSession session_{SessionOptions()};
  std::uint64_t next_ = 1, called_ = 0, ended_ = 0;
  std::vector<std::uint64_t> announced_;
};

}  // namespace
}  // namespace evergrad::transport

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  evergrad::fuzz::Input input(data, size);
  evergrad::transport::Client client;
  while (!input.done()) {
    if (!client.Take(input).ok()) break;
    client.Collect();
  }
  return 0;
}
