#include "coordinator/jobs/counting_kind.h"

#include "common/plan/counting_rows.h"

namespace evergrad::coordinator {

// One partition for all of its variables: as many shards as the job asks for.
sharding::Partitioner CountingKind::PartitionerOf(const config::JobSpec& spec) const {
  return sharding::FixedShards{spec.counting.shards};
}

// A batch touches only the rows of its samples.
bool CountingKind::IsTouchedByAll(const v1::ShardSpec& shard) const {
  return TrainingKind::IsTouchedByAll(shard) && shard.variable().name() != plan::kCountingSamples;
}

}  // namespace evergrad::coordinator
