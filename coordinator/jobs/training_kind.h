// Training jobs: the YAML has a model, which is trained on the examples that a worker describes.
#pragma once

#include <memory>

#include "coordinator/jobs/job_kind.h"

namespace evergrad::coordinator {

class TrainingKind : public JobKind {
 public:
  bool exports_model() const override { return true; }
  std::unique_ptr<ClosureSource> MakeSource(const JobPart& part,
                                            const ClosureSourceParts& parts) const override;
};

}  // namespace evergrad::coordinator
