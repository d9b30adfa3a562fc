// The directory of the shards that this server holds, and the names of the jobs.
//
// The directory is needed because a Hello must be made without waiting for a shard's executor. Only
// Assign and Close change the sets of closed and refused closures of a shard. Control handles both
// orders before the executor, so the sets in the directory always include the closures of every
// order that has arrived. The sets of a shard that is read from a snapshot are known once it is
// loaded. Until the shard is loaded, the Hello reports the shard as loading. Runs on the control
// executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "common/base/ids.h"
#include "common/base/interval_set.h"
#include "common/health/readiness.h"
#include "common/log/log.h"
#include "common/time/clock.h"
#include "evergrad/v1/session.pb.h"
#include "ps_server/service/job_table.h"
#include "ps_server/service/shard_key.h"

namespace evergrad::ps_server {

struct HeldShard {
  ShardEpoch epoch;
  MapVersion start;
  IntervalSet done, refused;
  bool loading = true;
  // Term of the coordinator that stopped the shard; 0 if the shard serves.
  std::uint64_t stopped_in = 0;
  std::string file;     // the URI of the shard's file; "" if the shard starts from its seed
  MonoTime assigned{};  // time of the Assign
  bool rows = false;    // true for a table slot, whose size JobTable::TableBytes returns
  std::uint64_t value_bytes = 0, state_bytes = 0;

  // Returns true while the shard is being read from its file. The sets of such a shard are not
  // known yet.
  bool restoring() const { return loading && !file.empty(); }
};

class ShardDirectory {
 public:
  // Both pointers outlive the directory. The directory removes forgotten jobs from `jobs`, too. The
  // directory sets `restored`, which is met while no shard is loading.
  ShardDirectory(JobTable* jobs, log::Logger* logger, health::Condition restored = {})
      : jobs_(*jobs), logger_(*logger), restored_(std::move(restored)) {}

  // Returns null if the shard is not held. The pointer is valid until the shard is removed.
  HeldShard* Find(const ShardKey& key);
  // Returns null if the shard is not held at this epoch.
  HeldShard* Find(const ShardKey& key, ShardEpoch epoch);
  bool Holds(JobUid job) const;  // whether a shard of the job is held
  std::size_t shards() const { return held_.size(); }
  std::size_t loading() const { return loading_; }
  // Adds a shard that is loading, in place of a held one.
  void Put(const ShardKey& key, HeldShard held);
  void EndLoading(HeldShard* held);
  // Removes a held shard.
  void Remove(const ShardKey& key);
  // Removes a job that does not run and has no held shard. A running job is kept, because the job
  // may get shards on this server again, and the counters of the job are reported.
  void ForgetJobIfUnheld(JobUid job);
  // Removes the shards and the name of a job, and returns the number of shards. The counters of the
  // job stay in the table of jobs.
  std::size_t RemoveJob(JobUid job);

  // Records the name of a running job. The number of names is bounded.
  void NameJob(const v1::JobInfo& info);
  // Drops the names of jobs without a held shard. The next session lists the running jobs again. A
  // job that ended while the session was interrupted is not in that list.
  void ForgetUnheldJobs();
  // Returns the number of jobs that the coordinator has named as running, or that have a shard at
  // this server.
  std::size_t jobs_named() const { return job_names_.size(); }
  log::Context About(JobUid job) const;

  void FillHello(v1::Hello* hello) const;
  // Returns the numbers of shards and bytes, and the jobs. Also records in the table of jobs the
  // shards that each job holds.
  v1::ServerProgress Progress() const;

 private:
  void ShowLoading() const;

  JobTable& jobs_;
  log::Logger& logger_;
  const health::Condition restored_;
  std::map<ShardKey, HeldShard> held_;
  std::map<JobUid, std::string> job_names_;  // names of the jobs that run; bounded
  std::size_t loading_ = 0;
};

}  // namespace evergrad::ps_server
