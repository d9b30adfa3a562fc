// What one side of a data stream has to send: picks, at each message boundary, the frame with the
// smallest remainder, so that a small answer overtakes a 64 MB push. Pure, not thread-safe.
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

  // A message without a frame: GRANT, ANNOUNCE, CANCEL, PING, … or an ERROR with `text`.
  void AddControl(wire::StreamHeader header, std::string text = {});
  // A REQUEST or ANSWER. One frame a request id and direction at a time.
  void AddFrame(wire::MessageKind kind, std::uint64_t request_id, std::uint64_t response_bytes_max,
                Frame frame);
  // Drops what has not been taken of the frame of `request_id`. True when some of it had not been.
  bool Drop(std::uint64_t request_id);
  void Clear();

  struct Message {
    wire::StreamHeader header;
    OutgoingPieces pieces;  // The encoded header, then the payload, not copied.
    bool last = true;       // The frame is sent completely with this one.
  };
  std::optional<Message> Next() { return Next(message_bytes_max_, 0); }
  // At most `bytes_max` of payload, with these flags if it is a piece of a frame.
  std::optional<Message> Next(std::uint64_t bytes_max, std::uint8_t flags);
  // What is left of the frame that Next would send a piece of; 0 for a message without one, or
  // none.
  std::uint64_t next_frame_left() const { return queue_.empty() ? 0 : queue_.begin()->first.first; }
  bool empty() const { return queue_.empty(); }
  std::size_t size() const { return queue_.size(); }

 private:
  struct Entry {
    wire::StreamHeader header;
    Frame frame;
    bool is_frame = false;
    std::size_t piece = 0;  // Where the next message starts.
    std::uint64_t piece_offset = 0;
  };
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // (bytes left, order of arrival)

  const std::uint64_t message_bytes_max_;
  std::uint64_t next_order_ = 0;
  std::map<Key, Entry> queue_;
  std::map<std::uint64_t, Key> frames_;  // request id -> its place in queue_
};

// What leaves in one write: messages of `session` until they are kWriteBytes, or one whose payload
// is in the lane, which the peer can copy out while we fill in the next. Their sizes with payload;
// `pieces` stays empty when there is nothing to send now.
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
