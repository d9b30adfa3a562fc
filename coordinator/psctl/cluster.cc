// psctl cluster down, status and run.
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/daemon/option_table.h"
#include "coordinator/psctl/cluster_folder.h"
#include "coordinator/psctl/context.h"
#include "coordinator/psctl/control_client.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/tables.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

using daemon::OptionTable;

std::string TaskNameOf(const std::string& file_name) {
  const std::size_t dash = file_name.find('-');
  return dash == std::string::npos
             ? file_name
             : absl::StrCat(file_name.substr(0, dash), "/", file_name.substr(dash + 1));
}

// Runs a cluster in the foreground. `psctl cluster up --supervise` runs this verb in the
// background. The verb also suits a container.
int RunForeground(Context& context, const std::vector<std::string>& args) {
  ClusterOptions options;
  OptionTable table("psctl cluster run", "runs a cluster in the foreground until Ctrl-C or SIGTERM",
                    OptionTable::Kind::kCommand);
  AddLocalOptions(&table, &options);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  context.handles_signals->store(true);
  CompleteLocalOptions(context, &options);
  const auto pause = Pause(context);
  if (const absl::Status gpus = ApplyGpus(context, table, pause, &options.local); !gpus.ok())
    return absl::IsCancelled(gpus) ? kInterrupted : Report(context, gpus);
  LocalCluster cluster(options.local, context.clock, pause);
  absl::Status started = cluster.Start();
  if (started.ok())
    started =
        WriteClusterFile(options.local.folder, {options.local.bin, cluster.coordinator_address(),
                                                options.local.supervise, cluster.tasks()});
  int code = kSucceeded;
  if (!started.ok()) {
    code = absl::IsCancelled(started) ? kInterrupted : Report(context, started);
  } else {
    context.out << "cluster: coordinator " << cluster.coordinator_address() << "\n" << std::flush;
    for (;;) {
      if (!pause(std::chrono::milliseconds(100))) break;
      for (const std::string& line : cluster.Tick())
        context.out << ShowTime(context.clock->WallMillis()) << " " << line << "\n" << std::flush;
      if (const auto broken = cluster.broken()) {
        context.err << "psctl: " << broken->text << "\n";
        code = kFailed;
        break;
      }
    }
  }
  cluster.Stop();
  std::error_code ignored;
  std::filesystem::remove(absl::StrCat(options.local.folder, "/coordinator.address"), ignored);
  return code;
}

int Down(Context& context, const std::vector<std::string>& args) {
  ClusterOptions options;
  std::chrono::milliseconds grace{10000};
  OptionTable table("psctl cluster down", "ends the cluster of a folder",
                    OptionTable::Kind::kCommand);
  table.Add("folder", &options.folder, "cluster folder");
  table.Add("grace", &grace, "time for tasks to end by themselves before they are killed");
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  const std::string folder = AbsolutePath(context, options.folder);
  std::map<std::string, ProcessId> processes = PidFiles(folder);
  if (processes.empty()) return Report(context, NoCluster(context, folder));
  context.handles_signals->store(true);
  const auto pause = Pause(context);
  std::size_t ended = 0;
  // The supervisor is ended first, because otherwise it would restart the ended tasks. The
  // supervisor ends its own children.
  const auto stop = [&](const std::map<std::string, ProcessId>& some) {
    for (const auto& [name, process] : some) {
      if (!IsAlive(process)) continue;
      ::kill(process.pid, SIGTERM);
      ::kill(process.pid, SIGCONT);
      ++ended;
    }
    const MonoTime until = context.clock->Now() + grace;
    while (AnyAlive(some) && context.clock->Now() < until && pause(kPollInterval)) {
    }
    for (const auto& [name, process] : some)
      if (IsAlive(process)) ::kill(process.pid, SIGKILL);
    while (AnyAlive(some) && pause(kPollInterval)) {
    }
  };
  if (const auto supervisor = processes.find(kSupervisor); supervisor != processes.end()) {
    const auto children = std::count_if(processes.begin(), processes.end(), [](const auto& entry) {
      return entry.first != kSupervisor && IsAlive(entry.second);
    });
    stop({*supervisor});
    ended += static_cast<std::size_t>(children);
    processes.erase(supervisor);
  }
  stop(processes);
  RemovePidFiles(folder);
  std::error_code ignored;
  for (std::filesystem::directory_iterator it(folder, ignored), end; !ignored && it != end;
       it.increment(ignored))
    if (it->path().extension() == ".address") std::filesystem::remove(it->path(), ignored);
  context.out << "cluster down: " << ended << (ended == 1 ? " process" : " processes")
              << " ended; logs stay in " << ShowPath(context, folder) << "\n";
  return kSucceeded;
}

int Status(Context& context, const std::vector<std::string>& args) {
  ClusterOptions options;
  OptionTable table(
      "psctl cluster status",
      "shows the processes of a cluster folder, and the tasks that the coordinator knows",
      OptionTable::Kind::kCommand);
  table.Add("folder", &options.folder, "cluster folder");
  AddOutputOption(&table, &options.output);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  const std::string folder = AbsolutePath(context, options.folder);
  const std::map<std::string, ProcessId> processes = PidFiles(folder);
  if (processes.empty())
    return Report(context, absl::UnavailableError(NoCluster(context, folder).message()));
  nlohmann::json rows = nlohmann::json::array();
  std::vector<std::vector<std::string>> text;
  bool all = true;
  for (const auto& [name, process] : processes) {
    const bool alive = IsAlive(process);
    all = all && alive;
    rows.push_back({{"task", TaskNameOf(name)},
                    {"pid", process.pid},
                    {"alive", alive},
                    {"log", LogFileOf(folder, name)}});
    text.push_back({TaskNameOf(name), absl::StrCat(process.pid), alive ? "runs" : "ended",
                    ShowPath(context, LogFileOf(folder, name))});
  }
  Connection connection;
  connection.folder = folder;
  connection.timeout = std::chrono::milliseconds(3000);
  // The wait is short, because the command must also work if no coordinator runs.
  connection.wait = std::chrono::milliseconds(500);
  auto client = ControlClient::Connect(context, connection);
  absl::StatusOr<v1::GetClusterInfoResponse> info =
      client.ok() ? (*client)->Call<v1::GetClusterInfoResponse>(v1::GetClusterInfoRequest())
                  : client.status();
  absl::StatusOr<v1::ListTasksResponse> tasks =
      client.ok() && info.ok() ? (*client)->Call<v1::ListTasksResponse>(v1::ListTasksRequest())
                               : info.status();
  if (options.output == "json") {
    nlohmann::json known = nlohmann::json::array();
    if (tasks.ok())
      for (const v1::TaskRow& task : tasks->tasks()) known.push_back(JsonOf(task));
    context.out << Dump({{"folder", folder},
                         {"processes", rows},
                         {"coordinator", info.ok() ? JsonOf(*info) : nlohmann::json(nullptr)},
                         {"tasks", known}})
                << "\n";
  } else {
    for (const std::string& line :
         RenderTable({{"process"}, {"pid", true}, {"state"}, {"log"}}, text))
      context.out << line << "\n";
    if (tasks.ok()) {
      context.out << "\n";
      for (const std::string& line : TaskTable(*tasks, context.clock->WallMillis()))
        context.out << line << "\n";
    }
  }
  if (!info.ok()) return Report(context, absl::UnavailableError(info.status().message()));
  if (!all && options.output == "text") context.err << "psctl: some processes have ended\n";
  return all ? kSucceeded : kFailed;
}

}  // namespace

std::vector<Verb> ClusterVerbs() {
  return {{"cluster", "up", "start a cluster in the background on this machine", ClusterUp},
          {"cluster", "down", "end a cluster", Down},
          {"cluster", "status", "show the processes and tasks of a cluster", Status},
          {"cluster", "restart", "end one task and start it again", ClusterRestart},
          {"cluster", "run", "run a cluster in the foreground", RunForeground}};
}

}  // namespace evergrad::psctl
