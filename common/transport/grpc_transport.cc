#include "common/transport/grpc_transport.h"

#include <malloc.h>

#include "common/transport/grpc_client.h"
#include "common/transport/grpc_loop.h"
#include "common/transport/grpc_server.h"

namespace evergrad::transport {
namespace {

class GrpcTransport final : public Transport {
 public:
  explicit GrpcTransport(fault::Failpoints* failpoints) : failpoints_(failpoints) {}
  ~GrpcTransport() override { loop_->Shutdown(); }

  absl::StatusOr<std::unique_ptr<Server>> Listen(const ServerOptions& options, Handlers handlers) override { return ListenGrpc(options, std::move(handlers), failpoints_); }
  absl::StatusOr<std::unique_ptr<Channel>> Dial(const Address& address, const ChannelOptions& options) override { return DialGrpc(loop_, address, options, failpoints_); }

 private:
  fault::Failpoints* const failpoints_;
  // All channels' calls complete here; each server has a loop of its own.
  const std::shared_ptr<GrpcLoop> loop_ = std::make_shared<GrpcLoop>("grpc_client", std::make_unique<grpc::CompletionQueue>());
};

}  // namespace

std::unique_ptr<Transport> MakeGrpcTransport(fault::Failpoints* failpoints) { return std::make_unique<GrpcTransport>(failpoints); }

void TuneAllocator() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_ARENA_MAX, 2);
}

}  // namespace evergrad::transport
