// The transport of real clusters. Hides gRPC: this header includes no gRPC header.
#pragma once

#include <memory>

#include "common/fault/failpoints.h"
#include "common/health/health.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

// `failpoints` and `health` outlive the transport; both may be null. The failpoints `session.cut`,
// `push.duplicate` and `push.reorder` act here. With `health`, the liveness watches the loop of the
// transport, and the servers answer the gRPC health protocol (health_protocol.h) from `health`.
// Without `health`, the servers answer that the process is live and ready.
std::unique_ptr<Transport> MakeGrpcTransport(fault::Failpoints* failpoints,
                                             health::Health* health = nullptr);

// Applies rule 10: mmap threshold 32 MiB, trim threshold 256 MiB, two arenas. main calls it once,
// before anything else.
void TuneAllocator();

}  // namespace evergrad::transport
