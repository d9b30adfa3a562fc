// The in-process transport: the same contract and credits, without gRPC. Servers and channels of
// one InprocTransport find each other by address.
#pragma once

#include <memory>

#include "common/fault/failpoints.h"
#include "common/health/health.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

// Callbacks run on one thread of the transport. `failpoints` and `health` may be null, as in
// MakeGrpcTransport.
std::unique_ptr<Transport> MakeInprocTransport(fault::Failpoints* failpoints,
                                               health::Health* health = nullptr);

}  // namespace evergrad::transport
