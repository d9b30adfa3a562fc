// The turn of Dones: those that have come together, are taken in, and are neither committed nor
// answered yet.
//
//   Add, Add, … ─▶ Commit: one commit for all ─▶ End: the answers, in order
//
// With a thousand workers a commit and a search for work cost more than taking in a Done, so both
// happen once for all Dones of a turn. Not thread-safe: the control executor's.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/jobs/job_host.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class DoneTurn : private JobPart {
 public:
  explicit DoneTurn(const JobPart& part) : JobPart(part) {}

  bool open() const { return open_; }
  void Open() { open_ = true; }  // A Done without an answer has come.
  // Opens the turn, and has the attempt answered at its end.
  void Add(TaskId task, ClosureId closure, Attempt attempt, bool superseded);
  // Commits what the Dones have changed, before anything may leave that could follow from it.
  // Returns false if the store failed.
  bool Commit();
  // Commits and answers. Returns whether there was a turn, and it is committed.
  bool End();
  // Sends the answers that a failpoint has delayed until now.
  void SendDelayed(MonoTime now);

 private:
  struct Answer {
    TaskId task;
    ClosureId closure;
    Attempt attempt;
    bool superseded = false;
  };
  void Send(const Answer& answer);

  bool open_ = false;
  std::vector<Answer> answers_;
  v1::CoordinatorMessage message_;  // Kept for its memory.
  std::multimap<MonoTime, std::pair<TaskId, v1::CoordinatorMessage>> delayed_;
};

}  // namespace evergrad::coordinator
