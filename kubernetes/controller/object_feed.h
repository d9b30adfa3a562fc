// Carries the newest versions of the objects from the thread that watches them to the controller.
// Thread-safe. Several changes of one object become one, so the feed holds at most one version of
// each object.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "kubernetes/api/job_object.h"

namespace evergrad::kubernetes {

class ObjectFeed {
 public:
  // nullopt: the object no longer exists.
  using Changes = std::vector<std::pair<std::string, std::optional<JobObject>>>;

  // Replaces all objects by those of a list.
  void Replace(std::vector<JobObject> objects);
  void Put(JobObject object);
  void Remove(const std::string& name);

  // Asks for a new list of all objects. TakeWish returns whether that has happened since the last
  // call.
  void WishForList();
  bool TakeWish();

  // Ends all waits, now and later.
  void Stop();
  // Waits until there are changes, but at most for `timeout`, and returns them.
  Changes Take(std::chrono::nanoseconds timeout);
  bool stopped() const;
  // Returns whether a list has arrived.
  bool listed() const;

 private:
  mutable Mutex mu_;
  CondVar changed_;
  std::set<std::string> names_ ABSL_GUARDED_BY(mu_);  // of the objects that exist
  std::map<std::string, std::optional<JobObject>> changes_ ABSL_GUARDED_BY(mu_);
  bool wished_ ABSL_GUARDED_BY(mu_) = false;
  bool listed_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace evergrad::kubernetes
