// The client's DataStream over Links: drives a ClientSession on the loop and redials. Private to the room.
#pragma once

#include <memory>

#include "common/transport/client_session.h"
#include "common/transport/link.h"
#include "common/transport/loop.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

std::unique_ptr<DataStream> MakeDataStream(std::shared_ptr<Loop> loop, LinkFactory open, const ChannelOptions& options);

}  // namespace evergrad::transport
