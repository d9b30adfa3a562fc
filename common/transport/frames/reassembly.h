// One frame put together from its pieces: one allocation, one copy. Pure, not thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/tensor/tensor.h"
#include "common/transport/frames/buffer_pool.h"
#include "common/transport/pieces.h"
#include "common/wire/stream_message.h"

namespace evergrad::transport {

// A frame of at least this much is copied past the caches: they would keep nothing of it until it
// is read, and each line would be read from memory only to be overwritten. Frames of 16 MiB gain by
// it, of 8 MiB some, of 4 MiB none (DECISIONS.md, "Under TLS").
inline constexpr std::uint64_t kStreamedBytesMin = 16u << 20;

class Reassembly {
 public:
  // Nothing is allocated before the first piece, and then no more than `frame_bytes_max` (granted
  // or asked for). From `pool` (null: the heap), which outlives it.
  explicit Reassembly(std::uint64_t frame_bytes_max = 0, BufferPool* pool = nullptr)
      : frame_bytes_max_(frame_bytes_max), pool_(pool) {}

  // Copies `payload`, the header.bytes of `header`. InvalidArgument: a gap, a repeat, a frame that
  // grows, more than was allowed. Then nothing has been copied and the stream is to be ended.
  absl::Status Add(const wire::StreamHeader& header, MessageView payload);

  bool started() const { return started_; }
  bool complete() const { return started_ && received_ == frame_bytes_; }
  std::uint64_t frame_bytes() const { return frame_bytes_; }
  tensor::AlignedBuffer Take() { return std::move(buffer_); }

 private:
  std::uint64_t frame_bytes_max_;
  BufferPool* pool_;
  std::uint64_t frame_bytes_ = 0;
  std::uint64_t received_ = 0;
  bool started_ = false;
  tensor::AlignedBuffer buffer_;
};

}  // namespace evergrad::transport
