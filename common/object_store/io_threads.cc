#include "common/object_store/io_threads.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace evergrad::object_store {

IoThreads::~IoThreads() {
  std::vector<runtime::Thread> ending;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    ending.swap(threads_);
    changed_.NotifyAll();
  }
  ending.clear();  // joins the threads
}

void IoThreads::Post(Task task) {
  MutexLock lock(&mu_);
  PostLocked(std::move(task));
}

void IoThreads::PostUnlessBusy(Task task) {
  MutexLock lock(&mu_);
  if (queue_.size() < static_cast<std::size_t>(count_)) PostLocked(std::move(task));
}

void IoThreads::PostLocked(Task task) {
  queue_.push_back(std::move(task));
  changed_.NotifyOne();
  while (threads_.size() < static_cast<std::size_t>(count_))
    threads_.emplace_back(absl::StrCat("objects/", threads_.size()), [this] { Run(); });
}

void IoThreads::Run() {
  for (;;) {
    Task task;
    {
      MutexLock lock(&mu_);
      while (queue_.empty() && !stopping_) changed_.Wait(&mu_);
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

}  // namespace evergrad::object_store
