// Bytes in pieces, as they are received from the network and sent to it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/tensor/tensor.h"

namespace evergrad::transport {

// A received message, as views that are valid during the call that passes the message.
using MessageView = std::span<const std::span<const std::byte>>;

// Messages are combined up to this size, because each write has a cost.
inline constexpr std::uint64_t kWriteBytes = 64u << 10;

// A message to send. The owners live until the bytes of the message have left the process.
using OutgoingPieces = std::vector<tensor::SharedBytes>;

}  // namespace evergrad::transport
