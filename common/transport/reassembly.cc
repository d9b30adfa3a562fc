#include "common/transport/reassembly.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace evergrad::transport {

absl::Status Reassembly::Add(const wire::StreamHeader& header, MessageView message) {
  if (!started_) {
    if (header.frame_bytes > frame_bytes_max_) {
      return absl::InvalidArgumentError(
          absl::StrCat("frame larger than allowed: request=", header.request_id, " frame_bytes=", header.frame_bytes, " max=", frame_bytes_max_));
    }
  } else if (header.frame_bytes != frame_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame changed its size: request=", header.request_id, " frame_bytes=", header.frame_bytes, " want=", frame_bytes_));
  }
  if (header.offset != received_) {
    return absl::InvalidArgumentError(
        absl::StrCat("piece out of order: request=", header.request_id, " offset=", header.offset, " want=", received_));
  }
  if (header.bytes == 0 && header.frame_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("empty piece: request=", header.request_id, " offset=", header.offset));
  }
  if (!started_) {
    started_ = true;
    frame_bytes_ = header.frame_bytes;
    buffer_ = pool_ == nullptr ? tensor::AlignedBuffer(frame_bytes_) : pool_->Take(frame_bytes_);
  }
  // DecodeStreamHeader has checked that the piece ends inside the frame.
  CopyPayload(message, buffer_.data() + received_);
  received_ += header.bytes;
  return absl::OkStatus();
}

absl::StatusOr<wire::StreamHeader> ReadStreamHeader(MessageView message) {
  std::array<std::byte, wire::kStreamHeaderBytes> bytes;
  std::uint64_t total = 0, copied = 0;
  for (const auto& part : message) {
    const std::size_t n = std::min<std::size_t>(part.size(), bytes.size() - copied);
    if (n > 0) std::memcpy(bytes.data() + copied, part.data(), n);
    copied += n;
    total += part.size();
  }
  if (copied < bytes.size()) {
    return absl::InvalidArgumentError(absl::StrCat("malformed stream message: shorter than its header: bytes=", total, " want>=", bytes.size()));
  }
  return wire::DecodeStreamHeader(bytes, total);
}

void CopyPayload(MessageView message, std::byte* out) {
  std::size_t skip = wire::kStreamHeaderBytes;
  for (const auto& part : message) {
    const std::size_t skipped = std::min(skip, part.size());
    skip -= skipped;
    const std::size_t n = part.size() - skipped;
    if (n == 0) continue;
    std::memcpy(out, part.data() + skipped, n);
    out += n;
  }
}

}  // namespace evergrad::transport
