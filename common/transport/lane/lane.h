// Payload between two processes of one host: two rings in memory that both have mapped, while the
// stream carries the headers (FORMAT.md). Memory only: lane_memory.h makes it.
//
// Nothing in the memory is trusted. What was written and what was taken is counted on each side
// privately; of the peer's numbers only how much it has taken is used, and checked. Bytes are
// copied out once, where the header says that they belong, as those of the stream.
//
// One thread, the loop's, per side.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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

// Of one direction: a multiple of the first, at most the second.
inline constexpr std::uint64_t kLaneRingUnit = 64u << 10;
inline constexpr std::uint64_t kLaneRingBytesMax = 64u << 20;
// What is left of a frame goes through the stream when it is less: a header and its payload in one
// message cost less than the lane's copy.
inline constexpr std::uint64_t kLaneBytesMin = 16u << 10;

constexpr std::uint64_t LaneMemoryBytes(std::uint64_t ring_bytes) {
  return wire::kLaneControlBytes + 2 * ring_bytes;
}

absl::Status CheckLaneOption(std::uint64_t ring_bytes);  // Of ChannelOptions.

class Lane {
 public:
  enum class Side { kClient, kServer };
  // `memory`: LaneMemoryBytes(ring_bytes), on a cache line; shared with nobody in this process but
  // for its release.
  Lane(std::shared_ptr<std::byte> memory, std::uint64_t ring_bytes, Side side);

  std::uint64_t ring_bytes() const { return ring_bytes_; }
  // A quarter of the ring: writer and reader are then at different pieces.
  std::uint64_t piece_bytes_max() const { return piece_bytes_max_; }

  // Whether `bytes`, at most piece_bytes_max(), have room. If not, the peer will say when (ROOM).
  // InvalidArgument: it claims to have taken what it cannot have.
  absl::StatusOr<bool> HasRoom(std::uint64_t bytes);
  void Write(std::span<const tensor::SharedBytes> pieces);  // What HasRoom has found room for.

  // The next `bytes` of the peer, until Release(bytes). InvalidArgument: more than the ring.
  absl::StatusOr<MessageView> Read(std::uint64_t bytes);
  bool Release(std::uint64_t bytes);  // True: the peer waits for this and is to be told.

 private:
  std::uint64_t* Number(std::size_t at) const {
    return reinterpret_cast<std::uint64_t*>(memory_.get() + at);
  }

  const std::shared_ptr<std::byte> memory_;
  const std::uint64_t ring_bytes_;
  const std::uint64_t piece_bytes_max_;
  const int out_, in_;  // Which ring is whose.
  std::byte* const out_ring_;
  const std::byte* const in_ring_;
  std::uint64_t written_ = 0;     // Of ours.
  std::uint64_t peer_taken_ = 0;  // Of ours, as last seen.
  bool asked_ = false;            // To be told of room.
  std::uint64_t taken_ = 0;       // Of the peer's.
  std::array<std::span<const std::byte>, 2> views_;
};

// What a session does with its lane, once there is one.
class LanePort {
 public:
  void Open(std::unique_ptr<Lane> lane) { lane_ = std::move(lane); }
  void Close();
  bool open() const { return lane_ != nullptr; }

  // The next message of `outbox`, its payload in the lane where that is the way. nullopt: nothing
  // can be sent now.
  std::optional<Outbox::Message> Next(Outbox& outbox);
  // Calls `use(header, payload)`, which returns a Status, for each of the `messages` that came in
  // one write, wherever their payload lies; the peer is told of the room that this gives. The first
  // error ends it: InvalidArgument when a message is malformed or its payload in a lane that was
  // not agreed on.
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
  // Not OK: the peer breaks the rules of the lane, the stream is to be ended.
  const absl::Status& status() const { return status_; }

 private:
  absl::StatusOr<MessageView> Payload(const wire::StreamHeader& header, MessageView behind);
  void Done(const wire::StreamHeader& header, Outbox& outbox);

  std::unique_ptr<Lane> lane_;
  absl::Status status_;
  bool room_queued_ = false;  // A ROOM is in the outbox: one says all.
};

}  // namespace evergrad::transport
