// Proofs about a job's data from the ledgers of a checkpoint.
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

// Numbers of examples of one epoch. The sum of these numbers is the size of the data set.
struct AuditEpoch {
  std::uint64_t epoch = 0;    // 1, 2, …
  std::uint64_t applied = 0;  // applied in every shard, each exactly once
  // Examples that only some shards have applied, or that belong to an open closure. The other
  // shards will still apply them.
  std::uint64_t partly = 0;
  // Examples of cancelled closures, and examples that were lost and reported.
  std::uint64_t refused = 0;
  std::uint64_t to_do = 0;
};
struct Audit {
  std::vector<AuditEpoch> epochs;
  // closures_done counts closures that are done in every shard.
  std::uint64_t shards = 0, closures = 0, closures_done = 0;
  IntervalSet open_closures;  // open in at least one shard
  std::uint64_t updates = 0;  // sum over all shards of the updates in their values
  // Updates of an earlier plan, which the job took over when it resumed. No ledger lists these
  // updates any more, and `updates` includes them.
  std::uint64_t earlier_plan_updates = 0;
  // Updates of closures that were begun and then refused, because they were cancelled, or lost and
  // reported. The number `updates` includes these updates.
  std::uint64_t refused_updates = 0;
  bool complete = false;
  // True for a functions job: a client schedules the closures, so there are no epochs and no
  // planned updates.
  bool functions = false;
  std::vector<std::string> violations;  // empty if the checkpoint is exact
};
// Reads every byte of the checkpoint. For a functions job it checks that no closure is both done
// and refused or open. For other jobs it also checks that the values of each shard hold as many
// updates as its ledger lists, that the values hold no more updates of refused closures than these
// closures have, and that the ranges of the closures partition each epoch. Returns DataLoss for a
// damaged checkpoint.
absl::StatusOr<Audit> AuditCheckpoint(fs::FileSystem& files, const std::string& manifest_uri,
                                      const v1::Manifest& manifest);

int AuditJob(Context& context, const std::vector<std::string>& args);

}  // namespace evergrad::psctl
