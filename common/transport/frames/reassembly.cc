#include "common/transport/frames/reassembly.h"

#include "absl/strings/str_cat.h"
#include "common/transport/frames/message_reader.h"

namespace evergrad::transport {

absl::Status Reassembly::Add(const wire::StreamHeader& header, MessageView payload) {
  if (!started_) {
    if (header.frame_bytes > frame_bytes_max_) {
      return absl::InvalidArgumentError(
          absl::StrCat("the frame is larger than allowed: request=", header.request_id,
                       " frame_bytes=", header.frame_bytes, " max=", frame_bytes_max_));
    }
  } else if (header.frame_bytes != frame_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("two pieces of a frame name different sizes: request=", header.request_id,
                     " frame_bytes=", header.frame_bytes, " want=", frame_bytes_));
  }
  if (header.offset != received_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece is out of order: request=", header.request_id,
                     " offset=", header.offset, " want=", received_));
  }
  if (header.bytes == 0 && header.frame_bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece is empty: request=", header.request_id, " offset=", header.offset));
  }
  if (!started_) {
    started_ = true;
    frame_bytes_ = header.frame_bytes;
    buffer_ = pool_ == nullptr ? tensor::AlignedBuffer(frame_bytes_) : pool_->Take(frame_bytes_);
  }
  // DecodeStreamHeader has checked that the piece ends inside the frame.
  (frame_bytes_ < kStreamedBytesMin ? CopyPayload : StreamPayload)(payload,
                                                                   buffer_.data() + received_);
  received_ += header.bytes;
  return absl::OkStatus();
}

}  // namespace evergrad::transport
