// The watch for preemption notices of one daemon: by a file, or by the metadata service of a cloud.
//
// The watch logs and counts each notice and each recommendation, and calls a function of Events. A
// watch of a cloud has the thread "notices", which asks a CloudWatch (clouds/cloud_watch.h) for the
// next request and sends it with a MetadataClient. A watch of a file looks for the file on the
// executor "notice-file". Every failed request is counted. Of several failures in a row, the log
// reports only the first one, and later the first usable answer.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/preemption/settings.h"
#include "common/time/clock.h"

namespace evergrad::preemption {

class Watch {
 public:
  // The objects outlive the watch.
  struct Parts {
    const Clock* clock = nullptr;
    log::Logger* logger = nullptr;
    metrics::Registry* registry = nullptr;
    std::string role;  // "ps_server", for the names of metrics
  };
  // The watch calls both functions on its own thread, where they must not block.
  struct Events {
    // Orders the task to hand over its work and leave. Called a second time if the task already
    // leaves because of a recommendation, and a notice follows.
    std::function<void(const std::string& reason)> leave;
    // Reports that the cloud recommends to leave the machine, and that the task stays.
    std::function<void(const std::string& text)> recommended;
  };

  // Begins to watch, if the settings name a source. CheckSettings must have succeeded.
  Watch(const Settings& settings, Parts parts, Events events);
  ~Watch();  // ends at once, even in the middle of a request
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Adds the metrics to the registry, with the value 0.
  static void AddMetrics(metrics::Registry* registry, absl::string_view role);

  // Tells the cloud that this task has handed over its work, so that the cloud may take the machine
  // early. Has an effect only after a notice of Azure. Blocks until Azure has answered, for 2 s at
  // most. Called once, on any thread but that of the watch.
  void AcknowledgeNotice();

 private:
  struct FileWatch;
  struct MetadataWatch;
  std::unique_ptr<FileWatch> file_;
  std::unique_ptr<MetadataWatch> metadata_;
};

}  // namespace evergrad::preemption
