#include "common/transport/status_detail.h"

#include <google/protobuf/stubs/logging.h>

#include "absl/strings/cord.h"
#include "common/base/status.h"
#include "common/base/text.h"
#include "common/wire/stream_message.h"
#include "evergrad/v1/types.pb.h"

namespace evergrad::transport {
namespace {
// Limit of the bytes of the message, and of the bytes of the origin. With this limit an ErrorDetail
// stays below 4 KiB.
constexpr std::size_t kTextBytesMax = 1500;
}  // namespace

std::string EncodeStatus(const absl::Status& status) {
  v1::ErrorDetail detail;
  detail.set_code(static_cast<int>(status.code()));
  detail.set_message(CleanText(status.message(), kTextBytesMax));
  detail.set_origin_text(CleanText(OriginOf(status), kTextBytesMax));
  detail.set_kind(BlameOf(status) == Blame::kUser ? "user" : "machine");
  detail.set_retryable(IsRetryable(status));
  return detail.SerializeAsString();
}

absl::Status DecodeStatus(absl::string_view bytes) {
  google::protobuf::LogSilencer silencer;
  v1::ErrorDetail detail;
  if (bytes.size() > wire::kErrorBytesMax ||
      !detail.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InternalError("malformed error detail from the peer");
  }
  if (detail.code() <= 0 || detail.code() > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::InternalError(absl::StrCat("error detail with an unknown code: ", detail.message(),
                                            " code=", detail.code()));
  }
  absl::Status status(static_cast<absl::StatusCode>(detail.code()), detail.message());
  if (detail.kind() == "user") status = UserError(std::move(status));
  if (IsRetryable(status) != detail.retryable())
    status = WithRetryable(std::move(status), detail.retryable());
  if (!detail.origin_text().empty()) status = WithOrigin(std::move(status), detail.origin_text());
  return status;
}

absl::Status OwnCopy(const absl::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status copy(status.code(), std::string(status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    copy.SetPayload(url, absl::Cord(std::string(payload)));
  });
  return copy;
}

}  // namespace evergrad::transport
