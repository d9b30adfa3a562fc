// The rules of a type of jobs (spec.type) that follow from the type and the YAML alone. Each type
// has one implementation: training_kind.h, counting_kind.h, functions_kind.h. Pure, and without
// state; the state of a living job that differs by type is its ClosureSource.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/config/job_spec.h"
#include "common/plan/plan.h"
#include "common/sharding/partitioner.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class ClosureSource;
struct ClosureSourceParts;
struct JobPart;

inline constexpr std::uint64_t kClosuresMax = 1ull << 32;  // of one plan

class JobKind {
 public:
  // The only place that looks at spec.type. The object lives as long as the process.
  static const JobKind& Of(const config::JobSpec& spec);
  virtual ~JobKind() = default;

  // --- the plan
  // The description of the job, if the YAML says everything; nullopt: a worker has to describe it.
  virtual std::optional<v1::DescribeResult> Describe(const config::JobSpec&) const {
    return std::nullopt;
  }
  virtual plan::PlanSpec PlanNumbers(const config::JobSpec& spec,
                                     const v1::DescribeResult& described) const;
  virtual sharding::Partitioner PartitionerOf(const config::JobSpec& spec) const;

  // --- results
  // An evaluation adds integer counts, and there is no loss.
  virtual bool counts_only() const { return false; }
  virtual bool exports_model() const { return false; }  // The folder `model` of a run.
  // Each update of each closure touches the shard (LEDGER line 38). Else the workers report how
  // many do.
  virtual bool IsTouchedByAll(const v1::ShardSpec& shard) const { return !shard.has_slot(); }

  virtual std::unique_ptr<ClosureSource> MakeSource(const JobPart& part,
                                                    const ClosureSourceParts& parts) const = 0;
};

}  // namespace evergrad::coordinator
