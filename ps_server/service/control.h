// What the coordinator tells a server to do with its shards, and what the server tells about them
// (LEDGER lines 20a, 21, 22, 24, 25, 27, 28).
//
// Everything but the shards' own callbacks runs on the control executor. Keeps a directory of what
// is held: epoch, start, and the closed and refused closures of each shard, because a Hello must be
// made without waiting for a shard's executor. Those sets change only by Assign and Close, which
// pass here first, so the directory is never behind what was asked for; those of a snapshot are
// known once it is loaded, and until then the Hello says so.
//
// An order to cut is answered once for each shard, in the session of the order: with the file, or
// with why there is none. The one exception is an order whose place a newer one of that shard took
// while it waited: the newer one's answer is the answer to both.
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
    runtime::Executor* executor = nullptr;  // All pointers outlive the control; both executors are
                                            // shut down before it is destroyed.
    ShardHost* host = nullptr;
    log::Logger* logger = nullptr;
    const Clock* clock = nullptr;
    fault::Failpoints* failpoints = nullptr;  // may be null
    SnapshotWriter* writer =
        nullptr;  // Both are destroyed before the control: they call what was given to them here.
    Restorer* restorer = nullptr;
    Images* images = nullptr;  // likewise; null: no shard can be moved away
    client::ParameterClient* peers =
        nullptr;  // to other servers, whose shards are moved here; null: none can be
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
  std::size_t jobs_named() const {
    return job_names_.size();
  }  // those that run, by what the session has said, and those held

 private:
  struct Held {
    ShardEpoch epoch;
    MapVersion start;
    IntervalSet done, refused;
    bool loading = true;
    std::uint64_t stopped_in = 0;  // term of the life that stopped it, 0: it serves
    std::string file;              // "": from the seed; URI that it is or was read from
    MonoTime assigned{};           // when
    bool rows = false;             // of tables: what they hold is asked for elsewhere
    std::uint64_t value_bytes = 0, slot_bytes = 0;
  };
  // The orders of one CutShards, for the log.
  struct CutRound {
    JobUid job;
    MonoTime begin{};
    std::size_t shards = 0, left = 0, files = 0, failed = 0;
    std::uint64_t bytes = 0;
    std::string first_failure;
    bool told_of_retry = false;
  };
  void OnAssign(const v1::Assign& assign);
  // The shard's place is empty: its file may be read.
  void BeginRestore(RestoreOptions what);
  void OnRestored(ShardKey key, ShardEpoch epoch, absl::StatusOr<std::unique_ptr<Shard>> shard);
  void OnLoaded(ShardKey key, ShardEpoch epoch, const ShardLane::Loaded& loaded);
  // Line 22. The one that gives:
  void OnStop(const v1::StopShard& stop);
  void OnStopped(ShardKey key, ShardEpoch epoch, std::uint64_t session,
                 const std::string& fingerprint, absl::StatusOr<ShardCut> cut);
  void SendStopped(ShardKey key, ShardEpoch epoch, std::uint64_t session,
                   const absl::StatusOr<snapshot::FileDigest>& image);
  // The one that takes:
  struct Moving {  // read, or being read, and nobody's
    ShardEpoch from;
    std::uint64_t number = 0;                // of the order
    std::unique_ptr<Shard> shard = nullptr;  // null: being read
    std::shared_ptr<std::atomic<bool>> unwanted =
        std::make_shared<std::atomic<bool>>(false);  // shared with who reads
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
  // The answers of a session are not sent in the next one: its Hello says what is held.
  void SendIn(std::uint64_t session, v1::TaskMessage message);
  void ForgetJobIfUnheld(JobUid job);
  void ForgetUnheldJobs();
  void NameJob(const v1::JobInfo& info);
  bool Holds(JobUid job) const;  // a shard of it
  log::Context About(JobUid job) const;

  const Options options_;
  std::map<ShardKey, Held> held_;
  std::map<ShardKey, Moving>
      moving_;  // as many as the coordinator has on their way here; they end with its session
  std::vector<v1::TaskMessage> unsent_assigned_;  // finished without a session; at most one a shard
  std::map<JobUid, std::string> job_names_;       // of the jobs that run; bounded
  std::uint64_t highest_term_ = 0, life_id_ = 0;
  bool journaled_ = false;     // the newest coordinator that registered us keeps a journal
  std::uint64_t term_ = 0;     // of the session
  std::uint64_t session_ = 0;  // number of the session, for answers that come late
  std::size_t loading_ = 0;
  std::uint64_t receives_ = 0;
};

}  // namespace evergrad::ps_server
