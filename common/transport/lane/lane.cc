#include "common/transport/lane/lane.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/checked_math.h"
#include "common/base/text.h"

namespace evergrad::transport {
namespace {

std::uint64_t InRing(std::uint64_t bytes) { return RoundUp(bytes, wire::kLaneAlignment); }

// Another process reads and writes these numbers.
std::atomic_ref<std::uint64_t> Shared(std::uint64_t* number) {
  return std::atomic_ref<std::uint64_t>(*number);
}

// ThreadSanitizer does not support fences. ThreadSanitizer could check nothing here in any case,
// because the two sides map the memory at different addresses.
void Fence([[maybe_unused]] std::memory_order order) {
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(order);
#endif
}

}  // namespace

absl::Status CheckLaneOption(std::uint64_t ring_bytes) {
  if (ring_bytes % kLaneRingUnit == 0 && ring_bytes <= kLaneRingBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("lane_ring_bytes is not a multiple of ",
                                                 kLaneRingUnit, " up to ", kLaneRingBytesMax,
                                                 ": got=", ring_bytes));
}

Lane::Lane(std::shared_ptr<std::byte> memory, std::uint64_t ring_bytes, Side side)
    : memory_(std::move(memory)),
      ring_bytes_(ring_bytes),
      piece_bytes_max_(std::min(ring_bytes / 4, wire::kMessagePayloadBytesMax)),
      out_(side == Side::kClient ? 0 : 1),
      in_(1 - out_),
      out_ring_(memory_.get() + wire::kLaneControlBytes +
                static_cast<std::uint64_t>(out_) * ring_bytes),
      in_ring_(memory_.get() + wire::kLaneControlBytes +
               static_cast<std::uint64_t>(in_) * ring_bytes) {
  EG_CHECK(ring_bytes > 0 && ring_bytes % kLaneRingUnit == 0 && ring_bytes <= kLaneRingBytesMax);
}

absl::StatusOr<bool> Lane::HasRoom(std::uint64_t bytes) {
  const std::uint64_t need = InRing(bytes);
  const auto taken_ref = Shared(Number(wire::LaneTakenAt(out_)));
  const auto wake_ref = Shared(Number(wire::LaneWakeAt(out_)));
  for (const bool again : {false, true}) {
    // The writer stores its request for a wake-up and then reads the number of taken bytes. The
    // reader stores the number of taken bytes and then reads the request. All these accesses are
    // sequentially consistent. Therefore either the writer sees the space, or the reader sees the
    // request.
    const std::uint64_t taken = taken_ref.load(std::memory_order_seq_cst);
    if (taken > written_ || taken < peer_taken_) {
      return absl::InvalidArgumentError(
          absl::StrCat("the lane's reader has a wrong number of taken bytes: taken=", taken,
                       " before=", peer_taken_, " written=", written_));
    }
    peer_taken_ = taken;
    if (need <= ring_bytes_ - (written_ - taken)) {
      if (std::exchange(asked_, false)) wake_ref.store(0, std::memory_order_relaxed);
      return true;
    }
    // The writer asks to be woken only when half of the ring is free, because a wake-up costs more
    // than copying a piece.
    if (again) break;
    asked_ = true;
    wake_ref.store(written_ - std::min(ring_bytes_ - need, ring_bytes_ / 2),
                   std::memory_order_seq_cst);
  }
  return false;
}

void Lane::Write(std::span<const tensor::SharedBytes> pieces) {
  std::uint64_t at = written_ % ring_bytes_, bytes = 0;
  for (const auto& piece : pieces) {
    const std::uint64_t first = std::min<std::uint64_t>(piece.bytes.size(), ring_bytes_ - at);
    if (first > 0) std::memcpy(out_ring_ + at, piece.bytes.data(), first);
    if (first < piece.bytes.size())
      std::memcpy(out_ring_, piece.bytes.data() + first, piece.bytes.size() - first);
    at = (at + piece.bytes.size()) % ring_bytes_;
    bytes += piece.bytes.size();
  }
  written_ += InRing(bytes);
  // The peer learns of these bytes from a message header, which is sent through the stream
  // afterwards. The system call that sends the header orders the memory accesses.
  Fence(std::memory_order_release);
}

absl::StatusOr<MessageView> Lane::Read(std::uint64_t bytes) {
  if (bytes > ring_bytes_)
    return absl::InvalidArgumentError(absl::StrCat(
        "the piece is larger than the lane: bytes=", bytes, " ring_bytes=", ring_bytes_));
  Fence(std::memory_order_acquire);
  const std::uint64_t at = taken_ % ring_bytes_;
  const std::uint64_t first = std::min(bytes, ring_bytes_ - at);
  views_ = {std::span(in_ring_ + at, first), std::span(in_ring_, bytes - first)};
  return MessageView(views_.data(), first < bytes ? 2 : 1);
}

bool Lane::Release(std::uint64_t bytes) {
  taken_ += InRing(bytes);
  Shared(Number(wire::LaneTakenAt(in_))).store(taken_, std::memory_order_seq_cst);
  const auto wake_ref = Shared(Number(wire::LaneWakeAt(in_)));
  const std::uint64_t wake = wake_ref.load(std::memory_order_seq_cst);
  if (wake == 0 || wake > taken_) return false;
  // If the peer sets the request again meanwhile, the peer checks for space again when it is
  // informed.
  wake_ref.store(0, std::memory_order_relaxed);
  return true;
}

// ------------------------------------------------------------------------------------------------

absl::Status LanePort::OnOffer(const wire::StreamHeader& header, MessageView payload,
                               const TakeLane& take, Outbox& outbox) {
  if (std::exchange(offer_seen_, true)) return absl::InvalidArgumentError("duplicate lane offer");
  std::array<std::byte, wire::kLaneOfferBytes> bytes;
  if (header.bytes != bytes.size())
    return absl::InvalidArgumentError(
        absl::StrCat("malformed lane offer: bytes=", header.bytes, " want=", bytes.size()));
  CopyPayload(payload, bytes.data());
  auto lane = take == nullptr ? absl::FailedPreconditionError("no lanes on this connection")
                              : take(wire::DecodeLaneOffer(bytes));
  if (lane.ok()) Open(*std::move(lane));
  // This answer precedes any piece in the lane, because messages without a frame are sent first.
  outbox.AddControl(
      {.kind = wire::MessageKind::kLane},
      open() ? "" : CleanText(absl::StrCat("refused: ", lane.status().message()), 256));
  return absl::OkStatus();
}

void LanePort::Close() {
  lane_ = nullptr;
  status_ = absl::OkStatus();
  ring_space_queued_ = false;
}

std::optional<Outbox::Message> LanePort::Next(Outbox& outbox) {
  if (!status_.ok()) return std::nullopt;
  if (lane_ == nullptr || outbox.next_frame_left() < kLaneBytesMin) {
    auto message = outbox.Next();
    if (message && message->header.kind == wire::MessageKind::kRingSpace)
      ring_space_queued_ = false;
    return message;
  }
  // The frame with the fewest remaining bytes comes first. If the lane has no space for a piece of
  // this frame, it has no space for the pieces of later frames, which are not smaller.
  const std::uint64_t bytes = std::min(outbox.next_frame_left(), lane_->piece_bytes_max());
  const auto room = lane_->HasRoom(bytes);
  if (!room.ok()) status_ = room.status();
  if (!room.ok() || !*room) return std::nullopt;
  auto message = outbox.Next(bytes, wire::kInLane);
  lane_->Write(std::span(message->pieces).subspan(1));
  message->pieces.resize(1);
  return message;
}

absl::StatusOr<MessageView> LanePort::Payload(const wire::StreamHeader& header,
                                              MessageView behind) {
  if (!header.in_lane()) return behind;
  if (lane_ == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat("payload in a lane that was not negotiated: request=", header.request_id));
  return lane_->Read(header.bytes);
}

void LanePort::Done(const wire::StreamHeader& header, Outbox& outbox) {
  if (!header.in_lane() || lane_ == nullptr) return;
  if (lane_->Release(header.bytes) && !std::exchange(ring_space_queued_, true))
    outbox.AddControl({.kind = wire::MessageKind::kRingSpace});
}

}  // namespace evergrad::transport
