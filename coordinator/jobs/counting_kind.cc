#include "coordinator/jobs/counting_kind.h"

#include "common/plan/counting_rows.h"

namespace evergrad::coordinator {

// Partitions each variable into the number of shards that the YAML states.
sharding::Partitioner CountingKind::PartitionerOf(const config::JobSpec& spec) const {
  return sharding::FixedShards{spec.counting.shards};
}

// A batch touches only the rows of its samples.
bool CountingKind::IsTouchedByAll(const v1::ShardSpec& shard) const {
  return TrainingKind::IsTouchedByAll(shard) && shard.variable().name() != plan::kCountingSamples;
}

}  // namespace evergrad::coordinator
