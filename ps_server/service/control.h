// Carries out the coordinator's orders about shards, and reports to the coordinator (LEDGER lines
// 20a, 21, 22, 24, 25, 27, 28).
//
// Runs on the control executor, except for the callbacks of shards. It keeps a directory of the
// held shards: epoch, start, and the closed and refused closures of each. The directory is needed
// because a Hello must be made without waiting for a shard's executor. Only Assign and Close change
// these sets, and both pass through here first, so the directory always covers the received orders.
// The sets of a snapshot are known once it is loaded; until then the Hello reports "loading".
//
// An order for a snapshot is answered once per shard, in the session of the order: with the file,
// or with the reason for its absence. There is one exception: if a newer order for the same shard
// replaces an order that waits, the answer to the newer order answers both.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/client/parameter_client.h"
#include "common/log/log.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "evergrad/v1/session.pb.h"
#include "ps_server/service/shard_host.h"
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
    // Both are destroyed before the control, because they call its functions.
    SnapshotWriter* writer = nullptr;
    Restorer* restorer = nullptr;
    // Destroyed before the control, too; null if this server moves no shards.
    Images* images = nullptr;
    // Connections to other servers, whose shards move to this server; null for none.
    client::ParameterClient* peers = nullptr;
    // SessionClient::Send, which returns false without a session.
    std::function<bool(v1::TaskMessage)> send;
  };
  explicit Control(Options options) : options_(std::move(options)) {}

  // Fills in highest_term, life_id and shards of a Hello.
  void FillHello(v1::Hello* hello);
  void OnRegistered(const v1::Registered& registered);
  void OnMessage(const v1::CoordinatorMessage& message);
  // The session has ended. The held shards continue to serve (line 17).
  void OnLost();
  // Returns shards, bytes, updates_applied and duplicates_refused.
  v1::ServerProgress Progress() const;
  // Number of running jobs of the session, and of other jobs with a held shard.
  std::size_t jobs_named() const { return job_names_.size(); }

 private:
  struct Held {
    ShardEpoch epoch;
    MapVersion start;
    IntervalSet done, refused;
    bool loading = true;
    std::uint64_t stopped_in = 0;  // term of the coordinator that stopped it; 0: it serves
    std::string file;              // "": from the seed; otherwise the URI of its file
    MonoTime assigned{};           // when
    bool rows = false;             // a table slot: its size is read elsewhere
    std::uint64_t value_bytes = 0, state_bytes = 0;
  };
  // Counts the orders of one CutShards, for the log.
  struct CutRound {
    JobUid job;
    MonoTime begin{};
    std::size_t shards = 0, left = 0, files = 0, failed = 0;
    std::uint64_t bytes = 0;
    std::string first_failure;
    bool told_of_retry = false;
  };
  void OnAssign(const v1::Assign& assign);
  // It is called when the old shard has been freed, so that the file can be read.
  void BeginRestore(RestoreOptions what);
  void OnRestored(ShardKey key, ShardEpoch epoch, absl::StatusOr<std::unique_ptr<Shard>> shard);
  void OnLoaded(ShardKey key, ShardEpoch epoch, const ShardExecutor::Loaded& loaded);
  // --- line 22, at the server that gives the shard
  void OnStop(const v1::StopShard& stop);
  void OnStopped(ShardKey key, ShardEpoch epoch, std::uint64_t session,
                 const std::string& fingerprint, absl::StatusOr<ShardCut> cut);
  void SendStopped(ShardKey key, ShardEpoch epoch, std::uint64_t session,
                   const absl::StatusOr<snapshot::FileDigest>& image);
  // --- line 22, at the server that receives the shard
  struct Moving {  // a shard that is being read, or that has been read and is not assigned yet
    ShardEpoch from;
    std::uint64_t number = 0;                // number of the order
    std::unique_ptr<Shard> shard = nullptr;  // null while it is being read
    // Shared with the reader.
    std::shared_ptr<std::atomic<bool>> unwanted = std::make_shared<std::atomic<bool>>(false);
  };
  void OnReceive(const v1::ReceiveShard& receive);
  absl::Status BeginReceive(const v1::ReceiveShard& receive);
  void OnReceived(ShardKey key, std::uint64_t number, absl::StatusOr<std::unique_ptr<Shard>> shard);
  void SendReceived(ShardKey key, ShardEpoch from, std::uint64_t session,
                    const absl::Status& status);
  void Forget(std::map<ShardKey, Moving>::iterator moving);
  void OnCut(const v1::CutShards& cut);
  void OnCutEnded(ShardKey key, ShardEpoch epoch, std::uint64_t session, CutRound* round,
                  const absl::StatusOr<DurableCut>& result);
  bool IsLoading(ShardKey key, ShardEpoch epoch) const;
  void OnDrop(const v1::Drop& drop);
  void OnClose(const v1::Close& close);
  void OnSeal(const v1::Seal& seal);
  void OnReport(const v1::ReportShards& request);
  void OnReadLogs(const v1::ReadLogs& request);
  void OnJobEnded(const v1::JobEnded& ended);
  void SendAssigned(ShardKey key, ShardEpoch epoch, const absl::Status& status);
  // Sends the message in its session only. An answer is not sent in the next session, because its
  // Hello reports the held shards.
  void SendIn(std::uint64_t session, v1::TaskMessage message);
  void ForgetJobIfUnheld(JobUid job);
  void ForgetUnheldJobs();
  void NameJob(const v1::JobInfo& info);
  bool Holds(JobUid job) const;  // whether a shard of the job is held
  log::Context About(JobUid job) const;

  const Options options_;
  std::map<ShardKey, Held> held_;
  // The shards that the coordinator is moving to this server; they end with its session.
  std::map<ShardKey, Moving> moving_;
  // Answers for shards that were loaded without a session; at most one per shard.
  std::vector<v1::TaskMessage> unsent_assigned_;
  std::map<JobUid, std::string> job_names_;  // names of the jobs that run; bounded
  std::uint64_t highest_term_ = 0, life_id_ = 0;
  bool journaled_ = false;     // the newest coordinator that registered this server keeps a journal
  std::uint64_t term_ = 0;     // term of the session
  std::uint64_t session_ = 0;  // number of the session, to recognise late answers
  std::size_t loading_ = 0;
  std::uint64_t receives_ = 0;
};

}  // namespace evergrad::ps_server
