// Follows one job to its end. Prints progress on `out`, and handles Ctrl-C and the loss of the
// connection to the coordinator. The watch runs on the verb's thread.
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
  bool json = false;                 // prints only the final status, as JSON on `out`
  bool cancel_on_interrupt = false;  // Ctrl-C asks whether to cancel; otherwise it ends the watch
  std::vector<Requirement> requirements;
  bool files_here = false;  // true if the coordinator is on this machine
  // The folder for the files of a run if this machine does not see the run's own folder. With "",
  // psctl prints the command that fetches them.
  std::string fetch_to;
  std::chrono::milliseconds unreachable_after{5000};  // longest wait for the first answer
  // Longest wait for a coordinator that has answered before and is now unreachable, because it may
  // be restarting.
  std::chrono::milliseconds reconnect_timeout{60000};
  std::chrono::milliseconds cancel_wait{15000};
  // The watch calls `tick` about ten times per second. `tick` sends its lines to the printer. If
  // the job cannot continue, `tick` returns an exit code and a text.
  struct Broken {
    int exit_code = kFailed;
    std::string text;
  };
  std::function<std::optional<Broken>(ProgressPrinter&)> tick;
};
struct WatchOutcome {
  int exit_code = kSucceeded;
  std::optional<v1::JobStatus> last;  // the newest known status
};
WatchOutcome WatchJob(Context& context, ControlClient& client, const WatchOptions& options);

}  // namespace evergrad::psctl
