// Keeps an ObjectFeed up to date with the API server: lists all objects, and watches them from the
// version of the list on.
//
// A watch that ends is continued from the last version that it reported. If the version is too old
// (410), or a watch cannot be begun, all objects are listed again. The same happens between two
// watches if the feed has a wish for it. After a failure there is a pause, from 100 ms to 30 s.
#pragma once

#include <string>

#include "common/health/readiness.h"
#include "common/http/interruption.h"
#include "common/log/log.h"
#include "common/time/clock.h"
#include "kubernetes/api/api.h"
#include "kubernetes/controller/object_feed.h"
#include "kubernetes/controller/operator_metrics.h"

namespace evergrad::kubernetes {

class ObjectWatch {
 public:
  // The objects outlive this one.
  struct Parts {
    Api* api = nullptr;
    ObjectFeed* feed = nullptr;
    http::Interruption* interruption = nullptr;
    const Clock* clock = nullptr;
    log::Logger* logger = nullptr;
    OperatorMetrics* metrics = nullptr;
    health::Condition ready;  // met while the API server answers
  };
  explicit ObjectWatch(Parts parts) : parts_(std::move(parts)) {}

  // Works until the interruption. The thread `kube-watch` runs it.
  void Run();

 private:
  // Lists the objects. Returns false after a failure.
  bool List();
  // Watches once. Returns false if the objects must be listed again.
  bool Watch();
  void OnEvent(WatchEvent event);
  void ReportFailure(absl::string_view what, const absl::Status& status);
  void ReportSuccess();

  const Parts parts_;
  std::string version_;       // from which the next watch continues
  absl::Status watch_error_;  // the error event of the present watch
  bool heard_ = false;        // the present watch has reported an event
  int quick_ends_ = 0;        // watches in a row that ended before they began
  int failures_ = 0;          // since a watch began
};

// Returns the pause after the given number of failures in a row: 100 ms, 200 ms, … 30 s.
std::chrono::milliseconds PauseAfter(int failures);

}  // namespace evergrad::kubernetes
