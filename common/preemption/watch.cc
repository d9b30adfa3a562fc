#include "common/preemption/watch.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/preemption/clouds/cloud_watch.h"
#include "common/preemption/metadata_client.h"
#include "common/preemption/notice_file.h"
#include "common/runtime/executor.h"

namespace evergrad::preemption {
namespace {

constexpr std::chrono::seconds kAcknowledgementMax{2};

metrics::Counter& Notices(metrics::Registry* registry, absl::string_view role,
                          absl::string_view source) {
  return registry->GetCounter(absl::StrCat("evergrad_", role, "_preemption_notices_total"),
                              "notices that this machine will be reclaimed, by source",
                              {{"source", std::string(source)}});
}

metrics::Counter& Recommendations(metrics::Registry* registry, absl::string_view role,
                                  absl::string_view source) {
  return registry->GetCounter(
      absl::StrCat("evergrad_", role, "_preemption_recommendations_total"),
      "recommendations of a cloud to leave this machine (--on-rebalance), by source",
      {{"source", std::string(source)}});
}

metrics::Counter& FailedRequests(metrics::Registry* registry, absl::string_view role,
                                 absl::string_view source) {
  return registry->GetCounter(
      absl::StrCat("evergrad_", role, "_preemption_requests_failed_total"),
      "requests to a cloud's metadata service without a usable answer, by source",
      {{"source", std::string(source)}});
}

}  // namespace

void Watch::AddMetrics(metrics::Registry* registry, absl::string_view role) {
  for (const char* source : {"file", "gce", "aws", "azure"}) Notices(registry, role, source);
  Recommendations(registry, role, "aws");
  for (const char* source : {"gce", "aws", "azure", "auto"}) FailedRequests(registry, role, source);
}

struct Watch::FileWatch {
  std::unique_ptr<NoticeFile> file;
  runtime::ThreadExecutor executor{runtime::ThreadExecutor::Options{"notice-file"}};

  FileWatch(const std::string& path, const Parts& parts, const Events& events) {
    file = std::make_unique<NoticeFile>(
        path, &executor,
        [parts, leave = events.leave] {
          Notices(parts.registry, parts.role, "file").Add();
          leave("preemption notice");
        },
        [logger = parts.logger](const std::string& text) { logger->Warning(text); });
    if (file->was_there())
      parts.logger->Warning(
          absl::StrCat("the preemption notice file exists already and is ignored until it is "
                       "written again: path=",
                       path));
  }
  ~FileWatch() { executor.Shutdown(); }
};

struct Watch::MetadataWatch {
  const Settings settings;
  const Parts parts;
  const Events events;
  const std::unique_ptr<CloudWatch> cloud;
  MetadataClient client;
  Mutex mu;
  bool ends ABSL_GUARDED_BY(mu) = false;
  bool acknowledges ABSL_GUARDED_BY(mu) = false;
  runtime::WaitableEvent acknowledged;
  bool failing = false;  // the last request failed; accessed on the thread only
  std::optional<runtime::Thread> thread;

  MetadataWatch(const Settings& s, const MetadataAddress& address, Parts p, Events e)
      : settings(s),
        parts(std::move(p)),
        events(std::move(e)),
        cloud(MakeCloudWatch(s.source)),
        client(address, parts.clock) {
    thread.emplace("notices", [this] { Run(); });
  }

  ~MetadataWatch() {
    {
      MutexLock lock(&mu);
      ends = true;
    }
    client.Wake();
    thread->Join();
  }

  void Acknowledge() {
    {
      MutexLock lock(&mu);
      acknowledges = true;
    }
    client.Wake();
    acknowledged.WaitFor(kAcknowledgementMax);
  }

  // Returns false if the thread must end. The first call after AcknowledgeNotice() replaces `ask`
  // by the request that acknowledges the notice.
  bool Continues(bool* acknowledging, std::optional<Ask>* ask) {
    MutexLock lock(&mu);
    if (ends) return false;
    if (acknowledges && !std::exchange(*acknowledging, true)) *ask = cloud->Acknowledge();
    return true;
  }

  void Run() {
    bool acknowledging = false;
    std::optional<Ask> ask = cloud->Begin();
    while (Continues(&acknowledging, &ask)) {
      if (!ask) {
        if (acknowledging) acknowledged.Set();
        client.Wait(std::nullopt);
        continue;
      }
      if (!client.Wait(ask->after)) continue;
      const std::optional<Answer> answer = client.Send(ask->request);
      if (!answer) continue;  // Wake() has interrupted the request; `ask` is unchanged
      const std::string source(cloud->source());
      Turn turn = cloud->OnAnswer(*answer);
      Report(turn, source);
      ask = std::move(turn.next);
      if (acknowledging && !ask && turn.failure.empty())
        parts.logger->Info("the cloud knows that this task has handed over its work");
    }
  }

  void Report(const Turn& turn, const std::string& source) {
    if (!turn.failure.empty()) {
      FailedRequests(parts.registry, parts.role, source).Add();
      if (!std::exchange(failing, true) || !turn.next)
        parts.logger->Warning(absl::StrCat(
            turn.next ? "the metadata service gives no usable answer; the watch for preemption "
                        "notices asks again: source="
                      : "the metadata service gives no usable answer, and is not asked again: "
                        "source=",
            source, " reason=", turn.failure));
    } else if (turn.complete && std::exchange(failing, false)) {
      parts.logger->Info(absl::StrCat("the metadata service answers again: source=", source));
    }
    if (!turn.found.empty())
      parts.logger->Info(absl::StrCat(
          "found the cloud whose preemption notices are watched: source=", turn.found));
    const std::string present(cloud->source());
    if (turn.recommendation) {
      Recommendations(parts.registry, parts.role, present).Add();
      const bool drains = settings.on_rebalance == "drain";
      parts.logger->Warning(absl::StrCat(
          *turn.recommendation,
          drains ? "" : "; this task stays (--on-rebalance drain would let it leave)"));
      (drains ? events.leave : events.recommended)(*turn.recommendation);
    }
    if (turn.notice) {
      Notices(parts.registry, parts.role, present).Add();
      parts.logger->Warning(absl::StrCat("preemption notice: ", *turn.notice));
      events.leave(absl::StrCat("preemption notice: ", *turn.notice));
    }
  }
};

Watch::Watch(const Settings& settings, Parts parts, Events events) {
  const std::string source = SourceOf(settings);
  if (source == "none") return;
  if (source == "file") {
    file_ = std::make_unique<FileWatch>(settings.notice_file, parts, events);
    return;
  }
  const auto address =
      ParseMetadataUrl(settings.metadata_url.empty() ? kMetadataUrl : settings.metadata_url);
  EG_CHECK_MSG(address.has_value(), settings.metadata_url);
  metadata_ =
      std::make_unique<MetadataWatch>(settings, *address, std::move(parts), std::move(events));
}

Watch::~Watch() = default;

void Watch::AcknowledgeNotice() {
  if (metadata_ != nullptr) metadata_->Acknowledge();
}

}  // namespace evergrad::preemption
