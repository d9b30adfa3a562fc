// A data frame: `u32 header_bytes | header (protobuf) | zero padding | tensor bytes at 64-byte aligned offsets` (FORMAT.md).
//
// Builder and reader of requests and answers. Nothing read is trusted: offsets, lengths and counts are checked against
// the frame before a span is handed out. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tensor/tensor.h"
#include "evergrad/v1/data.pb.h"

namespace evergrad::wire {

// Lays out `payloads` (one per section that carries bytes, in order; may be empty spans) behind the header.
// The builder fills payload_offset and payload_bytes of pushes[i] / pulls[i] for every i, then serializes the header.
// payloads.size() must equal the number of push sections (request) or pull results (response).
// `ids`: empty, or one list of int64 ids for each push section and then for each pull section; what is not empty becomes the section's IdList.
std::vector<tensor::SharedBytes> BuildRequest(v1::RequestHeader header, std::vector<tensor::SharedBytes> payloads,
                                              std::vector<tensor::SharedBytes> ids = {});
std::vector<tensor::SharedBytes> BuildResponse(v1::ResponseHeader header, std::vector<tensor::SharedBytes> payloads);
// The same bytes from payloads in pieces: a shard's values lie in chunks.
std::vector<tensor::SharedBytes> BuildResponseOfPieces(v1::ResponseHeader header, std::vector<std::vector<tensor::SharedBytes>> payloads);

struct Request {
  v1::RequestHeader header;
  std::vector<std::span<const std::byte>> payloads;               // one per push; views into the frame
  std::vector<std::span<const std::int64_t>> push_ids, pull_ids;  // one per section, empty without an IdList; views into the frame, which is aligned
};
struct Response {
  v1::ResponseHeader header;
  std::vector<std::span<const std::byte>> payloads;  // one per pull result; views into the frame
};
// InvalidArgument names the field, the offset and what was expected. A frame with ids begins at a multiple of 8.
absl::StatusOr<Request> ParseRequest(std::span<const std::byte> frame);
absl::StatusOr<Response> ParseResponse(std::span<const std::byte> frame);

// Size in bytes that BuildRequest will give, for Announce: an upper bound. `payload_bytes` without ids.
std::uint64_t RequestBytesBound(const v1::RequestHeader& header, std::uint64_t payload_bytes);

}  // namespace evergrad::wire
