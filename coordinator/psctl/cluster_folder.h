// The folder of a local cluster, with the parts that the verbs of `psctl cluster` share: its pid
// files ("worker-0.pid"), cluster.json, and the options that describe its daemons. Everything runs
// on the process's main thread and blocks on the file system.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/psctl/context.h"
#include "coordinator/psctl/local_cluster.h"
#include "coordinator/psctl/process.h"

namespace evergrad::psctl {

// The name of the pid and log files of the background process of `cluster up --supervise`.
inline constexpr char kSupervisor[] = "supervisor";
inline constexpr auto kPollInterval = std::chrono::milliseconds(20);

struct ClusterOptions {
  std::string folder = ".evergrad", runs = "runs", output = "text";
  LocalOptions local;
  std::chrono::milliseconds wait{20000};
};
void AddLocalOptions(daemon::OptionTable* table, ClusterOptions* options);
// Completes options.local from the parsed options: sets the daemons' folder and makes paths
// absolute.
void CompleteLocalOptions(const Context& context, ClusterOptions* options);
// With --gpus, sets the number of workers to the number of GPUs. Returns a user's error if --gpus
// is combined with --workers or --device, or if there is no GPU, and Cancelled if a signal arrived.
absl::Status ApplyGpus(Context& context, const daemon::OptionTable& table,
                       const std::function<bool(std::chrono::milliseconds)>& pause,
                       LocalOptions* local);

// Returns a function that waits for at most the given time. The function returns false if psctl
// received a signal.
std::function<bool(std::chrono::milliseconds)> Pause(Context& context);

// Returns the error of a verb that needs a cluster in `folder`.
absl::Status NoCluster(const Context& context, const std::string& folder);

// Returns the pid files of a folder by the task's file name ("worker-0"), in the order of the
// names.
std::map<std::string, ProcessId> PidFiles(const std::string& folder);
std::string PidFileOf(const std::string& folder, const std::string& file_name);
std::string LogFileOf(const std::string& folder, const std::string& file_name);
bool AnyAlive(const std::map<std::string, ProcessId>& processes);
// Removes all pid files.
void RemovePidFiles(const std::string& folder);

// The contents of cluster.json: the facts about a running cluster that `cluster restart` needs.
struct ClusterFile {
  std::string bin;      // the folder that contains the daemons
  std::string address;  // the coordinator's address
  bool supervised = false;
  std::vector<LocalTask> tasks;  // role, identity and arguments only
};
absl::Status WriteClusterFile(const std::string& folder, const ClusterFile& file);
// Returns NotFound if there is no cluster.json or if it is not a JSON object, and a user's error if
// it cannot be read.
absl::StatusOr<ClusterFile> ReadClusterFile(const std::string& folder);

// The verbs that are implemented in separate files.
int ClusterUp(Context& context, const std::vector<std::string>& args);
int ClusterRestart(Context& context, const std::vector<std::string>& args);

}  // namespace evergrad::psctl
