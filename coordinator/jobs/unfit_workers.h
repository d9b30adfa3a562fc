// Worker processes that cannot take part in a job: their device, their build, their data, or a
// server that they cannot reach (v1::Lack). Pure; the control executor's.
//
// What such a worker was given goes to others. It is tried again after 1, 2, 4 … s, at most
// aside_max, until it has ended something; then it is fit, and what it lacked is remembered for ten
// minutes, so that the same news is not told twice.
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
    std::optional<v1::UnreachedServer> unreached = std::nullopt;  // REACH: the server.
    bool fit = false;                                             // It has ended something since.
    std::uint32_t times = 0;  // That it could not take part, since then.
    MonoTime again_at{0};     // It is given nothing before.
  };
  explicit UnfitWorkers(std::chrono::milliseconds aside_max) : aside_max_(aside_max) {}

  // Whether it is given nothing now.
  bool IsAside(std::uint64_t process, MonoTime now) const;
  // Null: as far as is known it can take part.
  const Record* Of(std::uint64_t process) const;

  struct Change {
    bool news = false;   // It lacks something else than before, or lacked nothing.
    bool aside = false;  // Its time begins anew: its attempts go to others.
  };
  // It could not do what it was given. A repeat while it is set aside changes nothing.
  Change Add(std::uint64_t process, v1::Lack missing_ability, std::string why, MonoTime now);
  void SetUnreached(std::uint64_t process, const v1::UnreachedServer& server);
  void TryAgainBy(std::uint64_t process,
                  MonoTime at);                      // No later than `at`; the process was added.
  void SetFit(std::uint64_t process, MonoTime now);  // It has ended something.
  void Forget(std::uint64_t process) { records_.erase(process); }  // It is gone.

 private:
  const std::chrono::milliseconds aside_max_;
  std::map<std::uint64_t, Record> records_;  // By process.
};

}  // namespace evergrad::coordinator
