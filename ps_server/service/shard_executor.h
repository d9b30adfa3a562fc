// One executor with its shards. It is the single writer of each shard (LEDGER line 6).
//
// Every shard has a queue of sections in order of arrival. Shards with work take turns. After about
// a megabyte of work the executor lets other tasks of its executor run. A large apply yields after
// each such piece, so that a small pull of another shard never waits behind large applies. During
// an apply a shard answers nothing else in its queue, so a pull sees all of the update or nothing.
//
// Control operations (assign, drop, close, seal, cut, report) run at once, before queued sections;
// the fence and the ledger make either order correct. Only operations that read values (the answer
// of seal, cut, report) wait for the end of an apply. Nothing blocks, and only the table of jobs
// has a lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "common/fault/failpoints.h"
#include "common/metrics/metrics.h"
#include "common/runtime/executor.h"
#include "evergrad/v1/session.pb.h"
#include "ps_server/service/data_call.h"
#include "ps_server/service/job_table.h"
#include "ps_server/shard/shard.h"
#include "ps_server/snapshot/images.h"

namespace evergrad::ps_server {

struct ShardKey {
  JobUid job;
  ShardId shard;
  friend auto operator<=>(const ShardKey&, const ShardKey&) = default;
};

// The counters of the shard executors of a server; ShardHost creates them.
struct ShardExecutorMetrics {
  metrics::Counter* updates[8];  // by PushCode
  metrics::Counter* pulls[4];    // by result: values, unchanged, stale, invalid
  metrics::Counter* push_bytes;  // bytes of applied pushes
  metrics::Counter* pull_bytes;  // bytes of answered pulls
};

class ShardExecutor {
 public:
  struct Options {
    // Outlives the ShardExecutor, and is shut down before that is destroyed.
    runtime::Executor* executor = nullptr;
    JobTable* jobs = nullptr;                 // All pointers outlive the ShardExecutor.
    fault::Failpoints* failpoints = nullptr;  // May be null.
    const ShardExecutorMetrics* metrics = nullptr;
    const Images* images = nullptr;            // images of stopped shards; null if there are none
    std::shared_ptr<storage::ChunkPool> pool;  // Shared by all executors and their shards.
    // [35] Called on the executor when a push without the proof of its grant was refused. Must not
    // block.
    std::function<void(const v1::RequestHeader&, const v1::PushSection&)> on_unproved = {};
  };
  explicit ShardExecutor(Options options) : options_(std::move(options)) {}

  struct Section {
    std::shared_ptr<DataCall> call;  // shared with the other executors that answer a part of it
    std::uint32_t index = 0;
    bool is_push = false;
    bool delayed = false;  // the delay of its failpoint has ended
  };

  // --- any thread may call these; the work happens on the executor
  void Submit(std::vector<Section> sections, bool here = false);
  struct Loaded {
    absl::Status status;
    std::uint64_t value_bytes = 0, state_bytes = 0, lsn = 0;
    IntervalSet done, refused;
  };
  void Assign(ShardSettings settings, ShardEpoch epoch, MapVersion start, IntervalSet refused,
              std::function<void(Loaded)> done);
  // Holds a shard that was restored from its file, in place of the one that is held.
  void Adopt(std::unique_ptr<Shard> shard, std::function<void(Loaded)> done);
  // Drops the held shard, then calls `vacated`, so that the old copy is freed before its
  // replacement is allocated.
  void Vacate(ShardKey key, std::function<void()> vacated);
  void Drop(ShardKey key, ShardEpoch epoch);
  void DropJob(JobUid job);
  void Close(ShardKey key, ShardEpoch epoch, MapVersion version, IntervalSet done,
             IntervalSet refused, std::function<void(bool taken)> answer);
  void Seal(ShardKey key, ShardEpoch epoch, std::function<void()> sealed);
  // Cuts the state between two updates; the shard may be sealed. NotFound if the shard is not held
  // at this epoch, or is no longer held when the update in progress has ended. `ready` must neither
  // block nor call back. If the executor ends before, `ready` is destroyed without a call.
  using CutReady = std::function<void(absl::StatusOr<ShardCut>)>;
  void Cut(ShardKey key, ShardEpoch epoch, CutReady ready);
  // Stops the shard (Shard::Stop) and then takes its last cut, as Cut does (line 22). A repeat
  // returns the same cut again.
  void Stop(ShardKey key, ShardEpoch epoch, CutReady ready);
  // Reports the states of the shards of this executor of `job` (0 for all jobs), in no order.
  // Digests are computed in tasks of a megabyte or a shard, so that large ones delay nothing else.
  // A request for digests during another one shares the pending sums, so that repeated requests
  // slow nothing down.
  void Report(JobUid job, bool digests, std::function<void(std::vector<v1::ShardState>)> done);

 private:
  struct HostedShard {
    std::unique_ptr<Shard> shard;
    // Guard of its job, shared with the table of jobs; null if proofs are not required.
    std::shared_ptr<grants::GrantGuard> grants;
    struct Traffic {  // see v1::ShardState
      std::uint64_t pulls = 0, pushes = 0, bytes_sent = 0, bytes_received = 0;
    } traffic;
    // Bounded by the transport's budget: each entry is part of a request that the budget granted.
    std::deque<Section> queue;
    bool waiting = false;             // in ready_, or paused by a failpoint's delay
    std::optional<Section> applying;  // its push was admitted, and its apply has not ended
    // Posted when the apply has ended, or when the shard has been dropped.
    std::vector<std::function<void()>> after_apply;
    // Answered when the apply has ended, before the next one begins, or when the shard has been
    // dropped.
    std::vector<CutReady> cuts;
  };
  // Like hosted_.find, but needs no search if the last key was the previous one. Sections usually
  // arrive in the order of their shards.
  std::map<ShardKey, HostedShard>::iterator FindNext(const ShardKey& key);
  void Enqueue(Section section);
  void Turn();
  void PostTurn();
  // Returns the approximate number of touched bytes.
  std::uint64_t Run(ShardKey key, HostedShard* hosted);
  std::uint64_t BeginPush(HostedShard* hosted, Section section);
  std::uint64_t ContinuePush(HostedShard* hosted);
  void AfterApplied(const Section& section, HostedShard* hosted);
  void EndApply(HostedShard* hosted);
  std::uint64_t RunPull(HostedShard* hosted, Section section);
  void FinishReadings();
  tensor::SharedBytes RoomFor(const DataCall& call, std::uint64_t bytes);
  std::uint64_t ReadImage(Shard* shard, const Section& section);
  void Hold(std::unique_ptr<Shard> shard);
  void AnswerUnheld(const Section& section);
  void Remove(std::map<ShardKey, HostedShard>::iterator it);
  void TakeCut(ShardKey key, ShardEpoch epoch, bool stop, CutReady ready);
  ShardCut CutOf(const Shard& shard);
  using SliceReady = std::function<void(absl::StatusOr<SlotSlice>)>;
  void TakeSlice(ShardKey key, ShardEpoch epoch, std::uint64_t serial, const SliceReady& ready);
  static v1::ShardState StateOf(const HostedShard& hosted, bool digests);
  struct ReportTask;
  void ContinueReport(std::shared_ptr<ReportTask> task);
  void ContinueSums();

  const Options options_;
  std::map<ShardKey, HostedShard> hosted_;
  std::map<ShardKey, HostedShard>::iterator next_ = hosted_.end();  // the guess of FindNext
  std::deque<ShardKey> ready_;
  bool turn_posted_ = false;
  // The reports with digests, oldest first. ContinueSums runs while there are any.
  std::deque<std::shared_ptr<ReportTask>> summing_;
  // A block for the copied values of the current request. The sections of one request share blocks,
  // each at a multiple of 64. Valid until the end of a turn.
  std::shared_ptr<const void> room_;  // shared with the answers
  std::span<std::byte> room_left_;
  const DataCall* room_of_ = nullptr;  // only compared, never read
  // Rows that sections of one request read. They are read together, before any other change of a
  // shard, and at the latest at the end of a turn.
  std::vector<storage::RowReading> readings_;
  std::shared_ptr<DataCall> reading_for_;  // null: there are none
  std::size_t reading_sections_ = 0;
};

}  // namespace evergrad::ps_server
