// What the coordinator tells a server to do with its shards, and what the server tells about them (LEDGER lines 20a, 21, 24, 25).
//
// Everything but the shards' own callbacks runs on the control executor. Keeps a directory of what is held: epoch, start, and
// the closed and refused closures of each shard, because a Hello must be made without waiting for a shard's executor. Those
// sets change only by Assign and Close, which pass here first, so the directory is never behind what was asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/log/log.h"
#include "common/runtime/executor.h"
#include "evergrad/v1/session.pb.h"
#include "ps_server/service/shard_host.h"

namespace evergrad::ps_server {

class Control {
 public:
  struct Options {
    runtime::Executor* executor = nullptr;  // All pointers outlive the control; both executors are shut down before it is destroyed.
    ShardHost* host = nullptr;
    log::Logger* logger = nullptr;
    // SessionClient::Send: false when there is no session.
    std::function<bool(v1::TaskMessage)> send;
  };
  explicit Control(Options options) : options_(std::move(options)) {}

  // highest_term, life_id and shards of a Hello.
  void FillHello(v1::Hello* hello);
  void OnRegistered(const v1::Registered& registered);
  void OnMessage(const v1::CoordinatorMessage& message);
  // The session ended; what is held goes on being served (line 17).
  void OnLost();
  // shards, bytes, updates_applied, duplicates_refused.
  v1::ServerProgress Progress() const;
  std::size_t jobs_named() const { return job_names_.size(); }  // at most those held and the running one

 private:
  struct Held {
    ShardEpoch epoch;
    MapVersion start;
    IntervalSet done, refused;
    bool loading = true;
    std::uint64_t value_bytes = 0, slot_bytes = 0;
  };
  void OnAssign(const v1::Assign& assign);
  void OnLoaded(ShardKey key, ShardEpoch epoch, const ShardLane::Loaded& loaded);
  void OnDrop(const v1::Drop& drop);
  void OnClose(const v1::Close& close);
  void OnSeal(const v1::Seal& seal);
  void OnReport(const v1::ReportShards& request);
  void OnReadLogs(const v1::ReadLogs& request);
  void OnJobEnded(const v1::JobEnded& ended);
  void SendAssigned(ShardKey key, ShardEpoch epoch, const absl::Status& status);
  // The answers of a session are not sent in the next one: its Hello says what is held.
  void SendIn(std::uint64_t session, v1::TaskMessage message);
  void ForgetJobIfUnheld(JobUid job);
  void NameJob(const v1::JobInfo* running);
  log::Context About(JobUid job) const;

  const Options options_;
  std::map<ShardKey, Held> held_;
  std::vector<v1::TaskMessage> unsent_assigned_;  // finished without a session; at most one a shard
  std::map<JobUid, std::string> job_names_;       // of the jobs held and the running one
  std::uint64_t highest_term_ = 0, life_id_ = 0;
  std::uint64_t session_ = 0;  // number of the session, for answers that come late
  std::size_t loading_ = 0;
};

}  // namespace evergrad::ps_server
