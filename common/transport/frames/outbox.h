// The queue of one side of a data stream. At each message boundary the outbox selects the frame
// with the fewest remaining bytes, so that a small answer overtakes a 64 MB push. Pure, not
// thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/transport/pieces.h"
#include "common/transport/transport.h"
#include "common/wire/stream_message.h"

namespace evergrad::transport {

class Outbox {
 public:
  explicit Outbox(std::uint64_t message_bytes_max) : message_bytes_max_(message_bytes_max) {}

  // Adds a message without a frame: GRANT, ANNOUNCE, CANCEL, PING, … or an ERROR with `text`.
  void AddControl(wire::StreamHeader header, std::string text = {});
  // Adds a REQUEST or ANSWER. There is at most one frame per request id and direction at a time.
  void AddFrame(wire::MessageKind kind, std::uint64_t request_id, std::uint64_t response_bytes_max,
                Frame frame);
  // Drops the unsent part of the frame of `request_id`. Returns whether an unsent part existed.
  bool Drop(std::uint64_t request_id);
  void Clear();

  struct Message {
    wire::StreamHeader header;
    OutgoingPieces pieces;  // The encoded header, then the payload, which is not copied.
    bool last = true;       // This message completes the frame.
  };
  std::optional<Message> Next() { return Next(message_bytes_max_, 0); }
  // Returns a message with at most `bytes_max` of payload. If the message is a piece of a frame,
  // its header gets `flags`.
  std::optional<Message> Next(std::uint64_t bytes_max, std::uint8_t flags);
  // Returns the number of remaining bytes of the frame whose piece Next would send, or 0 for a
  // message without a frame and for an empty queue.
  std::uint64_t next_frame_left() const { return queue_.empty() ? 0 : queue_.begin()->first.first; }
  bool empty() const { return queue_.empty(); }
  std::size_t size() const { return queue_.size(); }

 private:
  struct QueuedMessage {
    wire::StreamHeader header;
    Frame frame;
    bool is_frame = false;
    std::size_t piece = 0;  // index of the piece to send next
    std::uint64_t piece_offset = 0;
  };
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // (bytes left, order of arrival)

  const std::uint64_t message_bytes_max_;
  std::uint64_t next_order_ = 0;
  std::map<Key, QueuedMessage> queue_;
  std::map<std::uint64_t, Key> frames_;  // request id -> key in queue_
};

// Takes the messages of one write from `session`: messages up to kWriteBytes, or one message whose
// payload is in the lane, so that the peer can copy this payload while the next one is filled.
// Returns the number of bytes of the messages that have payload. `pieces` stays empty if there is
// nothing to send now.
template <class Session>
std::uint64_t TakeWrite(Session& session, OutgoingPieces* pieces) {
  std::uint64_t in_write = 0, bytes = 0;
  while (in_write < kWriteBytes) {
    auto message = session.NextMessage();
    if (!message) break;
    in_write += wire::kStreamHeaderBytes + message->header.bytes_behind();
    bytes += wire::kStreamHeaderBytes + message->header.bytes;
    if (pieces->empty()) {
      *pieces = std::move(message->pieces);
    } else {
      for (auto& piece : message->pieces) pieces->push_back(std::move(piece));
    }
    if (message->header.in_lane()) break;
  }
  return bytes;
}

}  // namespace evergrad::transport
