#include "coordinator/jobs/counting_kind.h"

#include "common/plan/counting_rows.h"

namespace evergrad::coordinator {

// Partitions each variable into the number of shards that the YAML states.
sharding::Partitioner CountingKind::PartitionerOf(const config::JobSpec& spec) const {
  return sharding::FixedShards{spec.counting.shards};
}

// The variable kCountingSamples has a row for each sample. An update touches only the rows of the
// samples in its batch, and thus not every shard of this variable.
bool CountingKind::IsTouchedByAll(const v1::ShardSpec& shard) const {
  return TrainingKind::IsTouchedByAll(shard) && shard.variable().name() != plan::kCountingSamples;
}

}  // namespace evergrad::coordinator
