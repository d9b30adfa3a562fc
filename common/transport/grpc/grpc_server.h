// The server side over gRPC. Private to the room.
#pragma once

#include <grpcpp/server_builder.h>

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/fault/failpoints.h"
#include "common/health/health.h"
#include "common/transport/grpc/grpc_loop.h"
#include "common/transport/tls/tls_watches.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

// The one loop for all gRPC servers and channels of a process. With two queues, each queue would
// have a thread that waits in epoll, and gRPC lets the first thread that wakes read for both
// queues. Every message would then wake both threads.
class GrpcHome {
 public:
  GrpcHome();
  ~GrpcHome();  // The loop must have been shut down.

  const std::shared_ptr<GrpcLoop>& loop() const { return loop_; }
  // Returns the builder whose queue the loop runs, for the first server, and nullptr afterwards. A
  // queue belongs to one builder, so a further server of the same transport (in tests) gets its own
  // loop. Thread-safe.
  std::unique_ptr<grpc::ServerBuilder> TakeBuilder();

 private:
  Mutex mu_;
  std::unique_ptr<grpc::ServerBuilder> builder_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<GrpcLoop> loop_;
};

absl::StatusOr<std::unique_ptr<Server>> ListenGrpc(GrpcHome* home, TlsWatches* watches,
                                                   const ServerOptions& options, Handlers handlers,
                                                   fault::Failpoints* failpoints,
                                                   const health::Health* health);

// Returns the address to which the server may bind (promise P10). The error InvalidArgument names
// both ways to allow an address that other machines can reach.
absl::StatusOr<std::string> ListenAddress(const ServerOptions& options);

}  // namespace evergrad::transport
