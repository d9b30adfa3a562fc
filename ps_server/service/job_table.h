// The state of jobs at this server: newest map version (for STALE answers), number of shards,
// counters, and memory of tables. Thread-safe. Control writes the table, each request looks up its
// counters, and shard executors read the table if a request does not match a held shard.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/grants/grant_guard.h"
#include "common/metrics/metrics.h"
#include "ps_server/storage/memory_budget.h"

namespace evergrad::ps_server {

// Counters since the job became known to this server. If the server forgets a job and the job
// becomes known again, the job gets new counters and a new `stint`.
struct JobCounters {
  std::uint64_t stint = 0;
  std::atomic<std::uint64_t> updates_applied{0}, duplicates_refused{0};
  // Bytes of data requests and of their answers.
  std::atomic<std::uint64_t> bytes_received{0}, bytes_sent{0};
  // Staleness of the applied gradients, in updates of the shard (sender_pulls.h). A worker that
  // trains alone has staleness 0, and N equally fast workers have about N - 1. The bounds of the
  // histogram therefore begin with 0 and 1 and then double.
  metrics::Histogram staleness{{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1024}};
};

class JobTable {
 public:
  struct Job {
    MapVersion version;              // (0,0) if unknown
    std::uint32_t shards_total = 0;  // 0 if unknown
    // Null if the job is not known. Shared with requests in progress.
    std::shared_ptr<JobCounters> counters;
    // Null if grants are not checked. Shared with the job's shards.
    std::shared_ptr<grants::GrantGuard> grants;
    std::string name;  // "" if unknown
    // Shards held here at the last count, and the bytes of their values and optimizer state. For
    // embedding tables, the bytes are all memory of the tables.
    std::uint32_t shards = 0;
    std::uint64_t bytes = 0;
  };
  // `tables` is the budget for the embedding tables of all jobs of the server.
  explicit JobTable(
      std::shared_ptr<storage::MemoryBudget> tables = std::make_shared<storage::MemoryBudget>(0))
      : tables_(std::move(tables)) {}
  // Returns the job's part of the budget, even if the job is unknown. The job's tables share the
  // part, which is released with the last table.
  std::shared_ptr<storage::MemoryBudget> TablesOf(JobUid uid) {
    MutexLock lock(&mu_);
    std::erase_if(parts_, [](const auto& part) { return part.second.expired(); });
    std::weak_ptr<storage::MemoryBudget>& part = parts_[uid];
    std::shared_ptr<storage::MemoryBudget> here = part.lock();
    if (here == nullptr) part = here = std::make_shared<storage::MemoryBudget>(tables_);
    return here;
  }
  // Returns the bytes of the job's tables at this server, including index, counters and free space.
  std::uint64_t TableBytes(JobUid uid) const {
    MutexLock lock(&mu_);
    const auto it = parts_.find(uid);
    const std::shared_ptr<storage::MemoryBudget> part =
        it == parts_.end() ? nullptr : it->second.lock();
    return part == nullptr ? 0 : part->used_by_part();
  }
  // Records the version if it is higher than the known version. A `shards_total` of 0 keeps the
  // known number.
  void Learn(JobUid uid, MapVersion version, std::uint32_t shards_total) {
    MutexLock lock(&mu_);
    Job& job = jobs_[uid];
    if (job.counters == nullptr) {
      job.counters = std::make_shared<JobCounters>();
      job.counters->stint = ++stints_;
    }
    job.version = std::max(job.version, version);
    if (shards_total != 0) job.shards_total = shards_total;
  }
  // Sets the key that came with an Assign of a known job, before the shard of the Assign is held
  // (LEDGER line 34). Later keys are ignored. With an empty key, proofs are not checked.
  void SetGrantKey(JobUid uid, const std::string& key) {
    if (key.empty()) return;
    MutexLock lock(&mu_);
    const auto it = jobs_.find(uid);
    if (it == jobs_.end() || it->second.grants != nullptr) return;
    it->second.grants = std::make_shared<grants::GrantGuard>(uid, key);
  }
  // Records the name of a known job, and the number and bytes of its shards that this server holds,
  // for the metrics.
  void Held(JobUid uid, const std::string& name, std::uint32_t shards, std::uint64_t bytes) {
    MutexLock lock(&mu_);
    const auto it = jobs_.find(uid);
    if (it == jobs_.end()) return;
    it->second.name = name;
    it->second.shards = shards;
    it->second.bytes = bytes;
  }
  std::map<JobUid, Job> All() const {
    MutexLock lock(&mu_);
    return jobs_;
  }
  void Forget(JobUid uid) {
    MutexLock lock(&mu_);
    jobs_.erase(uid);
  }
  // Returns only the counters, which each request needs, without a copy of the rest of the job.
  std::shared_ptr<JobCounters> CountersOf(JobUid uid) const {
    MutexLock lock(&mu_);
    const auto it = jobs_.find(uid);
    return it == jobs_.end() ? nullptr : it->second.counters;
  }
  Job Find(JobUid uid) const {
    MutexLock lock(&mu_);
    const auto it = jobs_.find(uid);
    return it == jobs_.end() ? Job{} : it->second;
  }

 private:
  const std::shared_ptr<storage::MemoryBudget> tables_;  // shared with the server's host
  mutable Mutex mu_;
  // The jobs that have a shard or a map at this server, which are few.
  std::map<JobUid, Job> jobs_ ABSL_GUARDED_BY(mu_);
  std::map<JobUid, std::weak_ptr<storage::MemoryBudget>> parts_ ABSL_GUARDED_BY(mu_);
  std::uint64_t stints_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace evergrad::ps_server
