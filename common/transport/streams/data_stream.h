// The client's DataStream over Links. The stream drives a ClientSession on the loop, and redials.
// Private to the room.
#pragma once

#include <memory>

#include "common/transport/frames/buffer_pool.h"
#include "common/transport/session/client_session.h"
#include "common/transport/streams/link.h"
#include "common/transport/streams/loop.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

// Answers are received into memory of `pool`, which the streams of a transport share.
std::unique_ptr<DataStream> MakeDataStream(std::shared_ptr<Loop> loop, LinkFactory open,
                                           std::shared_ptr<BufferPool> pool,
                                           const ChannelOptions& options);

// The limit of answers in memory at once on a transport's client side, for its BufferPool.
inline constexpr std::uint64_t kClientPoolBytesMax = 256u << 20;

}  // namespace evergrad::transport
