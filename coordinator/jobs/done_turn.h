// A turn of Dones. A Done is the message by which a worker reports that an attempt has succeeded. A
// turn has the Dones that are processed together and are neither committed nor answered yet.
//
//   Add, Add, … ─▶ Commit: one commit for all ─▶ End: the answers, in order
//
// With a thousand workers, one commit or one search for work costs more than the processing of one
// Done. The commit and the search therefore happen once for all Dones of a turn. Not thread-safe:
// only the control executor calls it.
#pragma once

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
  void Open() { open_ = true; }  // Opens the turn for a Done that gets no answer.
  // Opens the turn. End() will answer the attempt.
  void Add(TaskId task, ClosureId closure, Attempt attempt, bool superseded);
  // Commits the changes of the Dones. The job calls it before it sends a message that may follow
  // from these changes. Returns false if the store failed.
  bool Commit();
  // Commits the turn and answers its Dones. Returns whether a turn was open and has been committed.
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
  v1::CoordinatorMessage message_;  // A member, to reuse its memory.
  std::multimap<MonoTime, std::pair<TaskId, v1::CoordinatorMessage>> delayed_;
};

}  // namespace evergrad::coordinator
