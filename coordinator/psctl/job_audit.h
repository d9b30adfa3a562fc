// What the ledgers of a checkpoint prove about a job's data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/interval_set.h"
#include "common/fs/file_system.h"
#include "coordinator/psctl/context.h"
#include "evergrad/v1/snapshot.pb.h"

namespace evergrad::psctl {

// Examples of one epoch. Together: the data set.
struct AuditEpoch {
  std::uint64_t epoch = 0;    // 1, 2, …
  std::uint64_t applied = 0;  // in every shard, each exactly once
  std::uint64_t partly =
      0;  // in some shards, or of a closure that is open: the rest is run again where it lacks
  std::uint64_t refused = 0;  // of cancelled closures, or lost and reported
  std::uint64_t to_do = 0;
};
struct Audit {
  std::vector<AuditEpoch> epochs;
  std::uint64_t shards = 0, closures = 0, closures_done = 0;  // done: in every shard
  IntervalSet open_closures;                                  // in some shard
  std::uint64_t updates = 0;  // in the values of all shards together
  std::uint64_t earlier_plan_updates =
      0;  // of these, of the plan before a resume: in no ledger any more
  std::uint64_t refused_updates = 0;  // of these, of closures that were begun and are refused now:
                                      // cancelled, or lost and reported
  bool complete = false;
  bool functions =
      false;  // closures were scheduled by a client: there are no epochs, and no plan of updates
  std::vector<std::string> violations;  // empty: exact
};
// Reads every byte of the checkpoint. Of a functions job: no closure is both done and refused or
// open. Else checked: each shard's values hold as many updates as its ledger says were applied,
// closure by closure and update by update, and of refused closures at most theirs; no closure is
// both done and refused or open; the closures' ranges partition each epoch. DataLoss: damaged.
absl::StatusOr<Audit> AuditCheckpoint(fs::FileSystem& files, const std::string& manifest_uri,
                                      const v1::Manifest& manifest);

int AuditJob(Context& context, const std::vector<std::string>& args);

}  // namespace evergrad::psctl
