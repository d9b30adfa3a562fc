// All shards of one server. The class accepts requests, answers each request once, and runs control
// operations on the shards.
//
// Shard s is on executor s % (number of executors). Thread-safe. Callbacks of control operations
// run on a shard's executor and must not block.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/fault/failpoints.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "common/transport/transport.h"
#include "ps_server/service/job_table.h"
#include "ps_server/service/shard_executor.h"

namespace evergrad::ps_server {

class ShardHost {
 public:
  struct Options {
    // At least one executor. The executors outlive the host, and are shut down before it is
    // destroyed.
    std::vector<runtime::Executor*> executors;
    metrics::Registry* registry = nullptr;        // All pointers outlive the host.
    fault::Failpoints* failpoints = nullptr;      // May be null.
    std::uint64_t frame_bytes_max = 1ull << 30;   // limit of one answer
    std::uint64_t pool_bytes_max = 256ull << 20;  // limit of the spare blocks in pool()
    std::uint64_t memory_bytes_max = 0;           // limit of embedding tables; 0 for no limit
    // Images of stopped shards; may be null; outlives the executors.
    const Images* images = nullptr;
    // Logger and clock may be null. Without them, refusals of requests with a wrong sender are only
    // counted.
    log::Logger* logger = nullptr;
    const Clock* clock = nullptr;
  };
  explicit ShardHost(Options options);

  // Handles a whole request from the transport and answers through `responder`. Never blocks, so a
  // transport thread may call it. `certificate_task` is PeerInfo::certificate_task.
  void Handle(transport::ReceivedFrame frame, std::unique_ptr<transport::DataResponder> responder,
              const std::string& certificate_task = "");

  JobTable& jobs() { return *jobs_; }
  // Returns the pool of spare blocks, which all shards share. An apply writes into a spare block
  // while a reader holds the old block.
  const std::shared_ptr<storage::ChunkPool>& pool() const { return pool_; }
  ShardExecutor& shard_executor(ShardId shard) {
    return *shard_executors_[shard.value() % shard_executors_.size()];
  }
  void DropJob(JobUid job);
  // Returns the states of the shards of `job` (0 for all jobs), in order of job and shard.
  void Report(JobUid job, bool digests, std::function<void(std::vector<v1::ShardState>)> done);

  // Returns the size of the largest frame that arrived or was sent as an answer. The number is
  // shared with the registry, which outlives the host.
  std::shared_ptr<const std::atomic<std::uint64_t>> largest_frame() const { return largest_frame_; }
  // Returns the number of updates that were applied since the process began.
  std::uint64_t updates_applied() const {
    return metrics_.updates[static_cast<int>(PushCode::kApplied)]->value();
  }
  std::uint64_t duplicates() const {
    return metrics_.updates[static_cast<int>(PushCode::kDuplicate)]->value();
  }

 private:
  void Parse(transport::ReceivedFrame frame, std::unique_ptr<transport::DataResponder> responder,
             absl::string_view certificate_task);
  // Adds the metrics that are computed at each scrape: those of the spare blocks, the jobs and the
  // tables.
  void AddGauges() const;
  // Logs at most one line per kSayEvery. The next line has the number of suppressed lines.
  void Say(const std::string& what);

  const Options options_;
  // Shared with the executors, their shards and the registry, which outlives the host.
  const std::shared_ptr<storage::ChunkPool> pool_;
  const std::shared_ptr<storage::MemoryBudget> budget_;  // shared like pool_
  const std::shared_ptr<JobTable> jobs_;                 // shared with the registry
  SectionMetrics metrics_;
  metrics::Counter *malformed_, *unproved_, *senders_refused_;
  Mutex said_mu_;
  std::optional<MonoTime> said_at_ ABSL_GUARDED_BY(said_mu_);
  std::uint64_t unsaid_ ABSL_GUARDED_BY(said_mu_) = 0;
  std::vector<std::unique_ptr<ShardExecutor>> shard_executors_;
  std::atomic<std::size_t> next_parser_{0};
  const std::shared_ptr<std::atomic<std::uint64_t>> largest_frame_ =
      std::make_shared<std::atomic<std::uint64_t>>(0);
};

}  // namespace evergrad::ps_server
