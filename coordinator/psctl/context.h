// What a verb of psctl may touch: everything of the outside world comes in here, made by main.cc or
// by a test.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/time/clock.h"
#include "common/transport/transport.h"
#include "coordinator/psctl/inbox.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::daemon {
class OptionTable;
}

namespace evergrad::psctl {

// Exit codes, a promise to scripts.
inline constexpr int kSucceeded = 0, kFailed = 1, kUsage = 2, kCancelled = 3, kUnreachable = 4,
                     kRequirementUnmet = 5, kInterrupted = 130;

struct Happening {
  int signal = 0;                                            // SIGINT, SIGTERM; 0: none
  std::optional<absl::StatusOr<v1::GetJobResponse>> answer;  // of the job that is watched
};

struct Context {
  std::ostream& out;
  std::ostream& err;
  transport::Transport* transport = nullptr;  // loans: they outlive every verb
  const Clock* clock = nullptr;
  std::map<std::string, std::string> environment;
  std::string program;  // path of psctl itself; the daemons lie beside it
  std::string folder;   // where psctl was called, absolute
  bool in_terminal = false, out_terminal = false;
  std::size_t columns = 80;
  Inbox<Happening>* inbox = nullptr;
  // While false a signal ends the process at once with 130; a verb that has something to clean up
  // sets it and reads the inbox.
  std::atomic<bool>* handles_signals = nullptr;
  // A line of the terminal, when one is there; nullopt: none yet. For the question after Ctrl-C.
  std::function<std::optional<std::string>()> read_line;
};

// What every verb that talks to a coordinator takes.
struct Connection {
  std::string coordinator;  // "": the cluster folder's, else EVERGRAD_COORDINATOR
  std::string folder = ".evergrad";
  transport::TlsFiles tls;
  std::chrono::milliseconds timeout{10000};
  std::chrono::milliseconds wait{
      5000};  // how long a call that found nobody to connect to is repeated; 0: not at all
  std::string
      instead;  // what this verb can do without a coordinator, for the message when none is named
};
void AddConnectionOptions(daemon::OptionTable* table, Connection* connection);
void AddOutputOption(daemon::OptionTable* table, std::string* output);
// A user's error that names the three ways when there is none.
absl::StatusOr<std::string> CoordinatorAddress(const Context& context,
                                               const Connection& connection);

// Parses `args` (without the program, noun and verb). A code: the verb is over (help was printed,
// usage was wrong).
std::optional<int> ParseArguments(Context& context, daemon::OptionTable* table,
                                  const std::vector<std::string>& args);
// Says `status` on err, one line a mistake, and returns its exit code: 4 for a cluster that cannot
// be reached, 2 for a user's error.
int Report(Context& context, const absl::Status& status);
// `path` as a person wants it: relative when it lies under where psctl was called.
std::string ShowPath(const Context& context, const std::string& path);
std::string AbsolutePath(const Context& context, const std::string& path);

struct Verb {
  std::string noun, verb, summary;
  std::function<int(Context&, const std::vector<std::string>& args)> run;
};
std::vector<Verb> JobVerbs();
std::vector<Verb> ClusterVerbs();
std::vector<Verb> TaskVerbs();
std::vector<Verb> VariableVerbs();
std::vector<Verb> LogsVerbs();
std::vector<Verb> CertVerbs();
std::vector<Verb> CheckpointVerbs();

// The whole program but for what main.cc makes. args: without the program's name.
int RunPsctl(Context& context, const std::vector<std::string>& args);

}  // namespace evergrad::psctl
