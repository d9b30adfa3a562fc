// A transport within one process. It has the same contract as the gRPC transport, and limits
// senders with the same credits. The servers and channels of one InprocTransport find each other by
// address.
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
