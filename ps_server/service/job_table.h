// What this server knows of jobs as a whole: the newest map version (for STALE answers) and how many shards there are.
// Thread-safe: control writes, shard executors read when a request is not for what they hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "common/base/ids.h"
#include "common/base/mutex.h"

namespace evergrad::ps_server {

class JobTable {
 public:
  struct Job {
    MapVersion version;              // (0,0): none heard of
    std::uint32_t shards_total = 0;  // 0: unknown
  };
  // Versions only rise; a repeat changes nothing. `shards_total` 0 leaves what is known.
  void Learn(JobUid uid, MapVersion version, std::uint32_t shards_total) {
    MutexLock lock(&mu_);
    Job& job = jobs_[uid];
    job.version = std::max(job.version, version);
    if (shards_total != 0) job.shards_total = shards_total;
  }
  void Forget(JobUid uid) {
    MutexLock lock(&mu_);
    jobs_.erase(uid);
  }
  Job Find(JobUid uid) const {
    MutexLock lock(&mu_);
    const auto it = jobs_.find(uid);
    return it == jobs_.end() ? Job{} : it->second;
  }

 private:
  mutable Mutex mu_;
  std::map<JobUid, Job> jobs_ ABSL_GUARDED_BY(mu_);  // those with a shard or a map here: a handful
};

}  // namespace evergrad::ps_server
