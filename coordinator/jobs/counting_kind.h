// Counting jobs, for tests of faults: each update adds to counters, so that an update that is lost
// or applied twice shows in the sums. They are planned and granted as training jobs are.
#pragma once

#include "coordinator/jobs/training_kind.h"

namespace evergrad::coordinator {

class CountingKind final : public TrainingKind {
 public:
  bool counts_only() const override { return true; }
  bool exports_model() const override { return false; }
  sharding::Partitioner PartitionerOf(const config::JobSpec& spec) const override;
  bool IsTouchedByAll(const v1::ShardSpec& shard) const override;
};

}  // namespace evergrad::coordinator
