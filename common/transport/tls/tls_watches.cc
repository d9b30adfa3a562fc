#include "common/transport/tls/tls_watches.h"

#include <utility>

#include "common/base/status.h"

namespace evergrad::transport {
namespace {

bool SameFiles(const TlsFiles& a, const TlsFiles& b) {
  return a.ca == b.ca && a.cert == b.cert && a.key == b.key && a.task == b.task;
}

}  // namespace

TlsWatches::~TlsWatches() {
  stop_.Set();
  std::optional<runtime::Thread> thread;
  {
    MutexLock lock(&mu_);
    thread = std::exchange(thread_, std::nullopt);
  }
  // The destructor of `thread` waits for its end, without the lock.
}

absl::StatusOr<std::shared_ptr<TlsWatch>> TlsWatches::WatchOf(const TlsFiles& files) {
  if (files.empty() || files.watch != nullptr) return files.watch;
  {
    MutexLock lock(&mu_);
    for (const Watched& known : watched_)
      if (SameFiles(known.files, files)) return known.watch;
  }
  EG_ASSIGN_OR_RETURN(std::shared_ptr<TlsWatch> watch, TlsWatch::Open(files));
  MutexLock lock(&mu_);
  for (const Watched& known : watched_)  // another thread may have added one meanwhile
    if (SameFiles(known.files, files)) return known.watch;
  AddLocked({files, watch});
  return watch;
}

void TlsWatches::Add(std::shared_ptr<TlsWatch> watch) {
  MutexLock lock(&mu_);
  AddLocked({{}, std::move(watch)});
}

void TlsWatches::AddLocked(Watched watched) {
  watched_.push_back(std::move(watched));
  if (!thread_) thread_.emplace("tls_watch", [this] { Run(); });
}

void TlsWatches::Run() {
  while (!stop_.WaitFor(interval_)) {
    std::vector<std::shared_ptr<TlsWatch>> watches;
    {
      MutexLock lock(&mu_);
      for (const Watched& watched : watched_) watches.push_back(watched.watch);
    }
    for (const auto& watch : watches) watch->Check();
  }
}

}  // namespace evergrad::transport
