// Decides when a Hello is handled: at once, after the start-up window, or never. LEDGER line 18
// chooses the term, and line 18a refuses servers with jobs that the journal has lost.
//
// The servers of a window are registered before its workers. Not thread-safe: the control executor
// owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "coordinator/service/lost_jobs.h"
#include "coordinator/service/registration.h"
#include "coordinator/service/service_parts.h"
#include "coordinator/service/task_ends.h"

namespace evergrad::coordinator {

class Admission {
 public:
  // `on_window_closed` is called once the tasks of a window are registered; for `on_end` see
  // ControlPlane::Parts.
  Admission(ServiceParts parts, Registrar* registrar, TaskEnds* ends,
            std::function<void()> on_window_closed, std::function<void(const absl::Status&)> on_end)
      : parts_(parts),
        registrar_(registrar),
        ends_(ends),
        on_window_closed_(std::move(on_window_closed)),
        on_end_(std::move(on_end)) {}

  // Opens the first window. A window of length 0 ends at once.
  void Start();
  // Ends the window if its time has come.
  void Tick();
  // Handles the first message of a session.
  void OnHello(Session& session, const v1::Hello& hello);

 private:
  void EndWindow();
  bool ChooseTerm();  // returns false if the store failed
  void BeginAnew(Term term, std::uint64_t reported);
  // Line 18a, in lost_job_refusal.cc.
  LostJobs MakeLostJobs() const;
  // Ends this life if a server that waits for the window's end holds a lost job. Returns whether it
  // did.
  bool EndsForLostJobs();
  // Refuses a server that comes later and holds a lost job. Returns whether it did.
  bool RefusesForLostJobs(const Session& session, const v1::Hello& hello);
  void EndLife(const std::string& why);

  const ServiceParts parts_;
  Registrar* const registrar_;
  TaskEnds* const ends_;
  const std::function<void()> on_window_closed_;
  const std::function<void(const absl::Status&)> on_end_;
  std::set<std::uint64_t> lost_jobs_said_;  // processes whose shards of lost jobs are in the log
};

}  // namespace evergrad::coordinator
