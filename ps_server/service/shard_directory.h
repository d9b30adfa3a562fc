// The directory of the shards that this server holds, and the names of the jobs that it knows.
//
// The directory is needed because a Hello must be made without waiting for a shard's executor. Only
// Assign and Close change the closed and refused closures of a shard, and both pass through Control
// first, so the directory always covers the received orders. The sets of a snapshot are known once
// it is loaded; until then the Hello reports "loading". Runs on the control executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "common/base/ids.h"
#include "common/base/interval_set.h"
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
  std::uint64_t stopped_in = 0;  // term of the coordinator that stopped it; 0: it serves
  std::string file;              // "": from the seed; otherwise the URI of its file
  MonoTime assigned{};           // when
  bool rows = false;             // a table slot: its size is read elsewhere
  std::uint64_t value_bytes = 0, state_bytes = 0;

  // Whether the shard is being read from its file, so that its sets are not known yet.
  bool restoring() const { return loading && !file.empty(); }
};

class ShardDirectory {
 public:
  // Both outlive the directory. Jobs are forgotten in `jobs`, too.
  ShardDirectory(JobTable* jobs, log::Logger* logger) : jobs_(*jobs), logger_(*logger) {}

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
  // Forgets a job of which no shard is held. A running job stays known: it may get shards here
  // again, and its counters are read.
  void ForgetJobIfUnheld(JobUid job);
  // Removes the shards and the name of a job, and returns the number of shards. The counters of the
  // job stay in the table of jobs.
  std::size_t RemoveJob(JobUid job);

  // Learns the name of a running job. The number of names is bounded.
  void NameJob(const v1::JobInfo& info);
  // Drops the names of jobs without a held shard. Each session lists the running jobs again. If a
  // job's end was missed because the session was interrupted, the list lacks the job.
  void ForgetUnheldJobs();
  // Number of running jobs of the session, and of other jobs with a held shard.
  std::size_t jobs_named() const { return job_names_.size(); }
  log::Context About(JobUid job) const;

  void FillHello(v1::Hello* hello) const;
  // Returns shards, bytes and the jobs, and tells the table of jobs what is held.
  v1::ServerProgress Progress() const;

 private:
  JobTable& jobs_;
  log::Logger& logger_;
  std::map<ShardKey, HeldShard> held_;
  std::map<JobUid, std::string> job_names_;  // names of the jobs that run; bounded
  std::size_t loading_ = 0;
};

}  // namespace evergrad::ps_server
