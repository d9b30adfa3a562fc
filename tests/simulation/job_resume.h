// Resumes a job: a new job continues from a manifest alone [28].
#pragma once

#include <optional>
#include <vector>

#include "tests/simulation/simulated_coordinator.h"

namespace evergrad::simulation {

class JobResume {
 public:
  // Both referenced objects must outlive this object.
  JobResume(CoordinatorParts& parts, SimulatedCoordinator& coordinator)
      : parts_(parts), walk_(parts.walk), coordinator_(coordinator) {}

  // Resumes after the job has ended, on the same cluster.
  void AfterEnd();
  // Resumes after the cluster was lost with its journal. Some tasks survive and keep their state.
  void AfterLoss();

 private:
  // Returns the files of the newest whole manifest. Returns nothing if the walk has already had the
  // largest number of jobs, or if no manifest is whole.
  std::optional<std::vector<Snapshot>> FindFiles(const char* counted_as);
  void LoseCluster();
  // Forgets everything of the former job, and gives the next job its number.
  void BeginNextJob();
  // Begins the book of the next job from these files.
  void BeginFrom(std::vector<Snapshot> snapshots);

  CoordinatorParts& parts_;
  WalkContext& walk_;
  SimulatedCoordinator& coordinator_;
};

}  // namespace evergrad::simulation
