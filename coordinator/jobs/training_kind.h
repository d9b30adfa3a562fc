// Training jobs. The YAML names a model and data. A worker describes both, and then workers train
// the model on the data.
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
