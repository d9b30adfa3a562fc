#include "coordinator/service/transport_intake.h"

#include <optional>
#include <utility>

#include <google/protobuf/arena.h>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "coordinator/service/life.h"

namespace evergrad::coordinator {
namespace {

// A responder that counts as one call in progress until it is destroyed, answered or not.
class CountedResponder final : public transport::UnaryResponder {
 public:
  CountedResponder(std::unique_ptr<transport::UnaryResponder> inner,
                   std::shared_ptr<std::atomic<std::uint32_t>> calls)
      : inner_(std::move(inner)), calls_(std::move(calls)) {}
  ~CountedResponder() override { calls_->fetch_sub(1); }
  void Answer(absl::StatusOr<std::string> response) override {
    inner_->Answer(std::move(response));
  }

 private:
  std::unique_ptr<transport::UnaryResponder> inner_;
  // Shared with every call, because a call may outlive the control plane.
  std::shared_ptr<std::atomic<std::uint32_t>> calls_;
};

// The batches of one session that are not handled yet; shared by the session's callbacks.
struct Inbox {
  std::atomic<std::uint32_t> queued{0};
  std::atomic<bool> overflowed{false};
};

// A batch that a transport thread has parsed for the control executor. An arena holds its messages
// in few blocks of memory, which are freed together.
struct ParsedBatch {
  google::protobuf::Arena arena;
  v1::TaskBatch* const batch = google::protobuf::Arena::CreateMessage<v1::TaskBatch>(&arena);
};

}  // namespace

TransportIntake::TransportIntake(ServiceParts parts, Receiver receiver)
    : parts_(parts),
      receiver_(std::move(receiver)),
      calls_(std::make_shared<std::atomic<std::uint32_t>>(0)) {}

transport::Handlers TransportIntake::handlers() {
  transport::Handlers handlers;
  handlers.unary = [this](const transport::PeerInfo& peer, absl::string_view method,
                          std::string request,
                          std::unique_ptr<transport::UnaryResponder> responder) {
    OnUnary(peer, method, std::move(request), std::move(responder));
  };
  handlers.stream = [this](const transport::PeerInfo& peer, absl::string_view method,
                           const std::shared_ptr<transport::MessageStream>& stream) {
    return OnStream(peer, method, stream);
  };
  return handlers;
}

void TransportIntake::OnUnary(const transport::PeerInfo& peer, absl::string_view method,
                              std::string request,
                              std::unique_ptr<transport::UnaryResponder> responder) {
  const ControlCall* const call = FindCall(ControlCalls(), method);
  if (call == nullptr) {
    return responder->Answer(
        absl::UnimplementedError(absl::StrCat("unknown method: ", method.substr(0, 200))));
  }
  if (absl::Status status = CheckCaller(*call, peer); !status.ok()) {
    parts_.audit->Write({std::string(call->name()), CallerOf(peer), ""}, status);
    return responder->Answer(std::move(status));
  }
  if (calls_->fetch_add(1) >= parts_.options->calls_max) {
    calls_->fetch_sub(1);
    parts_.metrics->calls.refused.Add();
    responder->Answer(absl::ResourceExhaustedError(
        absl::StrCat("too many calls in progress: limit=", parts_.options->calls_max)));
    return;
  }
  Responder counted = std::make_shared<CountedResponder>(std::move(responder), calls_);
  const bool posted = parts_.control->Post(
      [this, counted, call, caller = CallerOf(peer), bytes = std::move(request)] {
        receiver_.on_call(*call, caller, bytes, counted);
      });
  if (!posted) counted->Answer(StoppingError());
}

std::optional<transport::MessageStreamEvents> TransportIntake::OnStream(
    const transport::PeerInfo& peer, absl::string_view method,
    const std::shared_ptr<transport::MessageStream>& stream) {
  if (method != client::kSessionMethod) return std::nullopt;
  if (open_sessions_.fetch_add(1) >= parts_.options->membership.tasks_max + 64) {
    open_sessions_.fetch_sub(1);
    parts_.metrics->sessions.refused.Add();
    return std::nullopt;
  }
  const std::uint64_t number = next_session_.fetch_add(1);
  auto inbox = std::make_shared<Inbox>();
  if (!parts_.control->Post(
          [this, number, peer, stream] { receiver_.on_session(number, peer, stream); })) {
    open_sessions_.fetch_sub(1);
    return std::nullopt;
  }
  transport::MessageStreamEvents events;
  events.on_message = [this, number, inbox](const std::string& bytes) {
    if (inbox->overflowed.load()) return;
    if (inbox->queued.fetch_add(1) >= parts_.options->batches_queued_max) {
      inbox->overflowed.store(true);
      parts_.control->Post([this, number] { receiver_.on_overflow(number); });
      return;
    }
    // The batch is parsed on the transport's thread to relieve the control executor.
    auto parsed = std::make_shared<ParsedBatch>();
    const bool well = parsed->batch->ParseFromString(bytes);
    parts_.control->Post([this, number, inbox, parsed, well] {
      inbox->queued.fetch_sub(1);
      receiver_.on_batch(number, well ? parsed->batch : nullptr);
    });
  };
  events.on_end = [this, number](const absl::Status&) {
    parts_.control->Post([this, number] { receiver_.on_end(number); });
  };
  return events;
}

}  // namespace evergrad::coordinator
