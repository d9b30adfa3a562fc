// Reads the consecutive messages of a data stream from one received buffer. Pure, not thread-safe.
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
  explicit MessageReader(MessageView bytes);  // `bytes` outlive the reader

  bool done() const { return left_ == 0; }
  // Returns the header of the next message, or InvalidArgument, which names the error.
  absl::StatusOr<wire::StreamHeader> Next();
  // Returns the header.bytes_behind() bytes that follow the header. The bytes are valid until the
  // next call of Next.
  MessageView payload() const { return payload_; }

 private:
  // Calls `use` with each span of the next `bytes` bytes. The buffer must have this number of bytes
  // left.
  template <class Use>
  void Advance(std::uint64_t bytes, Use use);

  const MessageView bytes_;
  std::size_t part_ = 0, offset_ = 0;
  std::uint64_t left_ = 0;
  absl::InlinedVector<std::span<const std::byte>, 4> payload_;
};

// Copies all of `payload` to `out`, which must be large enough.
void CopyPayload(MessageView payload, std::byte* out);
// Like CopyPayload, but bypasses the caches (if the CPU can), for data that is read much later.
void StreamPayload(MessageView payload, std::byte* out);

}  // namespace evergrad::transport
