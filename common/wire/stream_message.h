// The messages of a data stream: a fixed 64-byte header and `bytes` of payload, which follows the
// header or is in a lane (FORMAT.md). Pure.
//
//   client      server
//      <- HELLO           the server's limits; nothing is sent before it
//   ANNOUNCE ->           a request above kUngrantedBytesMax will follow
//      <- GRANT           its bytes and those of its answer are reserved
//   REQUEST… ->           pieces in rising order, interleaved with other requests
//      <- ANSWER… | ERROR pieces of the answer, or a status
//   CANCEL   ->           the client has abandoned the request
//   PING  <-> PONG        either side checks whether the peer is alive
//   LANE  <-> LANE        memory that both may map: offered, then accepted or refused
//   RING_SPACE <-> RING_SPACE  the lane has the space for which the peer has waited
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
  kRingSpace = 11,
};
const char* MessageKindName(MessageKind kind);

inline constexpr std::size_t kStreamHeaderBytes = 64;
inline constexpr std::uint32_t kStreamMagic = 0x31534745;  // "EGS1"
inline constexpr std::uint16_t kStreamVersion = 3;
// A request needs no grant if it has at most this size together with its answer.
inline constexpr std::uint64_t kUngrantedBytesMax = 64u << 10;
// Largest payload of one message; a receiver refuses a larger one.
inline constexpr std::uint64_t kMessagePayloadBytesMax = 1u << 20;
// Bytes that an answer may have for its header beyond response_bytes_max.
inline constexpr std::uint64_t kAnswerHeaderBytesMax = 64u << 10;
// Largest payload of an ERROR: one serialized ErrorDetail.
inline constexpr std::uint64_t kErrorBytesMax = 4u << 10;
// Flag of REQUEST and ANSWER: the payload is in the lane, in the order of the messages, and does
// not follow the header.
inline constexpr std::uint8_t kInLane = 1;

struct StreamHeader {
  MessageKind kind = MessageKind::kPing;
  std::uint8_t flags = 0;  // kInLane
  // The id of the request, which the client chooses freely. The id is 0 only in HELLO, PING, PONG,
  // LANE and RING_SPACE.
  std::uint64_t request_id = 0;
  // Size of the whole request or answer; in a HELLO, the largest accepted size.
  std::uint64_t frame_bytes = 0;
  // Offset of this piece in the frame; in a HELLO, the largest accepted ring of a lane, 0 for none.
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // payload of this message, after the header or in the lane
  // In ANNOUNCE and REQUEST, the largest payload of the answer; in a HELLO, the limit of the small
  // requests of one peer in bytes.
  std::uint64_t response_bytes_max = 0;
  bool in_lane() const { return (flags & kInLane) != 0; }
  // Returns the number of bytes that follow the header in the stream.
  std::uint64_t bytes_behind() const { return in_lane() ? 0 : bytes; }
  friend bool operator==(const StreamHeader&, const StreamHeader&) = default;
};

std::array<std::byte, kStreamHeaderBytes> EncodeStreamHeader(const StreamHeader& header);

// Decodes a header. `available` is the number of bytes of the gRPC message from this header on; the
// bytes after this message belong to the next messages. The error InvalidArgument names the field:
// magic, version, kind, flags, reserved bytes, more payload than available, a piece outside of its
// frame, a payload for a kind without one, a missing id.
absl::StatusOr<StreamHeader> DecodeStreamHeader(std::span<const std::byte, kStreamHeaderBytes> in,
                                                std::uint64_t available);

// The payload of a client's LANE: the place of the memory, for the server. A server's LANE has no
// payload if the server accepts; otherwise its payload is the reason for the refusal.
struct LaneOffer {
  std::array<std::byte, 16> boot_id{};  // boot id of the running kernel, which identifies the host
  std::uint64_t pid_namespace = 0;      // the namespace of `pid`
  std::uint64_t pid = 0;
  std::uint64_t fd = 0;               // descriptor of the memory in that process
  std::uint64_t ring_bytes = 0;       // size of each direction's ring
  std::array<std::byte, 16> nonce{};  // random bytes, which the memory contains, too
  friend bool operator==(const LaneOffer&, const LaneOffer&) = default;
};
inline constexpr std::size_t kLaneOfferBytes = 64;
std::array<std::byte, kLaneOfferBytes> EncodeLaneOffer(const LaneOffer& offer);
LaneOffer DecodeLaneOffer(std::span<const std::byte, kLaneOfferBytes> in);

// The size of the control block at the beginning of a lane's memory. It contains kLaneMagic, the
// nonce, and the four numbers that client and server exchange, each on its own cache line. The two
// rings follow: first the client's, then the server's.
inline constexpr std::size_t kLaneControlBytes = 4096;
inline constexpr std::uint64_t kLaneMagic = 0x31304c4745;  // "EGL01"
inline constexpr std::size_t kLaneNonceAt = 16;
// Returns the place of the number of bytes that the reader of this ring has taken.
constexpr std::size_t LaneTakenAt(int ring) { return 64 + 128 * static_cast<std::size_t>(ring); }
// Returns the place of the number of bytes for which the writer of this ring waits. The number is 0
// if the writer does not wait.
constexpr std::size_t LaneWakeAt(int ring) { return 128 + 128 * static_cast<std::size_t>(ring); }
// Pieces begin at multiples of this number in a ring.
inline constexpr std::uint64_t kLaneAlignment = 64;

}  // namespace evergrad::wire
