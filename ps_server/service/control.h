// Carries out the coordinator's orders about shards, and reports to the coordinator (LEDGER lines
// 20a, 21, 22, 24, 25, 27, 28).
//
// Runs on the control executor, except for the callbacks of shards. Control gives each message to
// the responsible part: ShardDirectory has the held shards, Assignments loads shards,
// ReceivedShards has the shards that are moved to this server, CutOrders has the orders for
// snapshots, StopOrders has the orders for shards that move to another server, and SessionSender
// sends the messages. Control itself passes the other orders on to the shards' executors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/client/parameter_client.h"
#include "common/health/readiness.h"
#include "common/log/log.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "evergrad/v1/session.pb.h"
#include "ps_server/service/assignments.h"
#include "ps_server/service/cut_orders.h"
#include "ps_server/service/received_shards.h"
#include "ps_server/service/session_sender.h"
#include "ps_server/service/shard_directory.h"
#include "ps_server/service/shard_host.h"
#include "ps_server/service/stop_orders.h"
#include "ps_server/snapshot/images.h"
#include "ps_server/snapshot/restorer.h"
#include "ps_server/snapshot/snapshot_writer.h"

namespace evergrad::ps_server {

class Control {
 public:
  struct Options {
    // All pointers outlive the control; both executors are shut down before it is destroyed.
    runtime::Executor* executor = nullptr;
    ShardHost* host = nullptr;
    log::Logger* logger = nullptr;
    const Clock* clock = nullptr;
    fault::Failpoints* failpoints = nullptr;  // may be null
    // Writer and restorer are destroyed before the control, because they call its functions.
    SnapshotWriter* writer = nullptr;
    Restorer* restorer = nullptr;
    // Destroyed before the control, like the writer. Null if this server moves no shards.
    Images* images = nullptr;
    // Connections to the servers from which this server receives shards. Null if this server
    // receives no shards.
    client::ParameterClient* peers = nullptr;
    health::Condition restored;  // met while no assigned shard is loading
    // Sends a message to the coordinator (SessionClient::Send). Returns false if there is no
    // session.
    std::function<bool(v1::TaskMessage)> send;
  };
  explicit Control(Options options);

  // Fills in highest_term, life_id and shards of a Hello.
  void FillHello(v1::Hello* hello);
  void OnRegistered(const v1::Registered& registered);
  void OnMessage(const v1::CoordinatorMessage& message);
  // The session has ended. The held shards continue to serve (LEDGER line 17).
  void OnLost();
  // Sets the fields shards, bytes, updates_applied and duplicates_refused of the result.
  v1::ServerProgress Progress() const;
  // Returns the number of jobs that the coordinator has named as running, or that have a shard at
  // this server.
  std::size_t jobs_named() const { return directory_.jobs_named(); }

 private:
  std::function<ShardExecutor&(ShardId)> ShardExecutors() const;
  // Cancels the orders of a shard, or of all shards of a job, that wait for an I/O thread.
  void CancelOrders(JobUid job, std::optional<ShardId> shard);
  void OnReceive(const v1::ReceiveShard& receive);
  void SendReceived(const ShardKey& key, ShardEpoch from, const absl::Status& status);
  void OnDrop(const v1::Drop& drop);
  void OnClose(const v1::Close& close);
  void OnSeal(const v1::Seal& seal);
  void OnReport(const v1::ReportShards& request);
  void OnJobEnded(const v1::JobEnded& ended);

  const Options options_;
  ShardDirectory directory_;
  SessionSender sender_;
  ReceivedShards received_;
  Assignments assignments_;
  CutOrders cuts_;
  StopOrders stops_;
  std::uint64_t highest_term_ = 0, life_id_ = 0;
  bool journaled_ = false;  // whether the coordinator of the newest session keeps a journal
  std::uint64_t term_ = 0;  // term of the session
};

}  // namespace evergrad::ps_server
