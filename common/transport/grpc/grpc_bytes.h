// Conversions of bytes and statuses between gRPC and this room. Private to the room.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/transport/pieces.h"

namespace evergrad::transport {

// Large pieces are sent without a copy, and gRPC releases their owners, on any thread, when it
// destroys the slice (rule 7 in transport.h). Small adjacent pieces are copied into one slice,
// because one copy costs less than several slices.
grpc::ByteBuffer ToByteBuffer(OutgoingPieces pieces);
grpc::ByteBuffer ToByteBuffer(const std::string& text);

// Views of a received message. The views are valid as long as the object.
class ReceivedSlices {
 public:
  // Returns false if the buffer is unreadable, that is, not one of our messages.
  bool Reset(grpc::ByteBuffer* buffer);
  void Clear();
  MessageView view() const { return views_; }
  std::string Text() const;

 private:
  std::vector<grpc::Slice> slices_;
  std::vector<std::span<const std::byte>> views_;
};

grpc::Status ToGrpc(const absl::Status& status);
// Restores a status from our ErrorDetail if the gRPC status contains one. gRPC's own CANCELLED and
// RST_STREAM mean that the peer has disconnected.
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace evergrad::transport
