// The objects that the controller serves. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/log/log.h"
#include "common/time/clock.h"
#include "kubernetes/controller/job_list_view.h"
#include "kubernetes/controller/object_feed.h"
#include "kubernetes/controller/operator_metrics.h"
#include "kubernetes/reconcile/decide.h"
#include "kubernetes/reconcile/job_text.h"

namespace evergrad::kubernetes {

// The knowledge about one object beside its newest version.
struct HeldObject {
  JobObject object;
  std::optional<Submission> submission;  // made from the generation `prepared`
  std::int64_t prepared = -1;
  std::optional<Refusal> refusal;  // of the generation `prepared`
  MonoTime submitted{-1};          // end of the last call of SubmitJob; -1 for none by this process
  MonoTime not_before{0};          // no step is taken before this time
  MonoTime next_submission{0};
  MonoTime next_progress{0};
  MonoTime next_cancel{0};
  int failures = 0;                     // of requests to the API server, in a row
  int refused = 0;                      // submissions that may succeed later, in a row
  std::uint64_t seen_revision = ~0ull;  // of the job, at the last round that had nothing to do
  bool idle = false;   // nothing to do before the object, the job or the coordinator changes
  std::string metric;  // of the epoch `metric_epoch`
  std::uint64_t metric_epoch = 0;

  // Takes a newer version. The spec of an object that has a job is not kept.
  void Take(JobObject newer);
};

class ObjectTable {
 public:
  // The objects outlive the table.
  struct Parts {
    const JobListView* jobs = nullptr;
    log::Logger* logger = nullptr;
    OperatorMetrics* metrics = nullptr;
    std::function<void()> wish_for_list;
  };
  // Objects above the number `objects_max` are ignored until there is a place.
  ObjectTable(std::size_t objects_max, Parts parts)
      : objects_max_(objects_max), parts_(std::move(parts)) {}

  void Take(ObjectFeed::Changes changes);
  std::map<std::string, HeldObject>& objects() { return objects_; }  // by name
  // Makes every object look for something to do.
  void ForgetIdleness();
  // Brings the metrics up to date.
  void Count();

 private:
  void Hold(JobObject object);
  void WarnOfJob(const JobObject& object) const;

  const std::size_t objects_max_;
  const Parts parts_;
  std::map<std::string, HeldObject> objects_;
  std::set<std::string> ignored_;  // names of objects above objects_max
};

}  // namespace evergrad::kubernetes
