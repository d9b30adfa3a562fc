// A data frame: `u32 header_bytes | header (protobuf) | zero padding | tensor bytes at 64-byte
// aligned offsets` (FORMAT.md).
//
// This header has the builder and the reader of requests and answers. Input is not trusted:
// offsets, lengths and counts are checked against the frame before a span is returned. Pure.
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

// Lays out `payloads` after the header without a copy. There is one payload per section with bytes,
// in order; empty spans are allowed. payloads.size() must equal the number of push sections
// (request) or pull results (answer). The builder fills in payload_offset and payload_bytes of
// pushes[i] or pulls[i] for every i, and serializes the header.
//
// Pieces of one owner that are consecutive in its memory, with at most the padding between them,
// become one piece. An owner that leaves a gap for padding must therefore fill it with zeros.
//
// `ids` is empty, or has one list of int64 ids for each push section and then for each pull
// section. Non-empty lists are copied into the section's IdList.
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
// Builds an answer whose payloads are in pieces, because the values of a shard are in chunks. The
// function moves the pieces out of `payloads`. `order`, a permutation of the sections, is their
// order in the frame. If `order` is empty, the sections keep their own order.
std::vector<tensor::SharedBytes> BuildResponseOfPieces(
    v1::ResponseHeader* header, std::span<const std::span<tensor::SharedBytes>> payloads,
    std::span<const std::uint32_t> order);

// A message with all its parts in one arena, so that hundreds of sections cost a few allocations.
template <class Message>
class Packed {
 public:
  // Creates an empty object, whose `operator*` is invalid.
  Packed() = default;
  // Returns an object with memory for about `sections` sections, which the caller adds. The public
  // constructor takes the approximate encoded size of a message that will be parsed into the
  // object.
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
  std::vector<std::span<const std::byte>> payloads;  // one per push, as views into the frame
  // There is one list per section, which is empty without an IdList. The lists are views into the
  // frame, which is aligned.
  std::vector<std::span<const std::int64_t>> push_ids, pull_ids;
};
struct Response {
  Packed<v1::ResponseHeader> header;
  std::vector<std::span<const std::byte>> payloads;  // one per pull result, as views into the frame
};
// Parse a frame. The error InvalidArgument names the field, the offset and the expected value. A
// frame with ids must be aligned to 8 bytes.
absl::StatusOr<Request> ParseRequest(std::span<const std::byte> frame);
absl::StatusOr<Response> ParseResponse(std::span<const std::byte> frame);

// Returns an upper bound of the size of BuildRequest's result, for Announce. `payload_bytes` does
// not include ids.
std::uint64_t RequestBytesBound(const v1::RequestHeader& header, std::uint64_t payload_bytes);

}  // namespace evergrad::wire
