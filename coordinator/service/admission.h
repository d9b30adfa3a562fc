// Decides when a Hello is handled: at once, after the start-up window, or never. LEDGER line 18
// gives the rule for the term, and line 18a the refusal of servers with jobs that the journal has
// lost.
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
  // `on_window_closed` is called each time that the tasks of a window have been registered; for
  // `on_end` see ControlPlane::Parts.
  Admission(ServiceParts parts, Registrar* registrar, TaskEnds* ends,
            std::function<void()> on_window_closed, std::function<void(const absl::Status&)> on_end)
      : parts_(parts),
        registrar_(registrar),
        ends_(ends),
        on_window_closed_(std::move(on_window_closed)),
        on_end_(std::move(on_end)) {}

  // Opens the first window. A window of length 0 ends at once.
  void Start();
  // Ends the window when its time is over.
  void Tick();
  // Handles the first message of a session.
  void OnHello(Session& session, const v1::Hello& hello);

 private:
  void EndWindow();
  bool ChooseTerm();  // returns false if the store failed
  void BeginAnew(Term term, std::uint64_t reported);
  // The functions for LEDGER line 18a are in lost_job_refusal.cc.
  LostJobs MakeLostJobs() const;
  // Ends this life if a server that waits for the window's end holds a lost job. Returns true if
  // the life has ended.
  bool EndsForLostJobs();
  // Refuses a server that registers after the window and holds a lost job. Returns true if the
  // server was refused.
  bool RefusesForLostJobs(const Session& session, const v1::Hello& hello);
  void EndLife(const std::string& why);

  const ServiceParts parts_;
  Registrar* const registrar_;
  TaskEnds* const ends_;
  const std::function<void()> on_window_closed_;
  const std::function<void(const absl::Status&)> on_end_;
  // Uids of the server processes whose shards of lost jobs have been logged.
  std::set<std::uint64_t> lost_jobs_said_;
};

}  // namespace evergrad::coordinator
