// A worker as a job sees it: its identity, its own reports, and the attempts that it holds.
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
    std::uint64_t bytes = 0;  // Of the closure's arguments.
    bool regrant = false;     // It had been granted before: a repair, or requeued.
  };

  TaskId task;
  std::string identity;
  std::string host;
  bool ready = false;        // Registered is on its way: grants may follow.
  bool silent = false;       // It has said nothing since its Hello.
  bool called_back = false;  // For another job.
  bool leaving = false;
  std::uint64_t process = 0;  // uid
  std::string compute;  // Build and settings: two workers of one `compute` give the same bits.
  std::set<std::string> functions;  // Registered in it.
  MonoTime backoff_until{0};
  MonoTime last_done{0};
  ClosureRate rate;
  v1::WorkerProgress progress;
  // When its running attempt or step changed, an attempt ended, or it had nothing to do.
  MonoTime advanced_at{0};
  bool stuck = false;  // Its work was taken away; it gets none until it says that it computes none.
  MonoTime aside_until{0};  // Nor before this.
  // It says that its pushes wait for space at a server.
  bool paused() const { return progress.state() == "paused"; }

  // Its attempts. They are changed by the methods below, which keep the sums.
  std::map<Attempt, Held> held;
  std::size_t recalled = 0, regrants = 0;  // Of those held.
  std::uint64_t held_bytes = 0;            // Of all of them.

  void Take(Attempt attempt, Held one) {
    recalled += one.recalled;
    regrants += one.regrant;
    held_bytes += one.bytes;
    held.insert_or_assign(attempt, std::move(one));
  }
  bool Drop(Attempt attempt) {  // False: it did not hold it.
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
