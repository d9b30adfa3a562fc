// The memory of a lane. The client creates the memory without a name, and the server finds it
// through /proc. The system frees the memory when both processes have ended or released it. Private
// to the room.
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
  std::shared_ptr<void> open;  // while this object exists, the server can find the memory
};

// Creates the client's end of a lane, with `ring_bytes` in each direction (a multiple of
// kLaneRingUnit). Returns Unavailable with the reason if the system does not support lanes.
absl::StatusOr<OfferedLane> OfferLane(std::uint64_t ring_bytes);

// Creates the server's end of a lane that a client offers. Rings above `ring_bytes_max` are
// refused. Returns FailedPrecondition with a text for the log if the memory is not usable (another
// host, another user, not sealed, not the offered memory, …). `on_gone` is called when the memory
// of an accepted lane has been released.
absl::StatusOr<std::unique_ptr<Lane>> TakeLane(const wire::LaneOffer& offer,
                                               std::uint64_t ring_bytes_max,
                                               std::function<void()> on_gone = nullptr);

}  // namespace evergrad::transport
