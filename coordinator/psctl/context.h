// The parts of the outside world that a verb of psctl may use. main.cc or a test creates all of
// them.
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

// The exit codes, on which scripts may rely.
inline constexpr int kSucceeded = 0, kFailed = 1, kUsage = 2, kCancelled = 3, kUnreachable = 4,
                     kRequirementUnmet = 5, kInterrupted = 130;

struct Happening {
  int signal = 0;                                            // SIGINT or SIGTERM; 0 for none
  std::optional<absl::StatusOr<v1::GetJobResponse>> answer;  // the answer about the watched job
};

struct Context {
  std::ostream& out;
  std::ostream& err;
  transport::Transport* transport = nullptr;  // borrowed; it outlives every verb
  const Clock* clock = nullptr;
  std::map<std::string, std::string> environment;
  std::string program;  // path of psctl itself; the daemons are in the same folder
  std::string folder;   // absolute path of the folder in which psctl was called
  bool in_terminal = false, out_terminal = false;
  std::size_t columns = 80;
  Inbox<Happening>* inbox = nullptr;
  // While the flag is false, a signal ends the process at once with code 130. A verb that must
  // clean up sets this flag to true and reads the inbox.
  std::atomic<bool>* handles_signals = nullptr;
  // Returns a line of the terminal, or nullopt if none is complete yet. Used for the question after
  // Ctrl-C.
  std::function<std::optional<std::string>()> read_line;
};

// The options of every verb that calls a coordinator.
struct Connection {
  // If "", the address comes from the context that EVERGRAD_CONTEXT names, the cluster folder,
  // EVERGRAD_COORDINATOR, or the current context, in this order.
  std::string coordinator;
  std::string context;  // the name of a context (cluster_contexts.h), in place of `coordinator`
  std::string folder = ".evergrad";
  transport::TlsFiles tls;
  std::chrono::milliseconds timeout{10000};
  // Time for which a call that could not connect is repeated; 0 for no repeats.
  std::chrono::milliseconds wait{5000};
  // Describes how to use this verb without a coordinator, for the message if no address is given.
  std::string instead;
};
void AddConnectionOptions(daemon::OptionTable* table, Connection* connection);
void AddOutputOption(daemon::OptionTable* table, std::string* output);
// The address and the certificate of a connection.
struct Target {
  std::string address;
  transport::TlsFiles tls;
};
// Returns the target of `connection`. The files of a context are used only with the address of the
// context, and only if the connection has none. If there is no address, returns a user's error that
// names the ways to give one.
absl::StatusOr<Target> TargetOf(const Context& context, const Connection& connection);

// Parses `args` (without the program, noun and verb). Returns an exit code if the verb has ended,
// because help was printed or the usage was wrong.
std::optional<int> ParseArguments(Context& context, daemon::OptionTable* table,
                                  const std::vector<std::string>& args);
// Prints `status` on err, one line per mistake, and returns its exit code: 4 for a cluster that
// cannot be reached, 2 for a user's error.
int Report(Context& context, const absl::Status& status);
// Returns `path` for people: relative if it is inside the folder in which psctl was called.
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
std::vector<Verb> HealthVerbs();
std::vector<Verb> CertVerbs();
std::vector<Verb> CheckpointVerbs();
std::vector<Verb> CompletionVerbs();
// Returns all verbs of psctl.
std::vector<Verb> AllVerbs();
// Returns the words that can take the place of the last of `words`, which follow `psctl` on a
// command line, in alphabetical order.
std::vector<std::string> CompletionCandidates(const Context& context,
                                              const std::vector<Verb>& verbs,
                                              const std::vector<std::string>& words);

// Runs the whole program, with the parts that main.cc creates. `args` do not include the program's
// name.
int RunPsctl(Context& context, const std::vector<std::string>& args);

}  // namespace evergrad::psctl
