#include "common/wire/stream_message.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"

namespace evergrad::wire {
namespace {

// Stores `value` in little-endian order, whatever the byte order of the machine is.
template <class T>
void Store(T value, std::byte* out) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out[i] = std::byte(static_cast<std::uint64_t>(value) >> (8 * i));
}
template <class T>
T Load(const std::byte* in) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= std::to_integer<std::uint64_t>(in[i]) << (8 * i);
  return static_cast<T>(value);
}

constexpr std::size_t kReservedAt = 48;

bool IsPiece(MessageKind kind) {
  return kind == MessageKind::kRequest || kind == MessageKind::kAnswer;
}
bool HasPayload(MessageKind kind) {
  return IsPiece(kind) || kind == MessageKind::kError || kind == MessageKind::kLane;
}
bool HasRequest(MessageKind kind) {
  switch (kind) {
    case MessageKind::kHello:
    case MessageKind::kPing:
    case MessageKind::kPong:
    case MessageKind::kLane:
    case MessageKind::kRingSpace: return false;
    default: return true;
  }
}

}  // namespace

const char* MessageKindName(MessageKind kind) {
  switch (kind) {
    case MessageKind::kHello: return "HELLO";
    case MessageKind::kAnnounce: return "ANNOUNCE";
    case MessageKind::kGrant: return "GRANT";
    case MessageKind::kRequest: return "REQUEST";
    case MessageKind::kAnswer: return "ANSWER";
    case MessageKind::kError: return "ERROR";
    case MessageKind::kCancel: return "CANCEL";
    case MessageKind::kPing: return "PING";
    case MessageKind::kPong: return "PONG";
    case MessageKind::kLane: return "LANE";
    case MessageKind::kRingSpace: return "RING_SPACE";
  }
  return "unknown";
}

std::array<std::byte, kStreamHeaderBytes> EncodeStreamHeader(const StreamHeader& header) {
  std::array<std::byte, kStreamHeaderBytes> out{};
  Store(kStreamMagic, &out[0]);
  Store(kStreamVersion, &out[4]);
  out[6] = std::byte(header.kind);
  out[7] = std::byte(header.flags);
  Store(header.request_id, &out[8]);
  Store(header.frame_bytes, &out[16]);
  Store(header.offset, &out[24]);
  Store(header.bytes, &out[32]);
  Store(header.response_bytes_max, &out[40]);
  return out;
}

absl::StatusOr<StreamHeader> DecodeStreamHeader(std::span<const std::byte, kStreamHeaderBytes> in,
                                                std::uint64_t available) {
  const auto malformed = [](absl::string_view what, std::uint64_t got, std::uint64_t want) {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed stream message: ", what, " got=", got, " want=", want));
  };
  if (const auto magic = Load<std::uint32_t>(&in[0]); magic != kStreamMagic)
    return malformed("magic at 0", magic, kStreamMagic);
  if (const auto version = Load<std::uint16_t>(&in[4]); version != kStreamVersion)
    return malformed("version at 4", version, kStreamVersion);
  StreamHeader header;
  const auto kind = std::to_integer<std::uint8_t>(in[6]);
  if (kind < 1 || kind > static_cast<std::uint8_t>(MessageKind::kRingSpace))
    return malformed("kind at 6", kind, 1);
  header.kind = static_cast<MessageKind>(kind);
  header.flags = std::to_integer<std::uint8_t>(in[7]);
  if (header.flags != 0 && !(header.flags == kInLane && IsPiece(header.kind)))
    return malformed("flags at 7", header.flags, 0);
  header.request_id = Load<std::uint64_t>(&in[8]);
  header.frame_bytes = Load<std::uint64_t>(&in[16]);
  header.offset = Load<std::uint64_t>(&in[24]);
  header.bytes = Load<std::uint64_t>(&in[32]);
  header.response_bytes_max = Load<std::uint64_t>(&in[40]);
  for (std::size_t i = kReservedAt; i < kStreamHeaderBytes; ++i) {
    if (in[i] != std::byte{0})
      return malformed(absl::StrCat("reserved byte at ", i), std::to_integer<std::uint64_t>(in[i]),
                       0);
  }
  if (available < kStreamHeaderBytes || header.bytes_behind() > available - kStreamHeaderBytes) {
    return malformed("bytes at 32", header.bytes, available - kStreamHeaderBytes);
  }
  if (header.bytes > kMessagePayloadBytesMax)
    return malformed("bytes at 32 above the limit", header.bytes, kMessagePayloadBytesMax);
  if (!HasPayload(header.kind) && header.bytes != 0)
    return malformed(absl::StrCat("payload of ", MessageKindName(header.kind)), header.bytes, 0);
  if (!IsPiece(header.kind) && header.bytes > kErrorBytesMax) {
    return malformed(absl::StrCat("bytes of ", MessageKindName(header.kind)), header.bytes,
                     kErrorBytesMax);
  }
  if (header.in_lane() && header.bytes == 0) return malformed("bytes in the lane", 0, 1);
  if (HasRequest(header.kind) != (header.request_id != 0)) {
    return malformed(absl::StrCat("request id at 8 of ", MessageKindName(header.kind)),
                     header.request_id, HasRequest(header.kind) ? 1 : 0);
  }
  const auto end = CheckedAdd(header.offset, header.bytes);
  if (HasPayload(header.kind) && (!end || *end > header.frame_bytes))
    return malformed("end of the piece", end.value_or(0), header.frame_bytes);
  return header;
}

std::array<std::byte, kLaneOfferBytes> EncodeLaneOffer(const LaneOffer& offer) {
  std::array<std::byte, kLaneOfferBytes> out{};
  std::copy(offer.boot_id.begin(), offer.boot_id.end(), out.begin());
  Store(offer.pid_namespace, &out[16]);
  Store(offer.pid, &out[24]);
  Store(offer.fd, &out[32]);
  Store(offer.ring_bytes, &out[40]);
  std::copy(offer.nonce.begin(), offer.nonce.end(), out.begin() + 48);
  return out;
}

LaneOffer DecodeLaneOffer(std::span<const std::byte, kLaneOfferBytes> in) {
  LaneOffer offer;
  std::copy_n(in.begin(), offer.boot_id.size(), offer.boot_id.begin());
  offer.pid_namespace = Load<std::uint64_t>(&in[16]);
  offer.pid = Load<std::uint64_t>(&in[24]);
  offer.fd = Load<std::uint64_t>(&in[32]);
  offer.ring_bytes = Load<std::uint64_t>(&in[40]);
  std::copy_n(in.begin() + 48, offer.nonce.size(), offer.nonce.begin());
  return offer;
}

}  // namespace evergrad::wire
