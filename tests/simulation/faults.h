// The faults of a walk: processes die, sessions end, the user cancels, files are damaged, and
// clusters are lost.
#pragma once

#include "tests/simulation/job_resume.h"

namespace evergrad::simulation {

class Faults {
 public:
  // All three referenced objects must outlive this object.
  Faults(CoordinatorParts& parts, SimulatedCoordinator& coordinator, JobResume& resume)
      : parts_(parts), walk_(parts.walk), coordinator_(coordinator), resume_(resume) {}

  // Draws one fault, and makes it happen if it is possible now.
  void MakeOne();

 private:
  void KillWorker();
  void KillServer();
  void DisconnectTask();
  // Starts a second process with the identity of a process that is disconnected but continues to
  // serve.
  void DoubleServer();
  // Cancels a closure or the job, as the user.
  void Cancel();
  // Lets another coordinator, with another store, register a task. That coordinator knows no job,
  // so it tells the task to drop its shards. The message may be lost.
  void MeetForeignCoordinator(Task& t);

  CoordinatorParts& parts_;
  WalkContext& walk_;
  SimulatedCoordinator& coordinator_;
  JobResume& resume_;
};

}  // namespace evergrad::simulation
