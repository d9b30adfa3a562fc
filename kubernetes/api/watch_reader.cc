#include "kubernetes/api/watch_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/escape.h"

namespace evergrad::kubernetes {
namespace {

constexpr std::size_t kMessageCharactersMax = 500;

absl::StatusCode CodeOf(std::int64_t http_status, absl::string_view reason) {
  switch (http_status) {
    case 401: return absl::StatusCode::kUnauthenticated;
    case 403: return absl::StatusCode::kPermissionDenied;
    case 404: return absl::StatusCode::kNotFound;
    case 409:
      return reason == "AlreadyExists" ? absl::StatusCode::kAlreadyExists
                                       : absl::StatusCode::kAborted;
    case 410: return absl::StatusCode::kOutOfRange;
    case 429: return absl::StatusCode::kResourceExhausted;
    default:
      return http_status >= 400 && http_status < 500 ? absl::StatusCode::kInvalidArgument
                                                     : absl::StatusCode::kUnavailable;
  }
}

WatchEvent Unreadable(absl::Status error) {
  WatchEvent event;
  event.error = std::move(error);
  return event;
}

}  // namespace

absl::Status ErrorOf(std::int64_t http_status, const Json& status_object) {
  const std::string message = TextOf(status_object, "message");
  const std::string reason = TextOf(status_object, "reason");
  return absl::Status(
      CodeOf(http_status, reason),
      absl::StrCat(
          "the API server answered status=", http_status,
          reason.empty() ? "" : absl::StrCat(" reason=", Quoted(reason, 60)),
          message.empty() ? "" : absl::StrCat(": ", Quoted(message, kMessageCharactersMax))));
}

WatchEvent ReadWatchEvent(absl::string_view line) {
  const absl::StatusOr<Json> json = ParseJson(line);
  if (!json.ok()) return Unreadable(json.status());
  const std::string type = TextOf(*json, "type");
  const Json& object = Member(*json, "object");
  WatchEvent event;
  event.resource_version = TextOf(Member(object, "metadata"), "resourceVersion");
  if (type == "BOOKMARK") {
    event.kind = WatchEvent::Kind::kBookmark;
    return event;
  }
  if (type == "ERROR") {
    event.kind = WatchEvent::Kind::kError;
    event.error = ErrorOf(IntegerOf(object, "code"), object);
    return event;
  }
  if (type != "ADDED" && type != "MODIFIED" && type != "DELETED")
    return Unreadable(
        absl::InvalidArgumentError(absl::StrCat("unknown type of event: ", Quoted(type, 40))));
  absl::StatusOr<JobObject> parsed = ParseJobObject(object);
  if (!parsed.ok()) return Unreadable(parsed.status());
  event.kind = type == "DELETED" ? WatchEvent::Kind::kRemoved : WatchEvent::Kind::kChanged;
  event.object = *std::move(parsed);
  return event;
}

bool WatchReader::Add(absl::string_view bytes) {
  while (!failed_ && !bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const absl::string_view piece = bytes.substr(0, end);
    if (line_.size() + piece.size() > kLineBytesMax) {
      failed_ = true;
      break;
    }
    line_.append(piece.data(), piece.size());
    if (end == absl::string_view::npos) break;
    bytes.remove_prefix(end + 1);
    if (!line_.empty()) on_event_(ReadWatchEvent(line_));
    line_.clear();
  }
  return !failed_;
}

}  // namespace evergrad::kubernetes
