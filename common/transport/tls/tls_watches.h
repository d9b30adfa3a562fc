// The watches of one owner (a transport or a daemon), and the thread that checks them.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/runtime/executor.h"
#include "common/transport/tls/tls_watch.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

// Thread-safe.
class TlsWatches {
 public:
  // The time between two checks of the same files.
  static constexpr std::chrono::seconds kInterval{5};

  explicit TlsWatches(std::chrono::nanoseconds interval = kInterval) : interval_(interval) {}
  // Ends the thread. The watches stay valid, and are not checked any more.
  ~TlsWatches();
  TlsWatches(const TlsWatches&) = delete;
  TlsWatches& operator=(const TlsWatches&) = delete;

  // Returns the watch of these files, which all listeners and channels of the owner share. The
  // first call with the files reads them, with the errors of LoadTls. Returns null for no files,
  // and files.watch if it is set. The number of watches is the number of distinct sets of files
  // that the process itself names.
  absl::StatusOr<std::shared_ptr<TlsWatch>> WatchOf(const TlsFiles& files);

  // Checks `watch` at intervals from now on.
  void Add(std::shared_ptr<TlsWatch> watch);

 private:
  struct Watched {
    TlsFiles files;
    std::shared_ptr<TlsWatch> watch;
  };
  void AddLocked(Watched watched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run();

  const std::chrono::nanoseconds interval_;
  runtime::WaitableEvent stop_;
  Mutex mu_;
  std::vector<Watched> watched_ ABSL_GUARDED_BY(mu_);
  std::optional<runtime::Thread> thread_ ABSL_GUARDED_BY(mu_);  // runs once there is a watch
};

}  // namespace evergrad::transport
