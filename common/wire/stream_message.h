// The messages of a data stream: a fixed 64-byte header, then `bytes` of payload, which may lie in
// a lane instead (FORMAT.md). Pure.
//
//   client                         server
//            <- HELLO                        its limits; nothing is sent before it
//   ANNOUNCE ->                              a request above kUngrantedBytesMax will come
//            <- GRANT                        its bytes, and those of its answer, are reserved
//   REQUEST… ->                              pieces in rising order, interleaved with other
//   requests
//            <- ANSWER… | ERROR              pieces of the answer, or a status
//   CANCEL   ->                              the client has given the request up
//   PING <-> PONG                            either side: is the peer alive?
//   LANE     -> <- LANE                      memory that both may map, offered and taken or refused
//   ROOM <-> ROOM                            a part of the lane that was waited for is free
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
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
  kLane = 10,
  kRoom = 11,
};
const char* MessageKindName(MessageKind kind);

inline constexpr std::size_t kStreamHeaderBytes = 64;
inline constexpr std::uint32_t kStreamMagic = 0x31534745;  // "EGS1"
inline constexpr std::uint16_t kStreamVersion = 3;
// Request and answer together up to this need no grant.
inline constexpr std::uint64_t kUngrantedBytesMax = 64u << 10;
// Payload of one message; a receiver refuses more.
inline constexpr std::uint64_t kMessagePayloadBytesMax = 1u << 20;
// Room that an answer has for its header beyond response_bytes_max.
inline constexpr std::uint64_t kAnswerHeaderBytesMax = 64u << 10;
// An ERROR's payload: one serialized ErrorDetail.
inline constexpr std::uint64_t kErrorBytesMax = 4u << 10;
// REQUEST, ANSWER: the payload lies in the lane, in the order of the messages; none follows the
// header.
inline constexpr std::uint8_t kInLane = 1;

struct StreamHeader {
  MessageKind kind = MessageKind::kPing;
  std::uint8_t flags = 0;  // kInLane.
  std::uint64_t request_id =
      0;  // Chosen by the client, in any order; never 0 but for HELLO, PING, PONG, LANE, ROOM.
  std::uint64_t frame_bytes = 0;  // The whole request or answer. HELLO: the largest one taken.
  std::uint64_t offset = 0;  // Of this piece in the frame. HELLO: the largest ring of a lane that
                             // is taken, 0 for none.
  std::uint64_t bytes = 0;   // Payload of this message, behind the header or in the lane.
  std::uint64_t response_bytes_max =
      0;  // ANNOUNCE, REQUEST: payload that the answer may have. HELLO: small bytes of one peer.
  bool in_lane() const { return (flags & kInLane) != 0; }
  // What follows the header in the stream.
  std::uint64_t bytes_behind() const { return in_lane() ? 0 : bytes; }
  friend bool operator==(const StreamHeader&, const StreamHeader&) = default;
};

std::array<std::byte, kStreamHeaderBytes> EncodeStreamHeader(const StreamHeader& header);

// `available`: bytes of the gRPC message from this header on; what is behind this message belongs
// to the next ones. InvalidArgument names the field: magic, version, kind, flags, reserved bytes,
// more payload than is there, a piece that leaves its frame, a payload where the kind has none, a
// missing id.
absl::StatusOr<StreamHeader> DecodeStreamHeader(std::span<const std::byte, kStreamHeaderBytes> in,
                                                std::uint64_t available);

// The payload of a client's LANE: where the server finds the memory. A server's LANE has none when
// it takes it, else why not (text).
struct LaneOffer {
  std::array<std::byte, 16> boot_id{};  // Of the running kernel: nothing else is the same host.
  std::uint64_t pid_namespace = 0;      // In which `pid` is meant.
  std::uint64_t pid = 0;
  std::uint64_t fd = 0;               // Of that process: the memory.
  std::uint64_t ring_bytes = 0;       // Of each direction.
  std::array<std::byte, 16> nonce{};  // Random, and in the memory as well.
  friend bool operator==(const LaneOffer&, const LaneOffer&) = default;
};
inline constexpr std::size_t kLaneOfferBytes = 64;
std::array<std::byte, kLaneOfferBytes> EncodeLaneOffer(const LaneOffer& offer);
LaneOffer DecodeLaneOffer(std::span<const std::byte, kLaneOfferBytes> in);

// The beginning of the memory: who it is for, and the four numbers that cross it, each on a cache
// line of its own. Then the rings: the client's, the server's.
inline constexpr std::size_t kLaneControlBytes = 4096;
inline constexpr std::uint64_t kLaneMagic = 0x31304c4745;  // "EGL01"
inline constexpr std::size_t kLaneNonceAt = 16;
constexpr std::size_t LaneTakenAt(int ring) {
  return 64 + 128 * static_cast<std::size_t>(ring);
}  // Bytes that its reader has taken.
constexpr std::size_t LaneWakeAt(int ring) {
  return 128 + 128 * static_cast<std::size_t>(ring);
}  // Its writer waits for so many; 0: not.
// Pieces begin at multiples of this in a ring.
inline constexpr std::uint64_t kLaneAlignment = 64;

}  // namespace evergrad::wire
