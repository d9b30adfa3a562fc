// A new job continues from a manifest alone [28].
#pragma once

#include <optional>
#include <vector>

#include "tests/simulation/simulated_coordinator.h"

namespace evergrad::simulation {

class JobResume {
 public:
  // Both outlive this object.
  JobResume(CoordinatorParts& parts, SimulatedCoordinator& coordinator)
      : parts_(parts), walk_(parts.walk), coordinator_(coordinator) {}

  // The cluster survives, and the job has ended.
  void AfterEnd();
  // The cluster is lost with its journal. Some tasks survive and keep their state.
  void AfterLoss();

 private:
  // Returns the files of the newest whole manifest; none if the walk has had enough jobs, or if no
  // manifest is whole.
  std::optional<std::vector<Snapshot>> FindFiles(const char* counted_as);
  void LoseCluster();
  // Forgets everything of the former job, and numbers the next one.
  void BeginNextJob();
  // The book begins from these files.
  void BeginFrom(std::vector<Snapshot> snapshots);

  CoordinatorParts& parts_;
  WalkContext& walk_;
  SimulatedCoordinator& coordinator_;
};

}  // namespace evergrad::simulation
