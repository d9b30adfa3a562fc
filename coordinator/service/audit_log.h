// The audit log: a line of the process's log for each call that changes something, and for each
// call that is refused. Example:
//
//   audit: action=CancelJob caller=user/bob peer=ipv4:10.0.0.7:51022 object=mnist/0123456789abcdef
//   result=PERMISSION_DENIED: the job belongs to another user: …
//
// Every value is escaped, and quoted if it could be read as several values. The number of lines is
// limited, so that a caller cannot fill the disk: refused and failed calls of a caller beyond a
// rate are only counted, and the log states their number. A successful call has no further line if
// the last successful call about the same object was the same call of the same caller, within the
// last minute. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/log/log.h"
#include "common/time/clock.h"
#include "common/transport/transport.h"
#include "coordinator/service/caller.h"
#include "coordinator/service/control_calls.h"

namespace evergrad::coordinator {

struct AuditLimits {
  // Lines about refused and failed calls of one caller: the number that may come at once, and the
  // number per second after that.
  double failed_burst = 20, failed_per_second = 1;
  // A successful call that is repeated within this time has no further line.
  std::chrono::milliseconds repeated_within{60'000};
  std::size_t remembered_max = 1024;  // limit of the objects whose last call is remembered
  std::size_t callers_max = 64;       // further callers share one rate
};

class AuditLog {
 public:
  struct Entry {
    std::string action;  // the name of the RPC: "CancelJob"
    Caller caller;
    std::string object;       // "mnist/0123456789abcdef" or "worker/0"; "" if the call has none
    std::string detail = {};  // "on=true"; "" if the call has none
  };
  // `logger` and `clock` outlive the log.
  AuditLog(log::Logger* logger, const Clock* clock, AuditLimits limits = AuditLimits())
      : logger_(logger), clock_(clock), limits_(limits) {}

  void Write(const Entry& entry, const absl::Status& result);
  // Writes the numbers of the calls that were only counted, once the rate of their caller permits a
  // line.
  void Tick();

 private:
  bool IsRepeated(const Entry& entry, MonoTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The lines about refused and failed calls of one caller.
  struct Bucket {
    double tokens = 0;  // lines that may come now
    MonoTime filled_at{0};
    std::uint64_t left_out = 0;  // calls that were only counted
  };
  struct Remembered {
    std::string call;
    MonoTime at{0};
  };
  Bucket& BucketOf(const std::string& caller, MonoTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fill(Bucket* bucket, MonoTime now) const;
  bool TakeToken(Bucket* bucket, MonoTime now) const;
  void WriteLeftOut(const std::string& caller, std::uint64_t left_out);

  log::Logger* const logger_;
  const Clock* const clock_;
  const AuditLimits limits_;
  Mutex mu_;
  std::map<std::string, Bucket> buckets_ ABSL_GUARDED_BY(mu_);  // by NameOf(caller)
  // The last successful call about each object.
  std::map<std::string, Remembered> remembered_ ABSL_GUARDED_BY(mu_);
};

// Returns a responder that passes the answer to `responder`. It first writes the line of the call,
// if the row of the call demands one or the call is refused. A call whose responder is destroyed
// without an answer has a line, too. The log is shared with the responders, because a call may
// outlive the control plane.
Responder Audited(std::shared_ptr<AuditLog> log, const ControlCall& call, AuditLog::Entry entry,
                  Responder responder);

}  // namespace evergrad::coordinator
