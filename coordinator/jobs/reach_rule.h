// Decides whether a live worker cannot reach a live server. The work of such a worker goes to
// workers that can reach the server. Pure: each call passes the time as `now`.
//
// A worker reports for how long it has had no answer from a server. The report counts only if the
// reported time and the age of the server's own session are at least `after`. While a server is
// disconnected, or has just returned, no worker can reach it, and no worker is to blame.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include <google/protobuf/repeated_field.h>

#include "common/base/ids.h"
#include "common/time/clock.h"
#include "evergrad/v1/types.pb.h"

namespace evergrad::coordinator {

class ReachRule {
 public:
  using Said = google::protobuf::RepeatedPtrField<v1::UnreachedServer>;
  explicit ReachRule(std::chrono::milliseconds after) : after_(after) {}  // 0 turns the rule off

  // Notes the server's present registration, and whether its session is `ready`. Called at every
  // tick. `wanted` is true if the server has shards that the job's workers need.
  void Server(const std::string& identity, TaskId registration, bool ready, bool wanted,
              MonoTime now);
  // `said` are the reports of a worker. Returns the report about a server that the worker cannot
  // reach, or null if there is none.
  const v1::UnreachedServer* FindUnreached(const Said& said, MonoTime now) const;

  // Limits the reports of a worker before they are kept and shown: at most 64 servers remain, and
  // their texts are made valid UTF-8 and truncated.
  static void Clean(Said* said);
  // Returns a text like "ps_server/1 at 127.0.0.1:4000 for 12 s (connection refused)".
  static std::string Text(const v1::UnreachedServer& unreached);

 private:
  struct Session {
    TaskId registration;
    bool ready = false, wanted = false;
    MonoTime since{0};
  };
  const std::chrono::milliseconds after_;
  std::map<std::string, Session> servers_;
};

}  // namespace evergrad::coordinator
