// The servers that leave and wait for the message Drained. A server gets Drained once each running
// job has moved the server's shards to other servers, has given a reason why it cannot, or has
// ended.
//
// Not thread-safe: the control executor owns it. An entry lives as long as its session.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/base/ids.h"
#include "coordinator/service/job_table.h"
#include "coordinator/service/session_table.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class ServerDrains {
 public:
  // `jobs` and `sessions` outlive this object.
  ServerDrains(const JobTable* jobs, SessionTable* sessions) : jobs_(jobs), sessions_(sessions) {}

  // Records that a server leaves and waits for Drained. A repeated call changes nothing.
  void Begin(TaskId server) { drains_[server].waits = true; }
  bool Waits(TaskId server) const;  // also true after Drained was sent
  // Records that one job has moved the server's shards to other servers, or cannot move them.
  void OnDrained(TaskId server, const v1::Drained& drained);
  void Check(TaskId server);  // sends Drained, once, if the server waits for no job any more
  void CheckAll();
  void Remove(TaskId server) { drains_.erase(server); }

 private:
  struct Drain {
    bool waits = false, said = false;
    // The jobs that have finished their moves. The value is "", or the reason why the shards could
    // not be moved.
    std::map<std::uint64_t, std::string> jobs;
  };
  void Check(TaskId server, Drain& drain);

  const JobTable* const jobs_;
  SessionTable* const sessions_;
  std::map<TaskId, Drain> drains_;
};

}  // namespace evergrad::coordinator
