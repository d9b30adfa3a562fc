// Follows one job to its end: progress on `out`, Ctrl-C, a coordinator that goes away. The verb's
// own thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/psctl/control_client.h"
#include "coordinator/psctl/progress.h"
#include "coordinator/psctl/require.h"

namespace evergrad::psctl {

struct WatchOptions {
  std::string job;                   // uid as 16 hex digits, or a name
  bool json = false;                 // no progress; the last status as JSON on `out`
  bool cancel_on_interrupt = false;  // Ctrl-C asks and cancels; else it only stops watching
  std::vector<Requirement> requirements;
  bool files_here = false;  // the coordinator is on this machine
  std::string fetch_to;  // folder for the files of a run whose folder cannot be seen from here; "":
                         // the user is told how to bring them
  std::chrono::milliseconds unreachable_after{5000};  // before the first answer
  std::chrono::milliseconds reconnect_timeout{
      60000};  // a coordinator that answered and is away: it may be started again
  std::chrono::milliseconds cancel_wait{15000};
  // Called about ten times a second; lines to say go to the printer. A reason: the job cannot go on
  // (exit code and text).
  struct Broken {
    int exit_code = kFailed;
    std::string text;
  };
  std::function<std::optional<Broken>(ProgressPrinter&)> tick;
};
struct WatchOutcome {
  int exit_code = kSucceeded;
  std::optional<v1::JobStatus> last;  // the newest that was seen
};
WatchOutcome WatchJob(Context& context, ControlClient& client, const WatchOptions& options);

}  // namespace evergrad::psctl
