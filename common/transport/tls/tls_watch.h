// Reads the three TLS files of a task again while the process runs, so that renewed certificates
// and authorities are used without a restart.
//
// The files are compared by their contents. New contents are used only if CheckReload accepts all
// three files together. While the files are missing, half-written, expired, of another task, or do
// not belong together, the contents in use stay in use. A symbolic link that is replaced while the
// files are read (Kubernetes replaces a volume of a Secret in this way) gives files of two
// generations. They are refused unless they belong together, and the next check reads the rest.
//
// Thread-safe. TlsWatches (tls_watches.h) calls Check at intervals.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/transport/tls/tls_files.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

class TlsWatch {
 public:
  // Either function may be empty. They are called in Check, on the thread that calls it.
  struct Events {
    // The new contents are in use from now on.
    std::function<void(const TlsPems&)> reloaded;
    // The files have new contents that cannot be used. A reason that lasts is reported
    // at once and then after each 720 checks.
    std::function<void(const absl::Status&)> refused;
  };
  // Reads the files for the first time. All three must be given. The errors are those of LoadTls.
  static absl::StatusOr<std::shared_ptr<TlsWatch>> Open(const TlsFiles& files, Events events = {});

  // Reads the files and uses them if they have new contents. Blocks while it reads.
  void Check();

  // Returns the contents in use. The ownership is shared with the handshakes that use them.
  std::shared_ptr<const TlsPems> pems() const;

  struct Stats {
    std::uint64_t reloads = 0;        // new contents that were used
    std::uint64_t failures = 0;       // checks that found new contents which cannot be used
    std::int64_t expiry_seconds = 0;  // end of the certificate in use, since 1970-01-01 UTC
  };
  Stats stats() const;

 private:
  TlsWatch(TlsFiles files, Events events, TlsPems pems);
  // Records the result of a check that began with `before`. Returns false if the result must not be
  // reported.
  bool Refuse(const std::shared_ptr<const TlsPems>& before, absl::string_view reason);
  bool Use(const std::shared_ptr<const TlsPems>& before, std::shared_ptr<const TlsPems> after);

  const TlsFiles files_;
  const Events events_;
  mutable Mutex mu_;
  std::shared_ptr<const TlsPems> pems_ ABSL_GUARDED_BY(mu_);
  Stats stats_ ABSL_GUARDED_BY(mu_);
  std::string reason_ ABSL_GUARDED_BY(mu_);   // of the last refusal; "" after a success
  int same_reason_ ABSL_GUARDED_BY(mu_) = 0;  // refusals with this reason after the first
};

}  // namespace evergrad::transport
