// The messages of a data stream: a fixed 64-byte header, then `bytes` of payload (FORMAT.md). Pure.
//
//   client                         server
//            <- HELLO                        its limits; nothing is sent before it
//   ANNOUNCE ->                              a request above kUngrantedBytesMax will come
//            <- GRANT                        its bytes, and those of its answer, are reserved
//   REQUEST… ->                              pieces in rising order, interleaved with other requests
//            <- ANSWER… | ERROR              pieces of the answer, or a status
//   CANCEL   ->                              the client has given the request up
//   PING <-> PONG                            either side: is the peer alive?
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace evergrad::wire {

enum class MessageKind : std::uint8_t {
  kHello = 1,
  kAnnounce = 2,
  kGrant = 3,
  kRequest = 4,
  kAnswer = 5,
  kError = 6,
  kCancel = 7,
  kPing = 8,
  kPong = 9,
};
const char* MessageKindName(MessageKind kind);

inline constexpr std::size_t kStreamHeaderBytes = 64;
inline constexpr std::uint32_t kStreamMagic = 0x31534745;  // "EGS1"
inline constexpr std::uint16_t kStreamVersion = 1;
// Request and answer together up to this need no grant.
inline constexpr std::uint64_t kUngrantedBytesMax = 64u << 10;
// Payload of one message; a receiver refuses more.
inline constexpr std::uint64_t kMessagePayloadBytesMax = 1u << 20;
// Room that an answer has for its header beyond response_bytes_max.
inline constexpr std::uint64_t kAnswerHeaderBytesMax = 64u << 10;
// An ERROR's payload: one serialized ErrorDetail.
inline constexpr std::uint64_t kErrorBytesMax = 4u << 10;

struct StreamHeader {
  MessageKind kind = MessageKind::kPing;
  std::uint8_t flags = 0;                // None is defined: must be 0.
  std::uint64_t request_id = 0;          // Chosen by the client, rising, never 0 but for HELLO, PING, PONG.
  std::uint64_t frame_bytes = 0;         // The whole request or answer. HELLO: the largest one taken.
  std::uint64_t offset = 0;              // Of this piece in the frame.
  std::uint64_t bytes = 0;               // Payload that follows this header, in this message.
  std::uint64_t response_bytes_max = 0;  // ANNOUNCE, REQUEST: payload that the answer may have. HELLO: small bytes of one peer.
  friend bool operator==(const StreamHeader&, const StreamHeader&) = default;
};

std::array<std::byte, kStreamHeaderBytes> EncodeStreamHeader(const StreamHeader& header);

// `message_bytes` is the size of the whole message. InvalidArgument names the field: magic, version, kind, flags, reserved
// bytes, bytes != message_bytes - 64, a piece that leaves its frame, a payload where the kind has none, a missing id.
absl::StatusOr<StreamHeader> DecodeStreamHeader(std::span<const std::byte, kStreamHeaderBytes> in, std::uint64_t message_bytes);

}  // namespace evergrad::wire
