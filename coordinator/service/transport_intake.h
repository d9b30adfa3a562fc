// The transport's side of the control plane: checks callers, limits sessions, calls and queued
// batches, parses batches, and posts the sessions, calls and batches to the control executor.
//
//   transport threads --(handlers)--> post --> Receiver on the control executor
//
// handlers() and the handlers themselves are thread-safe; SessionsClosed and calls() may be called
// on any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/transport/transport.h"
#include "coordinator/service/control_calls.h"
#include "coordinator/service/service_parts.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class TransportIntake {
 public:
  // Called on the control executor. The calls of one session arrive in the order of its events.
  struct Receiver {
    std::function<void(std::uint64_t session, transport::PeerInfo peer,
                       std::shared_ptr<transport::MessageStream> stream)>
        on_session;
    // `batch` is null if the bytes are malformed.
    std::function<void(std::uint64_t session, const v1::TaskBatch* batch)> on_batch;
    std::function<void(std::uint64_t session)> on_overflow;
    std::function<void(std::uint64_t session)> on_end;
    std::function<void(const ControlCall& call, const Caller& caller, const std::string& request,
                       const Responder& responder)>
        on_call;
  };
  // All parts outlive the intake, and the handlers end before the intake.
  TransportIntake(ServiceParts parts, Receiver receiver);

  transport::Handlers handlers();
  // Records that `sessions` open sessions have ended. As many new sessions may then open.
  void SessionsClosed(std::size_t sessions) {
    open_sessions_.fetch_sub(static_cast<std::uint32_t>(sessions));
  }
  std::uint32_t calls() const { return calls_->load(); }  // number of calls in progress

 private:
  void OnUnary(const transport::PeerInfo& peer, absl::string_view method, std::string request,
               std::unique_ptr<transport::UnaryResponder> responder);
  std::optional<transport::MessageStreamEvents> OnStream(
      const transport::PeerInfo& peer, absl::string_view method,
      const std::shared_ptr<transport::MessageStream>& stream);

  const ServiceParts parts_;
  const Receiver receiver_;
  std::atomic<std::uint64_t> next_session_{1};
  std::atomic<std::uint32_t> open_sessions_{0};
  const std::shared_ptr<std::atomic<std::uint32_t>> calls_;  // shared with the calls
};

}  // namespace evergrad::coordinator
