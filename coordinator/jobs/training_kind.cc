#include "coordinator/jobs/training_kind.h"

#include "coordinator/jobs/planned_closures.h"

namespace evergrad::coordinator {

std::unique_ptr<ClosureSource> TrainingKind::MakeSource(const JobPart& part,
                                                        const ClosureSourceParts& parts) const {
  return std::make_unique<PlannedClosures>(part, parts, this);
}

}  // namespace evergrad::coordinator
