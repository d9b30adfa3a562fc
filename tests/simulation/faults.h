// The faults of a walk: processes die, sessions are disconnected, the user cancels, files are
// damaged, and clusters are lost.
#pragma once

#include "tests/simulation/job_resume.h"

namespace evergrad::simulation {

class Faults {
 public:
  // All three outlive this object.
  Faults(CoordinatorParts& parts, SimulatedCoordinator& coordinator, JobResume& resume)
      : parts_(parts), walk_(parts.walk), coordinator_(coordinator), resume_(resume) {}

  // Makes one fault, which the seed draws, if it is possible now.
  void MakeOne();

 private:
  void KillWorker();
  void KillServer();
  void DisconnectTask();
  // Starts a second process with the identity of a disconnected one that continues to serve.
  void DoubleServer();
  // The user cancels a closure or the job.
  void Cancel();
  // Another coordinator, with another store, registers a task. It knows no job, so it tells the
  // task to drop its shards, if the message arrives.
  void MeetForeignCoordinator(Task& t);

  CoordinatorParts& parts_;
  WalkContext& walk_;
  SimulatedCoordinator& coordinator_;
  JobResume& resume_;
};

}  // namespace evergrad::simulation
