#include "common/transport/frames/message_reader.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace evergrad::transport {

MessageReader::MessageReader(MessageView bytes) : bytes_(bytes) {
  for (const auto& part : bytes_) left_ += part.size();
}

template <class Use>
void MessageReader::Advance(std::uint64_t bytes, Use use) {
  left_ -= bytes;
  while (bytes > 0) {
    const auto& part = bytes_[part_];
    const std::size_t n = std::min<std::uint64_t>(bytes, part.size() - offset_);
    if (n > 0) use(part.subspan(offset_, n));
    bytes -= n;
    offset_ += n;
    if (offset_ == part.size()) {
      ++part_;
      offset_ = 0;
    }
  }
}

absl::StatusOr<wire::StreamHeader> MessageReader::Next() {
  payload_.clear();
  const std::uint64_t available = left_;
  std::array<std::byte, wire::kStreamHeaderBytes> bytes;
  if (available < bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed stream message: shorter than its header: bytes=", available,
                     " want>=", bytes.size()));
  }
  std::byte* out = bytes.data();
  Advance(bytes.size(), [&out](std::span<const std::byte> part) {
    std::memcpy(out, part.data(), part.size());
    out += part.size();
  });
  auto header = wire::DecodeStreamHeader(bytes, available);
  if (header.ok())
    Advance(header->bytes_behind(),
            [this](std::span<const std::byte> part) { payload_.push_back(part); });
  return header;
}

void CopyPayload(MessageView payload, std::byte* out) {
  for (const auto& part : payload) {
    if (part.empty()) continue;
    std::memcpy(out, part.data(), part.size());
    out += part.size();
  }
}

void StreamPayload(MessageView payload, std::byte* out) {
#ifdef __SSE2__
  constexpr std::size_t kLine = 64;
  for (const auto& part : payload) {
    if (part.empty()) continue;
    const std::byte* from = part.data();
    const std::byte* const end = from + part.size();
    // Copies whole cache lines with stores that bypass the caches, and the ends with memcpy.
    const std::size_t head =
        std::min<std::size_t>(part.size(), -reinterpret_cast<std::uintptr_t>(out) % kLine);
    std::memcpy(out, from, head);
    out += head;
    from += head;
    for (; end - from >= static_cast<std::ptrdiff_t>(kLine); from += kLine, out += kLine) {
      __m128i line[4];
      std::memcpy(line, from, kLine);
      for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(out) + i, line[i]);
    }
    const auto tail = static_cast<std::size_t>(end - from);
    std::memcpy(out, from, tail);
    out += tail;
  }
  // Stores that bypass the caches are not ordered with other stores. The fence precedes any store
  // that announces the frame to another thread.
  _mm_sfence();
#else
  CopyPayload(payload, out);
#endif
}

}  // namespace evergrad::transport
