// Where the memory of a lane comes from: the client makes it without a name, the server finds it
// through /proc, and it is gone with the last of the two, however they end. Private to the room.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/transport/lane/lane.h"
#include "common/wire/stream_message.h"

namespace evergrad::transport {

struct OfferedLane {
  wire::LaneOffer offer;
  std::unique_ptr<Lane> lane;
  std::shared_ptr<void> open;  // While it lives the server can find the memory.
};

// A client's end, `ring_bytes` each way (a multiple of kLaneRingUnit). Unavailable: this system
// cannot, and why.
absl::StatusOr<OfferedLane> OfferLane(std::uint64_t ring_bytes);

// A server's end of what a client offers. `ring_bytes_max`: larger ones are refused.
// FailedPrecondition: it is not to be had (another host, another user, not sealed, not the memory
// that the offer is about, …), in words for a log. `on_gone`: when the memory of a lane that was
// taken has been given back.
absl::StatusOr<std::unique_ptr<Lane>> TakeLane(const wire::LaneOffer& offer,
                                               std::uint64_t ring_bytes_max,
                                               std::function<void()> on_gone = nullptr);

}  // namespace evergrad::transport
