// The transport of real clusters. Hides gRPC: this header includes no gRPC header.
#pragma once

#include <memory>

#include "common/fault/failpoints.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

// `failpoints` (may be null) outlives the transport. The failpoints `session.cut`, `push.duplicate`
// and `push.reorder` act here.
std::unique_ptr<Transport> MakeGrpcTransport(fault::Failpoints* failpoints);

// Applies rule 10: mmap threshold 32 MiB, trim threshold 256 MiB, two arenas. main calls it once,
// before anything else.
void TuneAllocator();

}  // namespace evergrad::transport
