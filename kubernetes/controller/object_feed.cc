#include "kubernetes/controller/object_feed.h"

#include <utility>

namespace evergrad::kubernetes {

void ObjectFeed::Replace(std::vector<JobObject> objects) {
  MutexLock lock(&mu_);
  std::set<std::string> names;
  for (JobObject& object : objects) {
    names.insert(object.name);
    changes_[object.name] = std::move(object);
  }
  for (const std::string& name : names_)
    if (!names.contains(name)) changes_[name] = std::nullopt;
  names_ = std::move(names);
  listed_ = true;
  changed_.NotifyAll();
}

void ObjectFeed::Put(JobObject object) {
  MutexLock lock(&mu_);
  names_.insert(object.name);
  const std::string name = object.name;
  changes_[name] = std::move(object);
  changed_.NotifyAll();
}

void ObjectFeed::Remove(const std::string& name) {
  MutexLock lock(&mu_);
  names_.erase(name);
  changes_[name] = std::nullopt;
  changed_.NotifyAll();
}

void ObjectFeed::WishForList() {
  MutexLock lock(&mu_);
  wished_ = true;
}

bool ObjectFeed::TakeWish() {
  MutexLock lock(&mu_);
  return std::exchange(wished_, false);
}

void ObjectFeed::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.NotifyAll();
}

ObjectFeed::Changes ObjectFeed::Take(std::chrono::nanoseconds timeout) {
  MutexLock lock(&mu_);
  if (changes_.empty() && !stopped_ && timeout > std::chrono::nanoseconds(0))
    changed_.WaitFor(&mu_, timeout);
  Changes changes;
  for (auto& [name, object] : changes_) changes.emplace_back(name, std::move(object));
  changes_.clear();
  return changes;
}

bool ObjectFeed::stopped() const {
  MutexLock lock(&mu_);
  return stopped_;
}

bool ObjectFeed::listed() const {
  MutexLock lock(&mu_);
  return listed_;
}

}  // namespace evergrad::kubernetes
