// The messages of a data stream that lie one behind another in what came from the network. Pure,
// not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "common/transport/pieces.h"
#include "common/wire/stream_message.h"

namespace evergrad::transport {

class MessageReader {
 public:
  explicit MessageReader(MessageView bytes);  // Lives as long as the reader.

  bool done() const { return left_ == 0; }
  // The header of the next message; InvalidArgument names what is wrong.
  absl::StatusOr<wire::StreamHeader> Next();
  // What follows it, header.bytes_behind(), until the next call of Next.
  MessageView payload() const { return payload_; }

 private:
  // Calls `use` with each span of the next `bytes`, which are there.
  template <class Use>
  void Advance(std::uint64_t bytes, Use use);

  const MessageView bytes_;
  std::size_t part_ = 0, offset_ = 0;
  std::uint64_t left_ = 0;
  absl::InlinedVector<std::span<const std::byte>, 4> payload_;
};

// Copies all of `payload` to `out`, which has the room.
void CopyPayload(MessageView payload, std::byte* out);
// The same past the caches (where the processor can), for what is written long before it is read.
void StreamPayload(MessageView payload, std::byte* out);

}  // namespace evergrad::transport
