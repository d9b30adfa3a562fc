#include "coordinator/psctl/cluster_folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/daemon/option_table.h"
#include "common/fs/file.h"
#include "coordinator/psctl/json_output.h"

namespace evergrad::psctl {

using daemon::OptionTable;

void AddLocalOptions(OptionTable* table, ClusterOptions* options) {
  table->Add("folder", &options->folder, "cluster folder: logs, pid files, addresses");
  table->Add("workers", &options->local.workers, "number of workers", {0, 256});
  table->Add("servers", &options->local.servers, "number of parameter servers", {0, 256});
  table->Add("threads", &options->local.worker_threads,
             "compute threads of each worker; 0: the machine's cores divided by the workers",
             {0, 256});
  table->Add("device", &options->local.device,
             "device of the workers: auto, cpu, gpu or gpu:N; empty: auto");
  table->Add("gpus", &options->local.gpus,
             "start one worker per GPU of this machine, instead of --workers");
  table->Add("jobs_running_max", &options->local.jobs_running_max,
             "largest number of jobs that run at the same time", {1, 64});
  table->Add("runs", &options->runs, "folder for the files of runs");
  table->Add("supervise", &options->local.supervise,
             "restart processes that die, as a cluster manager would");
  table->Add("data_root", &options->local.data_roots,
             "folder that must contain the data files of each job; set it if other people use this "
             "machine. If left out, jobs may read any file that you can read");
  table->Add("checkpoint_root", &options->local.checkpoint_roots,
             "folder that must contain the checkpoint.directory of each job; if left out, jobs may "
             "use any folder that you can write");
  table->Add("failpoints", &options->local.failpoints,
             "for tests: failpoints of every daemon; `none` allows counting jobs");
}

void CompleteLocalOptions(const Context& context, ClusterOptions* options) {
  LocalOptions& local = options->local;
  local.bin = std::filesystem::path(context.program).parent_path().string();
  local.folder = AbsolutePath(context, options->folder);
  local.runs = AbsolutePath(context, options->runs);
  for (std::vector<std::string>* roots : {&local.data_roots, &local.checkpoint_roots})
    for (std::string& root : *roots) root = AbsolutePath(context, root);
}

absl::Status ApplyGpus(Context& context, const OptionTable& table,
                       const std::function<bool(std::chrono::milliseconds)>& pause,
                       LocalOptions* local) {
  if (!local->gpus) return absl::OkStatus();
  for (const char* name : {"workers", "device"})
    if (table.IsSet(name))
      return UserError(absl::InvalidArgumentError(
          absl::StrCat("--gpus together with --", name, ": give one of them")));
  EG_ASSIGN_OR_RETURN(local->workers, CountGpus(*local, *context.clock, pause));
  return absl::OkStatus();
}

std::function<bool(std::chrono::milliseconds)> Pause(Context& context) {
  return [&context](std::chrono::milliseconds wait) {
    const auto happening = context.inbox->Take(wait);
    return !(happening && happening->signal != 0);
  };
}

absl::Status NoCluster(const Context& context, const std::string& folder) {
  return UserError(absl::NotFoundError(absl::StrCat(
      "no cluster in this folder (psctl cluster up starts one; --folder names another): ",
      ShowPath(context, folder))));
}

std::map<std::string, ProcessId> PidFiles(const std::string& folder) {
  std::map<std::string, ProcessId> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() != ".pid") continue;
    if (const auto process = ReadPidFile(it->path().string()))
      found[it->path().stem().string()] = *process;
  }
  return found;
}

std::string PidFileOf(const std::string& folder, const std::string& file_name) {
  return absl::StrCat(folder, "/", file_name, ".pid");
}

std::string LogFileOf(const std::string& folder, const std::string& file_name) {
  return absl::StrCat(folder, "/", file_name, ".log");
}

bool AnyAlive(const std::map<std::string, ProcessId>& processes) {
  return std::any_of(processes.begin(), processes.end(),
                     [](const auto& entry) { return IsAlive(entry.second); });
}

void RemovePidFiles(const std::string& folder) {
  std::error_code ignored;
  for (const auto& entry : PidFiles(folder))
    std::filesystem::remove(PidFileOf(folder, entry.first), ignored);
}

absl::Status WriteClusterFile(const std::string& folder, const ClusterFile& file) {
  nlohmann::json json = {{"coordinator", file.address},
                         {"bin", file.bin},
                         {"supervise", file.supervised},
                         {"tasks", nlohmann::json::array()}};
  for (const LocalTask& task : file.tasks)
    json["tasks"].push_back(
        {{"role", RoleName(task.role)}, {"identity", task.identity}, {"args", task.args}});
  return fs::WriteFileAtomic(absl::StrCat(folder, "/cluster.json"), Dump(json) + "\n");
}

absl::StatusOr<ClusterFile> ReadClusterFile(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/cluster.json");
  const auto text = fs::ReadFile(path, 1u << 20);
  const auto json = text.ok() ? nlohmann::json::parse(*text, nullptr, false) : nlohmann::json();
  if (!json.is_object()) return absl::NotFoundError(path);
  ClusterFile file;
  try {
    file.bin = json.at("bin").get<std::string>();
    file.address = json.at("coordinator").get<std::string>();
    file.supervised = json.at("supervise").get<bool>();
    for (const auto& entry : json.at("tasks")) {
      LocalTask& task = file.tasks.emplace_back();
      const std::string role = entry.at("role").get<std::string>();
      task.role = role == "coordinator" ? Role::kCoordinator
                  : role == "ps_server" ? Role::kPsServer
                                        : Role::kWorker;
      task.identity = entry.at("identity").get<std::string>();
      task.args = entry.at("args").get<std::vector<std::string>>();
    }
  } catch (const nlohmann::json::exception& error) {
    return UserError(
        absl::InvalidArgumentError(absl::StrCat("cannot read the file that `cluster up` wrote "
                                                "(psctl cluster down, then up, writes it again): ",
                                                path, ": ", error.what())));
  }
  return file;
}

}  // namespace evergrad::psctl
