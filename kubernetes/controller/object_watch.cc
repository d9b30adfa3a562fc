#include "kubernetes/controller/object_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace evergrad::kubernetes {
namespace {

// A watch that has lived for this long, or has reported an event, did begin.
constexpr auto kBegan = std::chrono::seconds(1);
constexpr int kDoublings = 9;
// A server may end a watch at once, for example when it stops. A list shows whether it works.
constexpr int kQuickEndsMax = 3;

}  // namespace

std::chrono::milliseconds PauseAfter(int failures) {
  constexpr std::chrono::milliseconds kFirst(100), kLongest(30'000);
  return std::min(kLongest, kFirst * (1 << std::clamp(failures - 1, 0, kDoublings)));
}

void ObjectWatch::Run() {
  bool must_list = true;
  while (!parts_.interruption->interrupted()) {
    const int before = failures_;
    must_list = must_list ? !List() : !Watch() || parts_.feed->TakeWish();
    if (failures_ > before) parts_.interruption->Wait(PauseAfter(failures_));
  }
}

bool ObjectWatch::List() {
  absl::StatusOr<JobList> list = parts_.api->List();
  if (!list.ok()) {
    ReportFailure("list", list.status());
    return false;
  }
  parts_.metrics->lists.Add();
  parts_.metrics->unreadable.Add(list->unreadable);
  if (list->unreadable > 0)
    parts_.logger->Warning(absl::StrCat("cannot read some TrainingJobs, they are ignored: objects=",
                                        list->unreadable));
  version_ = list->resource_version;
  parts_.feed->Replace(std::move(list->objects));
  ReportSuccess();
  return true;
}

bool ObjectWatch::Watch() {
  watch_error_ = absl::OkStatus();
  heard_ = false;
  parts_.metrics->watches.Add();
  const MonoTime begun = parts_.clock->Now();
  const absl::Status status =
      parts_.api->Watch(version_, [this](WatchEvent event) { OnEvent(std::move(event)); });
  if (parts_.interruption->interrupted()) return true;
  // A server that ends each watch after its first event must not be asked without a pause.
  const bool lasted = parts_.clock->Now() - begun >= kBegan;
  const auto go_on = [&](bool from_version) {
    if (!lasted) parts_.interruption->Wait(PauseAfter(1));
    return from_version;
  };
  if (!watch_error_.ok()) {
    // Version too old: the list has the present one. This is no failure, unless it happens again.
    if (absl::IsOutOfRange(watch_error_) && heard_) return go_on(false);
    ReportFailure("watch", watch_error_);
    return false;
  }
  const bool began = heard_ || lasted;
  if (began) failures_ = 0;
  if (began) quick_ends_ = 0;
  if (status.ok()) {
    if (began || ++quick_ends_ < kQuickEndsMax) return go_on(true);
    ReportFailure("watch", absl::UnavailableError("the watch ended at once"));
    return false;
  }
  if (began && absl::IsUnavailable(status)) {
    parts_.logger->Debug(absl::StrCat("a watch was cut, and continues: ", status.message()));
    return go_on(true);
  }
  ReportFailure("watch", status);
  return false;
}

void ObjectWatch::OnEvent(WatchEvent event) {
  switch (event.kind) {
    case WatchEvent::Kind::kError: watch_error_ = std::move(event.error); return;
    case WatchEvent::Kind::kUnreadable:
      parts_.metrics->unreadable.Add();
      parts_.logger->Warning(absl::StrCat("cannot read an event of the API server, it is ignored: ",
                                          event.error.message()));
      break;
    case WatchEvent::Kind::kChanged: parts_.feed->Put(*std::move(event.object)); break;
    case WatchEvent::Kind::kRemoved: parts_.feed->Remove(event.object->name); break;
    case WatchEvent::Kind::kBookmark: break;
  }
  heard_ = true;
  if (!event.resource_version.empty()) version_ = event.resource_version;
}

void ObjectWatch::ReportFailure(absl::string_view what, const absl::Status& status) {
  ++failures_;
  parts_.metrics->api_errors.Add();
  parts_.metrics->api_reachable.Set(0);
  parts_.ready.Fail(status.message());
  if (parts_.interruption->interrupted()) return;
  // The first failure in a row is reported, and later those that follow a long pause.
  if (failures_ == 1 || PauseAfter(failures_) >= std::chrono::seconds(10))
    parts_.logger->Warning(
        absl::StrCat("cannot ", what, " the TrainingJobs, trying again: ", status.message()));
}

void ObjectWatch::ReportSuccess() {
  if (failures_ > 0)
    parts_.logger->Info(absl::StrCat("the API server answers again: failures=", failures_));
  parts_.metrics->api_reachable.Set(1);
  parts_.ready.Meet();
}

}  // namespace evergrad::kubernetes
