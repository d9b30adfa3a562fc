// The server side over gRPC. Private to the room.
#pragma once

#include <grpcpp/server_builder.h>

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/fault/failpoints.h"
#include "common/transport/grpc/grpc_loop.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

// Everything over gRPC of one process shares a loop. Two queues would each have a thread that waits
// in epoll, and gRPC lets whichever comes first read for both: every message would wake both
// threads.
class GrpcHome {
 public:
  GrpcHome();
  ~GrpcHome();  // The loop has been shut down.

  const std::shared_ptr<GrpcLoop>& loop() const { return loop_; }
  // The builder whose queue the loop runs: for the first server. Null afterwards: a queue belongs
  // to one builder, so a further server of the same transport (tests have some) gets a loop of its
  // own. Thread-safe.
  std::unique_ptr<grpc::ServerBuilder> TakeBuilder();

 private:
  Mutex mu_;
  std::unique_ptr<grpc::ServerBuilder> builder_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<GrpcLoop> loop_;
};

absl::StatusOr<std::unique_ptr<Server>> ListenGrpc(GrpcHome* home, const ServerOptions& options,
                                                   Handlers handlers,
                                                   fault::Failpoints* failpoints);

// P10: where `options` let the server bind. InvalidArgument names both ways to open an address off
// loopback.
absl::StatusOr<std::string> ListenAddress(const ServerOptions& options);

}  // namespace evergrad::transport
