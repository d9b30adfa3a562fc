// Counting jobs, for tests of faults. Each update adds to counters, so the sums show an update that
// was lost or applied twice. Counting jobs are planned and granted like training jobs.
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
