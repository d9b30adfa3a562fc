// Which servers keep the running attempt waiting, for the coordinator and for people: those that it
// cannot reach (a worker that is cut off from a server that lives loses its work to one that is
// not), and the one whose answer is slow. Pure; not thread-safe.
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
  static constexpr std::size_t kServersMax = 64;        // that are told of
  static constexpr std::chrono::seconds kSlowAfter{2};  // an answer that takes longer is told of

  // A call to `server` begins, or has ended, however it did.
  void Asked(const std::string& server, MonoTime now);
  void Ended(const std::string& server);
  // A call to `server` failed. Only Unavailable says that the server cannot be reached: one that is
  // slow can be. The first one counts: `since` stays until an answer, or until the server has
  // another address.
  void Failed(const std::string& server, const std::string& address, const absl::Status& status,
              MonoTime now);
  void Answered(const std::string& server, MonoTime now);
  void Keep(const std::set<std::string>&
                servers);  // forgets the others: nothing is wanted of them any more
  void Fill(MonoTime now, v1::WorkerProgress* progress) const;

 private:
  struct Unreached {
    std::string address, reason;
    MonoTime since{0};
  };
  struct Awaited {
    std::uint32_t calls = 0;  // 0: the last one failed, and is made again
    MonoTime since{0};        // of the last answer, or of the first call after it
  };
  std::map<std::string, Unreached> unreached_;  // by identity; as many as the map has servers
  std::map<std::string, Awaited> awaited_;      // likewise
};

}  // namespace evergrad::worker
