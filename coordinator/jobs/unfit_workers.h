// Worker processes that cannot take part in a job, because of their device, their build, their
// data, or a server that they cannot reach (v1::Lack). Pure; only the control executor calls it.
//
// The work of such a worker goes to other workers. The worker is tried again after 1 s. As long as
// it completes no work, each wait is twice as long as the wait before, up to aside_max. Once it has
// completed work, it counts as fit. The record of a fit worker is kept for ten minutes, so the same
// problem is not reported twice.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/time/clock.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class UnfitWorkers {
 public:
  struct Record {
    v1::Lack missing_ability = v1::NO_LACK;
    std::string why;
    // The unreachable server, if missing_ability is REACH.
    std::optional<v1::UnreachedServer> unreached = std::nullopt;
    // True if it has completed work after its newest failure to take part.
    bool fit = false;
    std::uint32_t times = 0;  // Number of times in a row that it could not take part.
    MonoTime again_at{0};     // It gets no work before this time.
  };
  explicit UnfitWorkers(std::chrono::milliseconds aside_max) : aside_max_(aside_max) {}

  // Returns whether the process gets no work now.
  bool IsAside(std::uint64_t process, MonoTime now) const;
  // Returns the record of an unfit process, or null if it is not known to be unfit.
  const Record* Of(std::uint64_t process) const;

  struct Change {
    bool news = false;   // True if it lacks a different ability than before.
    bool aside = false;  // True if its attempts must go to other workers.
  };
  // Notes that the process could not do its work. A repeated call while it is set aside changes
  // nothing.
  Change Add(std::uint64_t process, v1::Lack missing_ability, const std::string& why, MonoTime now);
  void SetUnreached(std::uint64_t process, const v1::UnreachedServer& server);
  void TryAgainBy(std::uint64_t process,
                  MonoTime at);  // An added process gets work at `at` at the latest.
  void SetFit(std::uint64_t process, MonoTime now);  // Called when the process has completed work.
  // Called when the process is gone.
  void Forget(std::uint64_t process) { records_.erase(process); }

 private:
  const std::chrono::milliseconds aside_max_;
  std::map<std::uint64_t, Record> records_;  // By the uid of the process.
};

}  // namespace evergrad::coordinator
