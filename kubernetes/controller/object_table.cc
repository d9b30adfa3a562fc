#include "kubernetes/controller/object_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "kubernetes/reconcile/conditions.h"

namespace evergrad::kubernetes {

void HeldObject::Take(JobObject newer) {
  object = std::move(newer);
  if (!TextOf(object.status, "jobUid").empty()) object.spec = Json();
}

void ObjectTable::Take(ObjectFeed::Changes changes) {
  // The objects that may have jobs come first, so that the limit meets the others.
  std::stable_partition(changes.begin(), changes.end(), [](const auto& change) {
    return !change.second || change.second->HasFinalizer(kFinalizer);
  });
  for (auto& [name, object] : changes) {
    if (object) {
      Hold(*std::move(object));
      continue;
    }
    ignored_.erase(name);
    const auto found = objects_.find(name);
    if (found == objects_.end()) continue;
    WarnOfJob(found->second.object);
    objects_.erase(found);
  }
  if (ignored_.empty() || objects_.size() >= objects_max_) return;
  parts_.logger->Info(
      absl::StrCat("TrainingJobs that were ignored have a place now: objects=", ignored_.size()));
  ignored_.clear();
  parts_.wish_for_list();
}

void ObjectTable::Hold(JobObject object) {
  const auto found = objects_.find(object.name);
  if (found == objects_.end() && objects_.size() >= objects_max_) {
    if (ignored_.empty())
      parts_.logger->Warning(
          absl::StrCat("too many TrainingJobs, further ones are ignored: max=", objects_max_));
    ignored_.insert(object.name);
    return;
  }
  HeldObject& held = objects_[object.name];
  if (found != objects_.end() && held.object.uid != object.uid) {
    WarnOfJob(held.object);
    held = HeldObject();
  }
  held.Take(std::move(object));
  held.idle = false;
  held.failures = 0;
  held.not_before = MonoTime(0);
}

// An object that no longer exists can leave a job that nobody cancels.
void ObjectTable::WarnOfJob(const JobObject& object) const {
  const v1::JobStatus* const job = parts_.jobs->Find(RequestId(object));
  if (job == nullptr || HasEnded(*job)) return;
  parts_.logger->Warning(absl::StrCat(
      "an object was removed without its finalizer, its job continues: object=", object.name,
      " job_uid=", JobUidString(JobUid(job->job_uid()))));
}

void ObjectTable::ForgetIdleness() {
  for (auto& [name, held] : objects_) held.idle = false;
}

void ObjectTable::Count() {
  std::size_t open = 0, invalid = 0, failing = 0;
  for (const auto& [name, held] : objects_) {
    if (held.failures > 0) ++failing;
    const Json& status = held.object.status;
    if (TextOf(status, "state") == "INVALID")
      ++invalid;
    else if (TextOf(FindCondition(status, "Finished"), "status") != "True")
      ++open;
  }
  parts_.metrics->objects.Set(static_cast<double>(objects_.size()));
  parts_.metrics->objects_open.Set(static_cast<double>(open));
  parts_.metrics->objects_invalid.Set(static_cast<double>(invalid));
  parts_.metrics->objects_failing.Set(static_cast<double>(failing));
  parts_.metrics->objects_ignored.Set(static_cast<double>(ignored_.size()));
}

}  // namespace evergrad::kubernetes
