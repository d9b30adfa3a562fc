// How many registrations are accepted in a time. Pure: the clock is the `now` of each call.
//
// A registration costs the coordinator log lines, table rows and messages, and whoever has a
// certificate (or reaches a listener without TLS) can ask for as many as he likes. Two buckets of
// tokens bound that: one for each identity, one for all. A cluster whose tasks all start at once,
// or all come back to a coordinator that was started again, takes a token each and finds the bucket
// of all full: it holds twice the number of tasks that may live. A process that only renews its
// registration pays a tenth to its identity's bucket and nothing to that of all. A registration
// that ends without a single message after its Hello costs further tokens: honest tasks send a
// heartbeat at once.
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
    double each_burst = 30, each_per_second = 2;    // of one identity
    double all_burst = 2048, all_per_second = 100;  // of all
    double silent_cost = 10;  // of one that ended without a word, beside its own token
  };
  explicit RegistrationLimit(Options options)
      : options_(options), all_{options.all_burst, MonoTime{0}} {}

  struct Verdict {
    bool accepted = true;
    bool of_all = false;  // refused: by the bucket of all, not by the identity's
    std::chrono::milliseconds retry_after{
        0};  // refused: when there will be a token, unless others take it
  };
  enum class Who {
    kNewcomer,
    kKnown,   // the last process of this identity has said something
    kRenews,  // and it is that process that comes back
  };
  // `task`: role and identity.
  Verdict Take(MonoTime now, const std::string& task, Who who);
  void EndedSilent(MonoTime now);

  double recent(MonoTime now) const;  // tokens that are missing in the bucket of all
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
  std::map<std::string, Bucket> each_;  // those that are not full, as of the last look
};

}  // namespace evergrad::coordinator
