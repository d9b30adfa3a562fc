// Limits the rate of registrations. Pure: each call passes the time as `now`.
//
// A registration costs the coordinator log lines, table rows and messages. Anyone with a
// certificate, or with access to a listener without TLS, can send any number of registrations.
// Token buckets limit the rate: one bucket per identity, and one common bucket for all identities.
// A cluster whose tasks all start at once, or all reconnect to a restarted coordinator, takes one
// token per task. Before such a start the common bucket is full, and it holds twice as many tokens
// as the largest number of living tasks. A process that only renews its registration pays a tenth
// of a token to the bucket of its identity, and nothing to the common bucket. If a session ends
// without a message after its Hello, its registration costs further tokens, because correct tasks
// send a heartbeat at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "common/time/clock.h"

namespace evergrad::coordinator {

class RegistrationLimit {
 public:
  struct Options {
    double each_burst = 30, each_per_second = 2;    // bucket of one identity
    double all_burst = 2048, all_per_second = 100;  // common bucket
    // The cost of a registration that ended without a message, in addition to its own token.
    double silent_cost = 10;
  };
  explicit RegistrationLimit(Options options)
      : options_(options), all_{options.all_burst, MonoTime{0}} {}

  struct Verdict {
    bool accepted = true;
    bool of_all = false;  // refused by the common bucket, not by the bucket of the identity
    // The time after a refusal until a token is available, unless other registrations take it.
    std::chrono::milliseconds retry_after{0};
  };
  enum class Who {
    kNewcomer,
    kKnown,   // the previous process of this identity has sent a message
    kRenews,  // the same process registers again
  };
  // `task` is role and identity.
  Verdict Take(MonoTime now, const std::string& task, Who who);
  void EndedSilent(MonoTime now);

  double recent(MonoTime now) const;  // tokens that are missing in the common bucket
  const Options& options() const { return options_; }
  std::size_t identities() const { return each_.size(); }

 private:
  struct Bucket {
    double tokens = 0;
    MonoTime at{0};
  };
  static double Refilled(const Bucket& bucket, MonoTime now, double burst, double per_second);
  void ForgetFull(MonoTime now);

  const Options options_;
  Bucket all_;
  std::map<std::string, Bucket> each_;  // buckets that were not full at the last check
};

}  // namespace evergrad::coordinator
