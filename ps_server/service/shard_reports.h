// Reports of the states of one executor's shards to the coordinator.
//
// A report is made in tasks of about a millisecond, so that the executor runs requests between the
// tasks. A report waits for the end of an apply in progress. Digests need a pass over all values.
// Reports with digests that wait at the same time share one pass, so that repeated requests do not
// slow down training. Runs on the shards' executor.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "common/base/ids.h"
#include "common/runtime/executor.h"
#include "evergrad/v1/session.pb.h"
#include "ps_server/service/hosted_shards.h"

namespace evergrad::ps_server {

class ShardReports {
 public:
  // Executor and shards outlive the reports, and the executor is shut down before the reports are
  // destroyed.
  ShardReports(runtime::Executor* executor, HostedShards* shards)
      : executor_(*executor), shards_(*shards) {}

  using Done = std::function<void(std::vector<v1::ShardState>)>;
  // Reports the shards that are held now, in no order, except shards that are dropped before their
  // state is read. `job` 0 means all jobs.
  void Begin(JobUid job, bool digests, Done done);

 private:
  struct Report {
    std::set<ShardKey> left;
    std::vector<v1::ShardState> states;
    Done done;
  };
  void ContinuePlain(const std::shared_ptr<Report>& report);
  // Computes the digests of each shard once for all waiting reports.
  void ContinueSums();

  runtime::Executor& executor_;
  HostedShards& shards_;
  // The reports with digests, oldest first. ContinueSums runs while there are any.
  std::deque<std::shared_ptr<Report>> summing_;  // like all reports, shared with posted tasks
};

}  // namespace evergrad::ps_server
