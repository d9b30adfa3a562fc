// The rules of a type of job (spec.type). The rules depend only on the type and the YAML. Each type
// has one implementation: training_kind.h, counting_kind.h, functions_kind.h. Pure, and without
// state; the state that differs by type is in the job's ClosureSource.
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

inline constexpr std::uint64_t kClosuresMax = 1ull << 32;  // largest number of closures of one plan

class JobKind {
 public:
  // Returns the rules of the job's type. No other code reads spec.type. The object lives as long as
  // the process.
  static const JobKind& Of(const config::JobSpec& spec);
  virtual ~JobKind() = default;

  // --- the plan.
  // Returns the description of the job if it follows from the YAML, or nullopt if a worker has to
  // describe the job.
  virtual std::optional<v1::DescribeResult> Describe(const config::JobSpec&) const {
    return std::nullopt;
  }
  virtual plan::PlanSpec PlanNumbers(const config::JobSpec& spec,
                                     const v1::DescribeResult& described) const;
  virtual sharding::Partitioner PartitionerOf(const config::JobSpec& spec) const;

  // --- results.
  // Returns whether an evaluation adds integer counts and has no loss.
  virtual bool counts_only() const { return false; }
  // Returns whether a run has a folder `model`.
  virtual bool exports_model() const { return false; }
  // Returns whether each update of each closure touches the shard (LEDGER line 38). If not, the
  // workers report how many updates touch it.
  virtual bool IsTouchedByAll(const v1::ShardSpec& shard) const { return !shard.has_slot(); }

  virtual std::unique_ptr<ClosureSource> MakeSource(const JobPart& part,
                                                    const ClosureSourceParts& parts) const = 0;
};

}  // namespace evergrad::coordinator
