// Sends a server's messages to the coordinator, each in the session to which it belongs.
//
// An answer to an order is sent only in the session of the order, because the Hello of the next
// session reports the held shards. `Assigned` is the exception: without a session it is kept and
// sent in the next session, because the Hello of that session may have reported the shard as
// loading. Runs on the control executor.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::ps_server {

class SessionSender {
 public:
  // `send` is SessionClient::Send, which returns false if there is no session.
  explicit SessionSender(std::function<bool(v1::TaskMessage)> send) : send_(std::move(send)) {}

  // Begins a session and sends the kept messages.
  void Begin() {
    ++session_;
    for (v1::TaskMessage& message : std::exchange(kept_, {})) send_(std::move(message));
  }
  // Ends the session. Late answers in this session are recognised by its number and dropped.
  void End() { ++session_; }
  std::uint64_t session() const { return session_; }

  void Send(v1::TaskMessage message) { send_(std::move(message)); }
  // Sends the message only if `session` has not ended.
  void SendIn(std::uint64_t session, v1::TaskMessage message) {
    if (session == session_) send_(std::move(message));
  }
  // Sends the answer. Without a session, keeps the answer in place of an older answer for the same
  // shard.
  void SendAssigned(const v1::Assigned& assigned) {
    v1::TaskMessage message;
    *message.mutable_assigned() = assigned;
    if (send_(message)) return;
    std::erase_if(kept_, [&](const v1::TaskMessage& kept) {
      return kept.assigned().job_uid() == assigned.job_uid() &&
             kept.assigned().shard() == assigned.shard();
    });
    kept_.push_back(std::move(message));
  }
  // Drops the kept answers of a job.
  void ForgetJob(JobUid job) {
    std::erase_if(kept_, [&](const v1::TaskMessage& kept) {
      return kept.assigned().job_uid() == job.value();
    });
  }

 private:
  const std::function<bool(v1::TaskMessage)> send_;
  std::uint64_t session_ = 0;
  std::vector<v1::TaskMessage> kept_;  // Assigned, at most one for each shard
};

}  // namespace evergrad::ps_server
