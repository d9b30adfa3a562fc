#include "coordinator/jobs/job_kind.h"

#include "coordinator/jobs/counting_kind.h"
#include "coordinator/jobs/functions_kind.h"
#include "coordinator/jobs/training_kind.h"

namespace evergrad::coordinator {

const JobKind& JobKind::Of(const config::JobSpec& spec) {
  static const TrainingKind training;
  static const CountingKind counting;
  static const FunctionsKind functions;
  if (spec.type == "functions") return functions;
  if (spec.type == "counting") return counting;
  return training;
}

plan::PlanSpec JobKind::PlanNumbers(const config::JobSpec& spec,
                                    const v1::DescribeResult& described) const {
  plan::PlanSpec numbers;
  numbers.train_examples = described.train_examples();
  numbers.batch_size = spec.data.batch_size;
  numbers.steps_per_closure = spec.training.steps_per_closure;
  numbers.epochs = spec.training.epochs;
  numbers.shuffle = spec.data.shuffle;
  numbers.shuffle_seed = spec.data.shuffle_seed;
  numbers.eval_examples = described.eval_examples();
  numbers.eval_batch_size = spec.data.batch_size;
  numbers.eval_steps_per_closure = spec.training.steps_per_closure;
  return numbers;
}

sharding::Partitioner JobKind::PartitionerOf(const config::JobSpec& spec) const {
  const config::PartitionerSpec& p = spec.strategy.partitioner;
  if (p.type == "fixed_shards") return sharding::FixedShards{p.num_shards};
  if (p.type == "max_size") return sharding::MaxSize{p.max_shard_bytes, p.max_shards};
  return sharding::MinSize{p.min_shard_bytes, p.max_shards};
}

}  // namespace evergrad::coordinator
