// The server side over gRPC. Private to the room.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/fault/failpoints.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

absl::StatusOr<std::unique_ptr<Server>> ListenGrpc(const ServerOptions& options, Handlers handlers, fault::Failpoints* failpoints);

// P10: where `options` let the server bind. InvalidArgument names both ways to open an address off loopback.
absl::StatusOr<std::string> ListenAddress(const ServerOptions& options);

}  // namespace evergrad::transport
