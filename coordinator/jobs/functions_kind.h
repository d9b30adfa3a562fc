// Functions jobs: the YAML names the variables, and clients schedule closures that run their own
// code (docs/closures.md).
#pragma once

#include <memory>
#include <optional>

#include "coordinator/jobs/job_kind.h"

namespace evergrad::coordinator {

class FunctionsKind final : public JobKind {
 public:
  std::optional<v1::DescribeResult> Describe(const config::JobSpec& spec) const override;
  plan::PlanSpec PlanNumbers(const config::JobSpec& spec,
                             const v1::DescribeResult& described) const override;
  std::unique_ptr<ClosureSource> MakeSource(const JobPart& part,
                                            const ClosureSourceParts& parts) const override;
};

}  // namespace evergrad::coordinator
