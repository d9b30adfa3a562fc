// The transport of real clusters. Hides gRPC: no gRPC header is included by this one.
#pragma once

#include <memory>

#include "common/fault/failpoints.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

// `failpoints` (may be null) outlives the transport: `session.cut`, `push.duplicate`,
// `push.reorder` act here.
std::unique_ptr<Transport> MakeGrpcTransport(fault::Failpoints* failpoints);

// Rule 10: mmap threshold 32 MiB, trim threshold 256 MiB, two arenas. Called once, first thing in
// main.
void TuneAllocator();

}  // namespace evergrad::transport
