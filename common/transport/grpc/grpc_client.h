// The client side over gRPC: channels, unary calls, links. Private to the room.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/fault/failpoints.h"
#include "common/transport/frames/buffer_pool.h"
#include "common/transport/grpc/grpc_loop.h"
#include "common/transport/tls/tls_watches.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

absl::StatusOr<std::unique_ptr<Channel>> DialGrpc(std::shared_ptr<GrpcLoop> loop,
                                                  std::shared_ptr<BufferPool> pool,
                                                  TlsWatches* watches, const Address& address,
                                                  const ChannelOptions& options,
                                                  fault::Failpoints* failpoints);

}  // namespace evergrad::transport
