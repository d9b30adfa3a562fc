// A lane carries payload between two processes of one host: two rings in memory that both processes
// have mapped, while the stream carries the headers (FORMAT.md). The classes of this header use the
// memory. The functions of lane_memory.h create it.
//
// The memory is not trusted. Each side counts in its own memory how many bytes were written and
// taken. It reads two numbers of its peer from the lane. The number of bytes that the peer has
// taken is checked. The number of bytes for which the peer waits only decides whether the peer is
// informed of free space. Bytes are copied out once, directly to their place, like bytes from the
// stream.
//
// Each side runs on one thread, that of its loop.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/frames/message_reader.h"
#include "common/transport/frames/outbox.h"
#include "common/transport/pieces.h"
#include "common/wire/stream_message.h"

namespace evergrad::transport {

// The size of each direction's ring is a multiple of kLaneRingUnit, and at most kLaneRingBytesMax.
inline constexpr std::uint64_t kLaneRingUnit = 64u << 10;
inline constexpr std::uint64_t kLaneRingBytesMax = 64u << 20;
// If a frame has fewer remaining bytes than this, they are sent through the stream, because one
// message with header and payload costs less than the lane's copy.
inline constexpr std::uint64_t kLaneBytesMin = 16u << 10;

constexpr std::uint64_t LaneMemoryBytes(std::uint64_t ring_bytes) {
  return wire::kLaneControlBytes + 2 * ring_bytes;
}

absl::Status CheckLaneOption(std::uint64_t ring_bytes);  // checks ChannelOptions::lane_ring_bytes

class Lane {
 public:
  enum class Side { kClient, kServer };
  // `memory` has LaneMemoryBytes(ring_bytes) bytes and is aligned to a cache line. The pointer is a
  // shared_ptr only for its deleter.
  Lane(std::shared_ptr<std::byte> memory, std::uint64_t ring_bytes, Side side);

  std::uint64_t ring_bytes() const { return ring_bytes_; }
  // Returns the largest size of a piece. It is a quarter of the ring, so that writer and reader can
  // work on different pieces at the same time.
  std::uint64_t piece_bytes_max() const { return piece_bytes_max_; }

  // Returns whether the ring has space for `bytes`, at most piece_bytes_max(). If the ring has no
  // space, the peer sends RING_SPACE once there is space. Returns InvalidArgument if the peer's
  // number of taken bytes falls, or exceeds the number of written bytes.
  absl::StatusOr<bool> HasRoom(std::uint64_t bytes);
  // Writes the pieces. HasRoom must have returned true for this number of bytes.
  void Write(std::span<const tensor::SharedBytes> pieces);

  // Returns the next `bytes` bytes that the peer has written, which are valid until Release(bytes).
  // Returns InvalidArgument if `bytes` exceeds the size of the ring.
  absl::StatusOr<MessageView> Read(std::uint64_t bytes);
  // Frees the space of `bytes`. Returns whether the peer waits for this space and must be informed.
  bool Release(std::uint64_t bytes);

 private:
  std::uint64_t* Number(std::size_t at) const {
    return reinterpret_cast<std::uint64_t*>(memory_.get() + at);
  }

  const std::shared_ptr<std::byte> memory_;
  const std::uint64_t ring_bytes_;
  const std::uint64_t piece_bytes_max_;
  const int out_, in_;  // the indices of our ring and of the peer's ring
  std::byte* const out_ring_;
  const std::byte* const in_ring_;
  std::uint64_t written_ = 0;     // bytes written to our ring
  std::uint64_t peer_taken_ = 0;  // bytes of our ring that the peer has taken, as last read
  bool asked_ = false;            // the peer was asked to report space
  std::uint64_t taken_ = 0;       // bytes taken from the peer's ring
  std::array<std::span<const std::byte>, 2> views_;
};

// The use of a lane by a session. Before the offer is accepted, there is no lane.
class LanePort {
 public:
  // Returns the server's end of the memory that a client offers, or the reason for a refusal.
  using TakeLane = std::function<absl::StatusOr<std::unique_ptr<Lane>>(const wire::LaneOffer&)>;

  void Open(std::unique_ptr<Lane> lane) { lane_ = std::move(lane); }
  // Accepts or refuses a client's offer, and answers it. With a null `take`, no lane is accepted.
  // An error means that the client violates the protocol.
  absl::Status OnOffer(const wire::StreamHeader& header, MessageView payload, const TakeLane& take,
                       Outbox& outbox);
  void Close();
  bool open() const { return lane_ != nullptr; }

  // Returns the next message of `outbox`, with its payload in the lane if that is possible, or
  // nullopt if nothing can be sent now.
  std::optional<Outbox::Message> Next(Outbox& outbox);
  // Calls `use(header, payload)`, which returns a Status, for each of the `messages` of one write.
  // The payload is in the stream or in the lane. Informs the peer of freed space. Stops at the
  // first error, which is InvalidArgument if a message is malformed, or if its payload is in a lane
  // that was not negotiated.
  template <class Use>
  absl::Status Receive(MessageView messages, Outbox& outbox, Use use) {
    MessageReader reader(messages);
    do {
      const auto header = reader.Next();
      if (!header.ok()) return header.status();
      const auto payload = Payload(*header, reader.payload());
      if (!payload.ok()) return payload.status();
      if (absl::Status status = use(*header, *payload); !status.ok()) return status;
      Done(*header, outbox);
    } while (!reader.done());
    return absl::OkStatus();
  }
  // An error means that the peer violates the rules of the lane, and that the stream must be ended.
  const absl::Status& status() const { return status_; }

 private:
  absl::StatusOr<MessageView> Payload(const wire::StreamHeader& header, MessageView behind);
  void Done(const wire::StreamHeader& header, Outbox& outbox);

  std::unique_ptr<Lane> lane_;
  absl::Status status_;
  bool offer_seen_ = false;
  bool ring_space_queued_ = false;  // A RING_SPACE is in the outbox; one is enough.
};

}  // namespace evergrad::transport
