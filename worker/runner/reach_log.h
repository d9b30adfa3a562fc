// Which servers the running attempt tries to reach and cannot, for the coordinator: a worker that is cut off from a server that lives loses its work
// to one that is not. Pure; not thread-safe.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "common/time/clock.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::worker {

class ReachLog {
 public:
  static constexpr std::size_t kServersMax = 64;  // that are told of

  // A call to `server` came to nothing. The first one counts: `since` stays until an answer, or until the server has another address.
  void Failed(const std::string& server, const std::string& address, absl::string_view reason, MonoTime now);
  void Answered(const std::string& server) { unreached_.erase(server); }
  void Keep(const std::set<std::string>& servers);  // forgets the others: nothing is wanted of them any more
  void Fill(MonoTime now, v1::WorkerProgress* progress) const;

 private:
  struct Unreached {
    std::string address, reason;
    MonoTime since{0};
  };
  std::map<std::string, Unreached> unreached_;  // by identity; as many as the map has servers
};

}  // namespace evergrad::worker
