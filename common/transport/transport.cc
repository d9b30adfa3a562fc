#include "common/transport/transport.h"

#include "common/runtime/executor.h"
#include "common/transport/certificate_task.h"

namespace evergrad::transport {

std::uint64_t Frame::size() const {
  std::uint64_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.bytes.size();
  return bytes;
}

absl::Status CheckPeer(const PeerInfo& peer, absl::string_view task) {
  return peer.certificate_task.empty() ? absl::OkStatus() : CheckTask(peer.certificate_task, task);
}

absl::StatusOr<std::string> UnaryAndWait(Channel& channel, absl::string_view method,
                                         std::string request, std::chrono::milliseconds deadline) {
  runtime::WaitableEvent answered;
  absl::StatusOr<std::string> result = absl::UnknownError("not answered");
  channel.Unary(method, std::move(request), deadline, [&](absl::StatusOr<std::string> response) {
    result = std::move(response);
    answered.Set();
  });
  answered.Wait();
  return result;
}

}  // namespace evergrad::transport
