// The folder of a local cluster, and what the verbs of `psctl cluster` share about it: its pid
// files ("worker-0.pid"), cluster.json, and the options that describe its daemons. One thread, the
// process's main one; everything blocks on the file system.
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

// The pid and log file of the process that `cluster up --supervise` leaves in the background.
inline constexpr char kSupervisor[] = "supervisor";
inline constexpr auto kPollInterval = std::chrono::milliseconds(20);

struct ClusterOptions {
  std::string folder = ".evergrad", runs = "runs", output = "text";
  LocalOptions local;
  std::chrono::milliseconds wait{20000};
};
void AddLocalOptions(daemon::OptionTable* table, ClusterOptions* options);
// Completes options.local from what was parsed: the daemons' folder, absolute paths.
void CompleteLocalOptions(const Context& context, ClusterOptions* options);
// With --gpus, sets the number of workers to the number of GPUs. UserError when --gpus is combined
// with --workers or --device, or when there is no GPU; Cancelled when a signal came.
absl::Status ApplyGpus(Context& context, const daemon::OptionTable& table,
                       const std::function<bool(std::chrono::milliseconds)>& pause,
                       LocalOptions* local);

// Waits for at most the given time; the result is false when psctl received a signal.
std::function<bool(std::chrono::milliseconds)> Pause(Context& context);

// The error of a verb that needs a cluster in `folder`.
absl::Status NoCluster(const Context& context, const std::string& folder);

// The pid files of a folder by the task's file name ("worker-0"), in the order of the names.
std::map<std::string, ProcessId> PidFiles(const std::string& folder);
std::string PidFileOf(const std::string& folder, const std::string& file_name);
std::string LogFileOf(const std::string& folder, const std::string& file_name);
bool AnyAlive(const std::map<std::string, ProcessId>& processes);
// Removes all pid files.
void RemovePidFiles(const std::string& folder);

// cluster.json: what `cluster restart` needs to know about a cluster that runs.
struct ClusterFile {
  std::string bin;      // the folder with the daemons
  std::string address;  // the coordinator's
  bool supervised = false;
  std::vector<LocalTask> tasks;  // role, identity and arguments only
};
absl::Status WriteClusterFile(const std::string& folder, const ClusterFile& file);
// NotFound: there is no cluster.json, or it is not a JSON object. UserError: it cannot be read.
absl::StatusOr<ClusterFile> ReadClusterFile(const std::string& folder);

// The verbs with a file of their own.
int ClusterUp(Context& context, const std::vector<std::string>& args);
int ClusterRestart(Context& context, const std::vector<std::string>& args);

}  // namespace evergrad::psctl
