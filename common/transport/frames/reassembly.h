// One frame, assembled from its pieces with one allocation and one copy. Pure, not thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/tensor/tensor.h"
#include "common/transport/frames/buffer_pool.h"
#include "common/transport/pieces.h"
#include "common/wire/stream_message.h"

namespace evergrad::transport {

// Frames of at least this size are copied with stores that bypass the caches. A cache would not
// keep the frame until it is read, and would load each line only to overwrite it. The gain is large
// for frames of 16 MiB, small for 8 MiB, and zero for 4 MiB (DECISIONS.md, "Under TLS").
inline constexpr std::uint64_t kStreamedBytesMin = 16u << 20;

class Reassembly {
 public:
  // Allocates nothing before the first piece, and then at most `frame_bytes_max` (the granted or
  // requested size) from `pool`, or from the heap if it is nullptr. The pool outlives the frame.
  explicit Reassembly(std::uint64_t frame_bytes_max = 0, BufferPool* pool = nullptr)
      : frame_bytes_max_(frame_bytes_max), pool_(pool) {}

  // Copies `payload`, which has header.bytes bytes. Returns InvalidArgument for a gap, a repeated
  // piece, a frame that changes its size, or more bytes than allowed. After an error nothing has
  // been copied, and the caller must end the stream.
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
