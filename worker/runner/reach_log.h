// The servers for which the running attempt waits, reported to the coordinator and to people. A
// report has the unreachable servers, and the server with the slowest answer. If a server lives but
// a worker cannot reach it, the work goes to a worker that can. A pure state machine, not
// thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/time/clock.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::worker {

class ReachLog {
 public:
  static constexpr std::chrono::seconds kSlowAfter{2};  // slower answers are reported

  // Asked declares that a call to `server` has begun. Ended declares that the call has ended,
  // whether or not it succeeded.
  void Asked(const std::string& server, MonoTime now);
  void Ended(const std::string& server);
  // Declares that a call to `server` failed. Only Unavailable means that the server is unreachable.
  // The time of the first failure is reported as `since`, until an answer arrives or the server's
  // address changes.
  void Failed(const std::string& server, const std::string& address, const absl::Status& status,
              MonoTime now);
  void Answered(const std::string& server, MonoTime now);
  // Removes all servers except `servers`. The removed servers have no pending requests any more.
  void Keep(const std::set<std::string>& servers);
  void Fill(MonoTime now, v1::WorkerProgress* progress) const;

 private:
  struct Unreached {
    std::string address, reason;
    MonoTime since{0};
  };
  struct Awaited {
    std::uint32_t calls = 0;  // calls in flight; 0 if the last call failed and will be repeated
    MonoTime since{0};        // time of the last answer, or of the first call after it
  };
  std::map<std::string, Unreached> unreached_;  // by identity; at most the servers of the map
  std::map<std::string, Awaited> awaited_;      // by identity; at most the servers of the map
};

}  // namespace evergrad::worker
