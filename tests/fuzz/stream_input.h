// Reads from an input the steps of the two targets for streams (client_stream and server_stream). A
// message is raw bytes, or a header whose fields the input chooses, so that the fuzzer need not
// find the magic number and the version.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "common/transport/lane/lane.h"
#include "common/transport/pieces.h"
#include "common/wire/stream_message.h"
#include "tests/fuzz/input.h"

namespace evergrad::fuzz {

enum class ServerStep { kBytes, kMessage, kTime, kSend, kAnswer, kFail, kLane, kOther };
inline constexpr std::size_t kServerSteps = 8;
enum class ClientStep {
  kBytes,
  kMessage,
  kTime,
  kSend,
  kCall,
  kAnnounce,
  kAbandon,
  kLinkDown,
  kLane
};
inline constexpr std::size_t kClientSteps = 9;

// Request ids have one byte, so that messages often have the same id. Sizes have 32 bits. `bytes`
// is the number of bytes that follow the header.
inline std::string HeaderAndPayload(Input& input) {
  wire::StreamHeader header;
  header.kind = static_cast<wire::MessageKind>(input.Number());
  header.flags = input.Number();
  header.request_id = input.Number();
  header.frame_bytes = input.Number<std::uint32_t>();
  header.offset = input.Number<std::uint32_t>();
  header.response_bytes_max = input.Number<std::uint32_t>();
  const absl::string_view payload = input.Piece();
  header.bytes = header.in_lane() ? input.Number<std::uint32_t>() : payload.size();
  const auto encoded = wire::EncodeStreamHeader(header);
  std::string message(reinterpret_cast<const char*>(encoded.data()), encoded.size());
  message.append(payload.data(), payload.size());
  return message;
}
inline void PutMessage(Output& output, const wire::StreamHeader& header, absl::string_view bytes) {
  output.Number(static_cast<std::uint8_t>(header.kind)).Number(header.flags);
  output.Number(static_cast<std::uint8_t>(header.request_id));
  output.Number(static_cast<std::uint32_t>(header.frame_bytes));
  output.Number(static_cast<std::uint32_t>(header.offset));
  output.Number(static_cast<std::uint32_t>(header.response_bytes_max)).Piece(bytes);
  if (header.in_lane()) output.Number(static_cast<std::uint32_t>(header.bytes));
}

// Returns `message` in up to three views, as the network may divide it.
inline std::vector<std::span<const std::byte>> Views(Input& input, const std::string& message) {
  std::vector<std::span<const std::byte>> views;
  std::span<const std::byte> left = BytesOf(message);
  for (int i = 0; i < 2; ++i) {
    const std::size_t first = std::min<std::size_t>(input.Number(), left.size());
    views.push_back(left.first(first));
    left = left.subspan(first);
  }
  views.push_back(left);
  return views;
}

// The shared memory of a lane. The input writes arbitrary numbers there, as a hostile peer could.
class LaneMemory {
 public:
  explicit LaneMemory(std::uint64_t ring_bytes)
      : bytes_(transport::LaneMemoryBytes(ring_bytes)),
        memory_(static_cast<std::byte*>(::operator new(bytes_, kLine)),
                [](std::byte* memory) { ::operator delete(memory, kLine); }) {
    std::fill_n(memory_.get(), bytes_, std::byte{0});
  }
  const std::shared_ptr<std::byte>& memory() const { return memory_; }
  void Write(Input& input) {
    const std::size_t at = input.Number<std::uint16_t>() % (bytes_ / 8) * 8;
    const auto value = input.Number<std::uint64_t>();
    std::memcpy(memory_.get() + at, &value, sizeof(value));
  }

 private:
  static constexpr std::align_val_t kLine{64};
  const std::size_t bytes_;
  const std::shared_ptr<std::byte> memory_;  // shared with the lane
};

}  // namespace evergrad::fuzz
