// When a worker that lives is cut off from a server that lives: its work goes to workers that can
// reach the server. Pure; the clock is each call's `now`.
//
// A worker reports since when it has had no answer from a server. That counts once both that report
// and the server's own session have lasted `after`: while a server is away, or has only just come
// back, no worker reaches it, and none is to blame.
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
  explicit ReachRule(std::chrono::milliseconds after)
      : after_(after) {}  // 0: nobody is ever cut off

  // The session of the server's present registration, told at every tick. `wanted`: it has shards
  // that the job's workers need.
  void Server(const std::string& identity, TaskId registration, bool ready, bool wanted,
              MonoTime now);
  // Of what a worker has said, the server that it is cut off from; null: none.
  const v1::UnreachedServer* CutOff(const Said& said, MonoTime now) const;

  // What a worker said, as it may be kept and shown: at most 64 servers, clean texts.
  static void Clean(Said* said);
  // "ps_server/1 at 127.0.0.1:4000 for 12 s (connection refused)".
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
