// The state of a worker in a job: its identity, its own reports, and the attempts that it holds.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/scheduler/grant_sizing.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

struct JobWorker {
  struct Held {  // One attempt.
    ClosureId closure;
    v1::WorkKind kind = v1::TRAIN;
    MonoTime granted_at{0};
    bool recalled = false;
    std::uint64_t bytes = 0;  // Size of the closure's arguments.
    bool regrant = false;     // The closure was granted before: it was requeued, or is repaired.
  };

  TaskId task;
  std::string identity;
  std::string host;
  bool ready = false;        // Its Registered was sent, so it may get grants.
  bool silent = false;       // It has sent no message since its Hello.
  bool called_back = false;  // The coordinator takes it back for another job.
  bool leaving = false;
  std::uint64_t process = 0;  // uid of its process
  // Build and settings. Two workers with equal `compute` produce the same bits.
  std::string compute;
  std::set<std::string> functions;  // The user functions that the worker has.
  MonoTime backoff_until{0};
  MonoTime last_done{0};
  ClosureRate rate;
  v1::WorkerProgress progress;
  // The last time at which its running attempt or step changed, an attempt ended, or it had no
  // work.
  MonoTime advanced_at{0};
  // True after its work was revoked, until the worker reports that it computes nothing. Until then
  // it gets no work.
  bool stuck = false;
  MonoTime aside_until{0};  // It gets no work before this time.
  // Returns whether the worker reports that its pushes wait for memory at a server.
  bool paused() const { return progress.state() == "paused"; }

  // The attempts that the worker holds. Only the methods below change `held`, because they also
  // update the sums.
  std::map<Attempt, Held> held;
  std::size_t recalled = 0,
              regrants = 0;      // Numbers of recalled attempts and of regrants in `held`.
  std::uint64_t held_bytes = 0;  // Sum of `bytes` over `held`.

  void Take(Attempt attempt, Held one) {
    recalled += one.recalled;
    regrants += one.regrant;
    held_bytes += one.bytes;
    held.insert_or_assign(attempt, std::move(one));
  }
  bool Drop(Attempt attempt) {  // Returns false if the worker did not hold it.
    const auto found = held.find(attempt);
    if (found == held.end()) return false;
    recalled -= found->second.recalled;
    regrants -= found->second.regrant;
    held_bytes -= found->second.bytes;
    held.erase(found);
    return true;
  }
  void DropAll() {
    held.clear();
    recalled = regrants = 0;
    held_bytes = 0;
  }
};

using JobWorkers = std::map<TaskId, JobWorker>;

}  // namespace evergrad::coordinator
