#include "common/transport/grpc/grpc_bytes.h"

#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/transport/status_detail.h"

namespace evergrad::transport {
namespace {

constexpr std::size_t kCopyBytesMax = 4096;

void DestroyOwner(void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); }

grpc::Slice Borrowed(tensor::SharedBytes piece) {
  // gRPC's slices are not const, but no code writes through them.
  void* bytes = const_cast<std::byte*>(piece.bytes.data());
  return grpc::Slice(bytes, piece.bytes.size(), DestroyOwner,
                     new std::shared_ptr<const void>(std::move(piece.owner)));
}

grpc::Slice Copied(std::span<const tensor::SharedBytes> pieces, std::size_t bytes) {
  grpc::Slice slice(bytes);
  auto* out = const_cast<std::uint8_t*>(slice.begin());
  for (const auto& piece : pieces) {
    if (piece.bytes.empty()) continue;
    std::memcpy(out, piece.bytes.data(), piece.bytes.size());
    out += piece.bytes.size();
  }
  return slice;
}

}  // namespace

grpc::ByteBuffer ToByteBuffer(OutgoingPieces pieces) {
  std::vector<grpc::Slice> slices;
  slices.reserve(pieces.size());
  for (std::size_t i = 0; i < pieces.size();) {
    if (pieces[i].bytes.size() > kCopyBytesMax) {
      slices.push_back(Borrowed(std::move(pieces[i++])));
      continue;
    }
    std::size_t end = i, bytes = 0;
    while (end < pieces.size() && pieces[end].bytes.size() <= kCopyBytesMax &&
           bytes + pieces[end].bytes.size() <= kCopyBytesMax)
      bytes += pieces[end++].bytes.size();
    if (bytes > 0) slices.push_back(Copied(std::span(pieces).subspan(i, end - i), bytes));
    i = end;
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer ToByteBuffer(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

bool ReceivedSlices::Reset(grpc::ByteBuffer* buffer) {
  Clear();
  grpc::Slice single;
  if (buffer->TrySingleSlice(&single).ok()) {
    slices_.push_back(std::move(single));
  } else if (!buffer->Dump(&slices_).ok()) {
    return false;
  }
  for (const auto& slice : slices_)
    views_.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
  return true;
}

void ReceivedSlices::Clear() {
  views_.clear();
  slices_.clear();
}

std::string ReceivedSlices::Text() const {
  std::string text;
  for (const auto& view : views_)
    text.append(reinterpret_cast<const char*>(view.data()), view.size());
  return text;
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      CleanText(status.message(), 1500), EncodeStatus(status));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  if (!status.error_details().empty()) return DecodeStatus(status.error_details());
  const std::string& message = status.error_message();
  if (status.error_code() == grpc::StatusCode::CANCELLED)
    return absl::UnavailableError(absl::StrCat("peer ended the call: ", message));
  if (status.error_code() == grpc::StatusCode::INTERNAL && absl::StrContains(message, "RST_STREAM"))
    return absl::UnavailableError(absl::StrCat("peer reset the call: ", message));
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), message);
}

}  // namespace evergrad::transport
