// Reads the events of a watch from the bytes of its response: one JSON object per line. Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kubernetes/api/job_object.h"

namespace evergrad::kubernetes {

struct WatchEvent {
  enum class Kind {
    kChanged,   // the object was added or changed
    kRemoved,   // the object no longer exists
    kBookmark,  // only `resource_version` is set
    // The server ends the watch with `error`. OutOfRange: the version is too old, so the caller
    // must list the objects again.
    kError,
    kUnreadable,  // an event that this version cannot read; `error` says why
  };
  Kind kind = Kind::kUnreadable;
  std::optional<JobObject> object;  // for kChanged and kRemoved
  std::string resource_version;     // the version up to which the watch has come; "" if not known
  absl::Status error;
};

class WatchReader {
 public:
  // An object of the API server has at most 1.5 MiB.
  static constexpr std::size_t kLineBytesMax = 4u << 20;

  using OnEvent = std::function<void(WatchEvent)>;
  explicit WatchReader(OnEvent on_event) : on_event_(std::move(on_event)) {}

  // Adds the next bytes, and reports each complete event. A line that is not complete waits for
  // more bytes, and is forgotten with the reader. Returns false, for ever, after a line above
  // kLineBytesMax.
  bool Add(absl::string_view bytes);

 private:
  const OnEvent on_event_;
  std::string line_;
  bool failed_ = false;
};

// Reads one event.
WatchEvent ReadWatchEvent(absl::string_view line);

// Returns the error that a Status object of the API describes. `http_status` is the status of the
// response, or of the Status object: 401 Unauthenticated, 403 PermissionDenied, 404 NotFound, 409
// Aborted (AlreadyExists if the reason says so), 410 OutOfRange, 429 ResourceExhausted, other
// errors of the caller InvalidArgument, everything else Unavailable.
absl::Status ErrorOf(std::int64_t http_status, const Json& status_object);

}  // namespace evergrad::kubernetes
