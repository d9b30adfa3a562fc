// Bytes in pieces: as they come from the network, and as they leave for it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/tensor/tensor.h"

namespace evergrad::transport {

// A received message: views that live for the duration of the call they are passed to.
using MessageView = std::span<const std::span<const std::byte>>;

// Messages are put together until this much leaves in one write: small ones cost a write each
// otherwise.
inline constexpr std::uint64_t kWriteBytes = 64u << 10;

// A message to send. The owners live until its bytes have left the process.
using OutgoingPieces = std::vector<tensor::SharedBytes>;

}  // namespace evergrad::transport
