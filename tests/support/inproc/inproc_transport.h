// The in-process transport: the same contract and credits, without gRPC. Servers and channels of
// one InprocTransport find each other by address.
#pragma once

#include <memory>

#include "common/fault/failpoints.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

// Callbacks run on one thread of the transport. `failpoints` may be null.
std::unique_ptr<Transport> MakeInprocTransport(fault::Failpoints* failpoints);

}  // namespace evergrad::transport
