// One executor with its shards. The executor is the single writer of each of its shards (LEDGER
// line 6).
//
// Every shard has a queue of sections in order of arrival. A section is one push or one pull of a
// request. Shards with work take turns. After about a megabyte of work the executor lets other
// tasks run. A large apply yields after each such piece, so that a small pull of another shard
// never waits behind large applies. During an apply a shard runs no other section of its queue, so
// a pull sees the whole update or nothing of it.
//
// Control operations (assign, drop, close, seal, cut, report) run at once, before queued sections.
// A control operation may therefore overtake a section that arrived earlier. The result is still
// correct, because each push is checked against the present epoch and the ledger. Only a cut, a
// report and the answer to a seal wait for the end of an apply, because they need complete values.
// Nothing blocks, and only the table of jobs has a lock.
//
// This class has the queues and decides which shard's sections run next. HostedShards has the
// shards, SectionRunner runs the sections, RowCopies copies the rows of pulls, ShardCuts takes
// cuts, and ShardReports makes reports.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "common/fault/failpoints.h"
#include "common/runtime/executor.h"
#include "evergrad/v1/data.pb.h"
#include "ps_server/service/hosted_shards.h"
#include "ps_server/service/job_table.h"
#include "ps_server/service/row_copies.h"
#include "ps_server/service/section_runner.h"
#include "ps_server/service/shard_cuts.h"
#include "ps_server/service/shard_key.h"
#include "ps_server/service/shard_reports.h"
#include "ps_server/shard/shard.h"
#include "ps_server/snapshot/images.h"

namespace evergrad::ps_server {

class ShardExecutor {
 public:
  struct Options {
    // Outlives the ShardExecutor, and is shut down before the ShardExecutor is destroyed.
    runtime::Executor* executor = nullptr;
    JobTable* jobs = nullptr;                 // All pointers outlive the ShardExecutor.
    fault::Failpoints* failpoints = nullptr;  // May be null.
    const SectionMetrics* metrics = nullptr;
    const Images* images = nullptr;  // images of stopped shards; null if the server makes no images
    std::shared_ptr<storage::ChunkPool> pool;  // Shared by all executors and their shards.
    // Called on the executor when a push was refused because the proof of its grant is missing or
    // invalid (LEDGER line 35). Must not block.
    std::function<void(const v1::RequestHeader&, const v1::PushSection&)> on_unproved = {};
  };
  explicit ShardExecutor(Options options);

  // --- Any thread may call these functions. The work happens on the executor.
  // Queues the sections of one request. With `here`, the sections run on the caller's thread if the
  // executor is idle.
  void Submit(std::vector<RequestSection> sections, bool here = false);
  struct Loaded {
    absl::Status status;
    std::uint64_t value_bytes = 0, state_bytes = 0, lsn = 0;
    IntervalSet done, refused;
  };
  void Assign(ShardSettings settings, ShardEpoch epoch, MapVersion start, IntervalSet refused,
              std::function<void(Loaded)> done);
  // Holds a shard that was restored from its file, in place of the held copy.
  void Adopt(std::unique_ptr<Shard> shard, std::function<void(Loaded)> done);
  // Drops the held shard, then calls `vacated`, so that the old copy is freed before its
  // replacement is allocated.
  void Vacate(ShardKey key, std::function<void()> vacated);
  void Drop(ShardKey key, ShardEpoch epoch);
  void DropJob(JobUid job);
  void Close(ShardKey key, ShardEpoch epoch, MapVersion version, IntervalSet done,
             IntervalSet refused, std::function<void(bool taken)> answer);
  void Seal(ShardKey key, ShardEpoch epoch, std::function<void()> sealed);
  // Cuts the state between two updates; the shard may be sealed. ShardCuts::Take has the contract.
  using CutReady = ShardCuts::Ready;
  void Cut(ShardKey key, ShardEpoch epoch, CutReady ready);
  // Stops the shard (Shard::Stop) and then takes its last cut, as Cut does (LEDGER line 22). A
  // repeated call returns an equal cut, because the shard does not change any more.
  void Stop(ShardKey key, ShardEpoch epoch, CutReady ready);
  // Reports the states of this executor's shards of `job` (0 for all jobs), in no order.
  void Report(JobUid job, bool digests, ShardReports::Done done);

 private:
  void Enqueue(RequestSection section);
  void Turn();
  void PostTurn();
  // Both functions return the approximate number of touched bytes.
  std::uint64_t Run(const ShardKey& key, HostedShard* hosted);
  std::uint64_t ContinuePush(const ShardKey& key, HostedShard* hosted);
  void PostWaiting(HostedShard* hosted);
  void Hold(std::unique_ptr<Shard> shard);
  void Remove(const ShardKey& key);  // if it is held

  const Options options_;
  HostedShards shards_;
  RowCopies copies_;
  SectionRunner runner_;
  ShardCuts cuts_;
  ShardReports reports_;
  std::deque<ShardKey> ready_;  // the shards with sections to run, the next one first
  bool turn_posted_ = false;
};

}  // namespace evergrad::ps_server
