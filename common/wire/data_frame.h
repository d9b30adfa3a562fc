// A data frame: `u32 header_bytes | header (protobuf) | zero padding | tensor bytes at 64-byte
// aligned offsets` (FORMAT.md).
//
// Builder and reader of requests and answers. Nothing read is trusted: offsets, lengths and counts
// are checked against the frame before a span is handed out. Pure.
#pragma once

#include <google/protobuf/arena.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tensor/tensor.h"
#include "evergrad/v1/data.pb.h"

namespace evergrad::wire {

// Lays out `payloads` (one per section that carries bytes, in order; may be empty spans) behind the
// header, without a copy. Pieces of one owner that lie behind each other in its memory, at most the
// padding between them, become one piece: whoever leaves room for padding there writes zeros to it.
// The builder fills payload_offset and payload_bytes of pushes[i] / pulls[i] for every i, then
// serializes the header. payloads.size() must equal the number of push sections (request) or pull
// results (response). `ids`: empty, or one list of int64 ids for each push section and then for
// each pull section; what is not empty becomes the section's IdList, and is copied.
std::vector<tensor::SharedBytes> BuildRequest(v1::RequestHeader* header,
                                              std::vector<tensor::SharedBytes> payloads,
                                              std::vector<tensor::SharedBytes> ids = {});
inline std::vector<tensor::SharedBytes> BuildRequest(v1::RequestHeader header,
                                                     std::vector<tensor::SharedBytes> payloads,
                                                     std::vector<tensor::SharedBytes> ids = {}) {
  return BuildRequest(&header, std::move(payloads), std::move(ids));
}
std::vector<tensor::SharedBytes> BuildResponse(v1::ResponseHeader header,
                                               std::vector<tensor::SharedBytes> payloads);
// From payloads in pieces, for a shard's values lie in chunks; the pieces are moved from. They lie
// in the frame in this `order` of the sections (none: as the sections do).
std::vector<tensor::SharedBytes> BuildResponseOfPieces(
    v1::ResponseHeader* header, std::span<const std::span<tensor::SharedBytes>> payloads,
    std::span<const std::uint32_t> order);

// A message whose parts lie beside each other in memory of its own: hundreds of sections cost a few
// allocations.
template <class Message>
class Packed {
 public:
  // Empty: what `operator*` gives does not exist. `encoded_bytes`: of what will be parsed into it,
  // or about.
  Packed() = default;
  // For `sections` that are about to be added.
  static Packed OfSections(std::size_t sections) { return Packed(sections * 40); }
  explicit Packed(std::uint64_t encoded_bytes)
      : arena_(std::make_unique<google::protobuf::Arena>(Options(encoded_bytes))) {
    message_ = google::protobuf::Arena::CreateMessage<Message>(arena_.get());
  }
  Message& operator*() { return *message_; }
  const Message& operator*() const { return *message_; }
  Message* operator->() { return message_; }
  const Message* operator->() const { return message_; }

 private:
  static google::protobuf::ArenaOptions Options(std::uint64_t encoded_bytes) {
    google::protobuf::ArenaOptions options;
    options.max_block_size = 64u << 10;
    options.start_block_size =
        std::clamp<std::uint64_t>(encoded_bytes * 8, 1u << 10, options.max_block_size);
    return options;
  }
  std::unique_ptr<google::protobuf::Arena> arena_;
  Message* message_ = nullptr;  // arena_'s
};

struct Request {
  Packed<v1::RequestHeader> header;
  std::vector<std::span<const std::byte>> payloads;  // one per push; views into the frame
  std::vector<std::span<const std::int64_t>> push_ids,
      pull_ids;  // one per section, empty without an IdList; views into the frame, which is aligned
};
struct Response {
  Packed<v1::ResponseHeader> header;
  std::vector<std::span<const std::byte>> payloads;  // one per pull result; views into the frame
};
// InvalidArgument names the field, the offset and what was expected. A frame with ids begins at a
// multiple of 8.
absl::StatusOr<Request> ParseRequest(std::span<const std::byte> frame);
absl::StatusOr<Response> ParseResponse(std::span<const std::byte> frame);

// Size in bytes that BuildRequest will give, for Announce: an upper bound. `payload_bytes` without
// ids.
std::uint64_t RequestBytesBound(const v1::RequestHeader& header, std::uint64_t payload_bytes);

}  // namespace evergrad::wire
