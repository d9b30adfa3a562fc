#include "common/transport/frames/outbox.h"

#include <algorithm>
#include <memory>

#include "common/base/check.h"

namespace evergrad::transport {
namespace {

tensor::SharedBytes Owned(std::string text) {
  auto owner = std::make_shared<const std::string>(std::move(text));
  return {owner, std::as_bytes(std::span(owner->data(), owner->size()))};
}

tensor::SharedBytes Encoded(const wire::StreamHeader& header) {
  auto owner = std::make_shared<const std::array<std::byte, wire::kStreamHeaderBytes>>(
      wire::EncodeStreamHeader(header));
  return {owner, {owner->data(), owner->size()}};
}

}  // namespace

void Outbox::AddControl(wire::StreamHeader header, std::string text) {
  QueuedMessage entry;
  entry.header = header;
  entry.header.bytes = text.size();
  if (!text.empty()) {
    entry.header.frame_bytes = text.size();
    entry.frame.pieces.push_back(Owned(std::move(text)));
  }
  queue_.emplace(Key{0, next_order_++}, std::move(entry));
}

void Outbox::AddFrame(wire::MessageKind kind, std::uint64_t request_id,
                      std::uint64_t response_bytes_max, Frame frame) {
  const std::uint64_t size = frame.size();
  QueuedMessage entry;
  entry.header = {.kind = kind,
                  .request_id = request_id,
                  .frame_bytes = size,
                  .response_bytes_max = response_bytes_max};
  entry.frame = std::move(frame);
  entry.is_frame = true;
  const Key key{size, next_order_++};
  const bool fresh = frames_.emplace(request_id, key).second;
  EG_CHECK_MSG(fresh, "duplicate frame of one request");
  queue_.emplace(key, std::move(entry));
}

bool Outbox::Drop(std::uint64_t request_id) {
  const auto it = frames_.find(request_id);
  if (it == frames_.end()) return false;
  queue_.erase(it->second);
  frames_.erase(it);
  return true;
}

void Outbox::Clear() {
  queue_.clear();
  frames_.clear();
}

std::optional<Outbox::Message> Outbox::Next(std::uint64_t bytes_max, std::uint8_t flags) {
  if (queue_.empty()) return std::nullopt;
  auto node = queue_.extract(queue_.begin());
  QueuedMessage& entry = node.mapped();
  Message message;
  message.header = entry.header;
  message.pieces.push_back({});  // reserved for the header, whose length is computed below
  if (!entry.is_frame) {
    for (auto& piece : entry.frame.pieces) message.pieces.push_back(std::move(piece));
    message.pieces[0] = Encoded(message.header);
    return message;
  }

  message.header.flags = flags;
  std::uint64_t room = bytes_max;
  auto& pieces = entry.frame.pieces;
  while (entry.piece < pieces.size() && room > 0) {
    const auto& piece = pieces[entry.piece];
    const std::uint64_t n = std::min<std::uint64_t>(room, piece.bytes.size() - entry.piece_offset);
    if (n > 0) message.pieces.push_back({piece.owner, piece.bytes.subspan(entry.piece_offset, n)});
    room -= n;
    entry.piece_offset += n;
    if (entry.piece_offset == piece.bytes.size()) {
      pieces[entry.piece] = {};  // the message now holds the owner of the piece
      ++entry.piece;
      entry.piece_offset = 0;
    }
  }
  message.header.bytes = bytes_max - room;
  message.pieces[0] = Encoded(message.header);
  entry.header.offset += message.header.bytes;
  message.last = entry.header.offset == entry.header.frame_bytes;
  if (message.last) {
    frames_.erase(entry.header.request_id);
  } else {
    node.key().first -= message.header.bytes;
    frames_[entry.header.request_id] = node.key();
    queue_.insert(std::move(node));
  }
  return message;
}

}  // namespace evergrad::transport
