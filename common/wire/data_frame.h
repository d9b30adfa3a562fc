// A data frame: `u32 header_bytes | header (protobuf) | zero padding | tensor bytes at 64-byte
// aligned offsets` (FORMAT.md).
//
// Builder and reader of requests and answers. Input is not trusted: offsets, lengths and counts are
// checked against the frame before a span is handed out. Pure.
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

// Lays out `payloads` behind the header without a copy: one per section with bytes, in order; empty
// spans are allowed. Pieces of one owner that are consecutive in its memory, with at most the
// padding between them, become one piece: an owner that leaves a gap for padding must fill it with
// zeros. The builder fills in payload_offset and payload_bytes of pushes[i] / pulls[i] for every i
// and serializes the header. payloads.size() must equal the number of push sections (request) or
// pull results (answer). `ids` is empty, or has one list of int64 ids for each push section and
// then for each pull section; non-empty lists are copied into the section's IdList.
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
// The same for payloads in pieces, because a shard's values are in chunks; the pieces are moved
// from. Their order in the frame is that of `order`, a permutation of the sections (empty: the
// order of the sections).
std::vector<tensor::SharedBytes> BuildResponseOfPieces(
    v1::ResponseHeader* header, std::span<const std::span<tensor::SharedBytes>> payloads,
    std::span<const std::uint32_t> order);

// A message with all its parts in one arena, so that hundreds of sections cost a few allocations.
template <class Message>
class Packed {
 public:
  // Empty; `operator*` is invalid. `encoded_bytes` is the approximate size of the encoded message
  // that will be parsed into it.
  Packed() = default;
  // For about `sections` sections that will be added.
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
  Message* message_ = nullptr;  // in arena_
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
// InvalidArgument names the field, the offset and the expectation. A frame with ids must be aligned
// to 8 bytes.
absl::StatusOr<Request> ParseRequest(std::span<const std::byte> frame);
absl::StatusOr<Response> ParseResponse(std::span<const std::byte> frame);

// An upper bound of the size of BuildRequest's result, for Announce. `payload_bytes` does not
// include ids.
std::uint64_t RequestBytesBound(const v1::RequestHeader& header, std::uint64_t payload_bytes);

}  // namespace evergrad::wire
