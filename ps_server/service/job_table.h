// What this server knows of jobs as a whole: the newest map version (for STALE answers), how many
// shards there are, what is counted for each, and what its tables hold. Thread-safe: control
// writes, shard executors read when a request is not for what they hold, each request looks for
// where to count.
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
#include "common/fault/mutant.h"
#include "common/grants/grant_guard.h"
#include "ps_server/storage/memory_budget.h"

namespace evergrad::ps_server {

// Since the server heard of the job; `stint` numbers that.
struct JobCounters {
  std::uint64_t stint = 0;
  std::atomic<std::uint64_t> updates_applied{0}, duplicates_refused{0};
  std::atomic<std::uint64_t> bytes_received{0},
      bytes_sent{0};  // of data requests and their answers
};

class JobTable {
 public:
  struct Job {
    MapVersion version;              // (0,0): none heard of
    std::uint32_t shards_total = 0;  // 0: unknown
    std::shared_ptr<JobCounters>
        counters;  // null: the job is not known. Shared with requests in progress
    std::shared_ptr<grants::GrantGuard>
        grants;        // null: nobody's grants are checked. Shared with the job's shards
    std::string name;  // "": not known
    std::uint32_t shards =
        0;  // held here when last looked, and their values and slots; of tables all memory
    std::uint64_t bytes = 0;
  };
  // `tables`: of the server.
  explicit JobTable(
      std::shared_ptr<storage::MemoryBudget> tables = std::make_shared<storage::MemoryBudget>(0))
      : tables_(std::move(tables)) {}
  // A job's part of it, whether the job is known or not: what its tables are made with, shared with
  // them and gone with the last of them.
  std::shared_ptr<storage::MemoryBudget> TablesOf(JobUid uid) {
    MutexLock lock(&mu_);
    std::erase_if(parts_, [](const auto& part) { return part.second.expired(); });
    std::weak_ptr<storage::MemoryBudget>& part = parts_[uid];
    std::shared_ptr<storage::MemoryBudget> here = part.lock();
    if (here == nullptr) part = here = std::make_shared<storage::MemoryBudget>(tables_);
    return here;
  }
  // What the job's tables hold here, index, counters and free space included.
  std::uint64_t TableBytes(JobUid uid) const {
    MutexLock lock(&mu_);
    const auto it = parts_.find(uid);
    const std::shared_ptr<storage::MemoryBudget> part =
        it == parts_.end() ? nullptr : it->second.lock();
    return part == nullptr ? 0 : part->used_by_part();
  }
  // Versions only rise; a repeat changes nothing. `shards_total` 0 leaves what is known.
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
  // [34] The key that came with an Assign of a known job, before its shard is held; the first one
  // stays. Empty: nothing is checked.
  void SetGrantKey(JobUid uid, const std::string& key, fault::Mutant mutant) {
    if (key.empty()) return;
    MutexLock lock(&mu_);
    const auto it = jobs_.find(uid);
    if (it == jobs_.end() || it->second.grants != nullptr) return;
    it->second.grants = std::make_shared<grants::GrantGuard>(uid, key, mutant);
  }
  // Of a job that is known; for whoever reads the metrics.
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
  // What each request needs, without a copy of the rest.
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
  std::map<JobUid, Job> jobs_ ABSL_GUARDED_BY(mu_);  // those with a shard or a map here: a handful
  std::map<JobUid, std::weak_ptr<storage::MemoryBudget>> parts_ ABSL_GUARDED_BY(mu_);
  std::uint64_t stints_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace evergrad::ps_server
