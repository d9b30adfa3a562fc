// psctl cluster: up, down, status, restart, run. One folder holds logs, pid files, address files
// and cluster.json.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/daemon/option_table.h"
#include "common/fs/file.h"
#include "common/schema/scalar.h"
#include "coordinator/psctl/context.h"
#include "coordinator/psctl/control_client.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/local_cluster.h"
#include "coordinator/psctl/tables.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

using daemon::OptionTable;
constexpr char kSupervisor[] = "supervisor";
constexpr auto kPoll = std::chrono::milliseconds(20);

struct ClusterOptions {
  std::string folder = ".evergrad", runs = "runs", output = "text";
  LocalOptions local;
  std::chrono::milliseconds wait{20000};
};

void AddLocalOptions(OptionTable* table, ClusterOptions* options) {
  table->Add("folder", &options->folder, "cluster folder: logs, pid files, addresses");
  table->Add("workers", &options->local.workers, "workers", {0, 256});
  table->Add("servers", &options->local.servers, "parameter servers", {0, 256});
  table->Add("threads", &options->local.worker_threads,
             "compute threads of a worker; 0: cores / workers", {0, 256});
  table->Add("device", &options->local.device,
             "the workers' --device (auto, cpu, gpu, gpu:N); empty: auto");
  table->Add("gpus", &options->local.gpus,
             "a worker for each GPU of this machine, instead of --workers");
  table->Add("jobs_running_max", &options->local.jobs_running_max, "jobs that run side by side",
             {1, 64});
  table->Add("runs", &options->runs, "folder for the files of runs");
  table->Add("supervise", &options->local.supervise,
             "start again what dies, as a cluster manager would");
  table->Add("data_root", &options->local.data_roots,
             "folder in which the data files of jobs have to lie, for a machine that others use, "
             "too; left out: any file that you can read");
  table->Add("checkpoint_root", &options->local.checkpoint_roots,
             "folder in which the checkpoint.directory of jobs has to lie; left out: any folder "
             "that you can write");
  table->Add("failpoints", &options->local.failpoints,
             "for tests: given to every daemon; `none` allows counting jobs");
}

// What --gpus makes of the options, which are to have the daemons' folder and the cluster's.
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

void MakeRootsAbsolute(Context& context, LocalOptions* local) {
  for (std::vector<std::string>* roots : {&local->data_roots, &local->checkpoint_roots})
    for (std::string& root : *roots) root = AbsolutePath(context, root);
}

// Waits a little; false when a signal came (that of psctl itself).
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

std::string Folder(Context& context, const std::string& folder) {
  return AbsolutePath(context, folder);
}

// The pid files of a folder by task ("worker-0"), in name order.
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

std::string TaskNameOf(const std::string& file_name) {
  const std::size_t dash = file_name.find('-');
  return dash == std::string::npos
             ? file_name
             : absl::StrCat(file_name.substr(0, dash), "/", file_name.substr(dash + 1));
}

// What `restart` needs to know; written by Start's caller.
absl::Status WriteClusterFile(const std::string& folder, const std::string& bin, bool supervise,
                              const std::vector<LocalTask>& tasks, const std::string& address) {
  nlohmann::json json = {{"coordinator", address},
                         {"bin", bin},
                         {"supervise", supervise},
                         {"tasks", nlohmann::json::array()}};
  for (const LocalTask& task : tasks)
    json["tasks"].push_back(
        {{"role", RoleName(task.role)}, {"identity", task.identity}, {"args", task.args}});
  return fs::WriteFileAtomic(absl::StrCat(folder, "/cluster.json"), Dump(json) + "\n");
}

bool AnyAlive(const std::map<std::string, ProcessId>& processes) {
  return std::any_of(processes.begin(), processes.end(),
                     [](const auto& entry) { return IsAlive(entry.second); });
}

int Up(Context& context, const std::vector<std::string>& args) {
  ClusterOptions options;
  OptionTable table("psctl cluster up", "starts a cluster in the background on this machine",
                    OptionTable::Kind::kCommand);
  AddLocalOptions(&table, &options);
  table.Add("wait", &options.wait, "how long all tasks may take to register");
  AddOutputOption(&table, &options.output);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  const std::string folder = Folder(context, options.folder);
  if (AnyAlive(PidFiles(folder)))
    return Report(context, UserError(absl::AlreadyExistsError(
                               absl::StrCat("a cluster runs already in ", ShowPath(context, folder),
                                            " (psctl cluster status; psctl cluster down)"))));
  context.handles_signals->store(true);
  const auto pause = Pause(context);
  options.local.bin = std::filesystem::path(context.program).parent_path().string();
  options.local.folder = folder;
  options.local.runs = AbsolutePath(context, options.runs);
  MakeRootsAbsolute(context, &options.local);
  if (const absl::Status made = fs::MakeDirectories(folder); !made.ok())
    return Report(context, made);
  if (const absl::Status gpus = ApplyGpus(context, table, pause, &options.local); !gpus.ok())
    return absl::IsCancelled(gpus) ? kInterrupted : Report(context, gpus);
  std::error_code ignored;
  for (const auto& entry : PidFiles(folder))
    std::filesystem::remove(absl::StrCat(folder, "/", entry.first, ".pid"), ignored);
  std::filesystem::remove(absl::StrCat(folder, "/coordinator.address"), ignored);
  const std::size_t wanted = options.local.workers + options.local.servers;
  std::unique_ptr<LocalCluster> cluster;
  // Ctrl-C while it comes up takes down what has come up.
  std::optional<ProcessId> supervisor;
  const auto interrupted = [&] {
    if (cluster != nullptr) cluster->Stop();
    if (supervisor && IsAlive(*supervisor)) ::kill(supervisor->pid, SIGTERM);
    return kInterrupted;
  };
  if (options.local.supervise) {
    // The supervisor is psctl itself in the foreground verb, in a session of its own: the daemons
    // are its children.
    SpawnOptions spawn;
    spawn.program = context.program;
    spawn.args = {"cluster",
                  "run",
                  "--folder",
                  folder,
                  "--runs",
                  options.local.runs,
                  "--supervise",
                  "--servers",
                  absl::StrCat(options.local.servers),
                  "--jobs-running-max",
                  absl::StrCat(options.local.jobs_running_max),
                  "--threads",
                  absl::StrCat(options.local.worker_threads)};
    if (options.local.gpus)
      spawn.args.push_back("--gpus");
    else
      spawn.args.insert(spawn.args.end(), {"--workers", absl::StrCat(options.local.workers)});
    if (!options.local.device.empty())
      spawn.args.insert(spawn.args.end(), {"--device", options.local.device});
    if (!options.local.failpoints.empty())
      spawn.args.insert(spawn.args.end(), {"--failpoints", options.local.failpoints});
    for (const std::string& root : options.local.data_roots)
      spawn.args.insert(spawn.args.end(), {"--data-root", root});
    for (const std::string& root : options.local.checkpoint_roots)
      spawn.args.insert(spawn.args.end(), {"--checkpoint-root", root});
    spawn.log_file = absl::StrCat(folder, "/", kSupervisor, ".log");
    spawn.folder = context.folder;
    spawn.detached = true;
    const auto pid = Spawn(spawn);
    if (!pid.ok()) return Report(context, pid.status());
    const auto identity = IdentityOf(*pid);
    if (identity.ok()) {
      supervisor = *identity;
      if (const absl::Status written =
              WritePidFile(absl::StrCat(folder, "/", kSupervisor, ".pid"), *identity);
          !written.ok())
        return Report(context, written);
    }
    const MonoTime until = context.clock->Now() + options.wait;
    while (!fs::Exists(absl::StrCat(folder, "/coordinator.address"))) {
      if (!identity.ok() || !IsAlive(*identity)) {
        context.err << "psctl: the supervisor ended; its log:\n"
                    << Tail(spawn.log_file, 10) << "\n";
        return kFailed;
      }
      if (context.clock->Now() > until)
        return Report(context, absl::DeadlineExceededError(absl::StrCat(
                                   "the coordinator does not listen yet: logs=", folder)));
      if (!pause(kPoll)) return interrupted();
    }
  } else {
    options.local.detached = true;
    cluster = std::make_unique<LocalCluster>(options.local, context.clock, pause);
    absl::Status started = cluster->Start();
    if (started.ok())
      started = WriteClusterFile(folder, options.local.bin, false, cluster->tasks(),
                                 cluster->coordinator_address());
    if (!started.ok()) {
      cluster->Stop();
      return absl::IsCancelled(started) ? kInterrupted : Report(context, started);
    }
  }
  Connection connection;
  connection.folder = folder;
  connection.wait = {};  // asked again and again below
  auto client = ControlClient::Connect(context, connection);
  if (!client.ok()) return Report(context, client.status());
  const MonoTime until = context.clock->Now() + options.wait;
  for (;;) {
    const auto tasks = (*client)->ListTasks();
    std::size_t alive = 0;
    if (tasks.ok())
      alive = static_cast<std::size_t>(
          std::count_if(tasks->tasks().begin(), tasks->tasks().end(), [](const v1::TaskRow& task) {
            return task.role() != v1::ROLE_COORDINATOR && task.state() == "alive";
          }));
    if (alive >= wanted) {
      if (options.output == "json")
        context.out << Dump({{"coordinator", (*client)->address()},
                             {"folder", folder},
                             {"workers", options.local.workers},
                             {"servers", options.local.servers}})
                    << "\n";
      else
        context.out << "cluster up: coordinator " << (*client)->address() << ", "
                    << options.local.servers
                    << (options.local.servers == 1 ? " server, " : " servers, ")
                    << options.local.workers
                    << (options.local.workers == 1 ? " worker" : " workers") << "; folder "
                    << ShowPath(context, folder) << " (psctl cluster down ends it)\n";
      return kSucceeded;
    }
    if (cluster != nullptr) {
      for (const std::string& line : cluster->Tick()) context.err << "psctl: " << line << "\n";
      if (const auto broken = cluster->broken()) {
        context.err << "psctl: " << broken->text << "\n";
        cluster->Stop();
        return kFailed;
      }
    }
    if (context.clock->Now() > until) {
      context.err << "psctl: not every task has registered: want=" << wanted << " got=" << alive
                  << (tasks.ok() ? ""
                                 : absl::StrCat(" (", Printable(tasks.status().message()), ")"))
                  << "; it goes on in the background (psctl cluster status)\n";
      return kFailed;
    }
    if (!pause(kPoll)) return interrupted();
  }
}

// In the foreground: what `up --supervise` runs in the background, and what a container would.
int RunForeground(Context& context, const std::vector<std::string>& args) {
  ClusterOptions options;
  OptionTable table("psctl cluster run", "runs a cluster in the foreground until Ctrl-C or SIGTERM",
                    OptionTable::Kind::kCommand);
  AddLocalOptions(&table, &options);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  context.handles_signals->store(true);
  options.local.bin = std::filesystem::path(context.program).parent_path().string();
  options.local.folder = Folder(context, options.folder);
  options.local.runs = AbsolutePath(context, options.runs);
  MakeRootsAbsolute(context, &options.local);
  const auto pause = Pause(context);
  if (const absl::Status gpus = ApplyGpus(context, table, pause, &options.local); !gpus.ok())
    return absl::IsCancelled(gpus) ? kInterrupted : Report(context, gpus);
  LocalCluster cluster(options.local, context.clock, pause);
  absl::Status started = cluster.Start();
  if (started.ok())
    started = WriteClusterFile(options.local.folder, options.local.bin, options.local.supervise,
                               cluster.tasks(), cluster.coordinator_address());
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
  table.Add("grace", &grace, "how long tasks may take to end by themselves");
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  const std::string folder = Folder(context, options.folder);
  std::map<std::string, ProcessId> processes = PidFiles(folder);
  if (processes.empty()) return Report(context, NoCluster(context, folder));
  context.handles_signals->store(true);
  const auto pause = Pause(context);
  std::size_t ended = 0;
  // The supervisor first: it must not start again what ends, and it ends its children itself.
  const auto stop = [&](const std::map<std::string, ProcessId>& some) {
    for (const auto& [name, process] : some) {
      if (!IsAlive(process)) continue;
      ::kill(process.pid, SIGTERM);
      ::kill(process.pid, SIGCONT);
      ++ended;
    }
    const MonoTime until = context.clock->Now() + grace;
    while (AnyAlive(some) && context.clock->Now() < until && pause(kPoll)) {
    }
    for (const auto& [name, process] : some)
      if (IsAlive(process)) ::kill(process.pid, SIGKILL);
    while (AnyAlive(some) && pause(kPoll)) {
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
  std::error_code ignored;
  for (const auto& entry : PidFiles(folder))
    std::filesystem::remove(absl::StrCat(folder, "/", entry.first, ".pid"), ignored);
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
      "shows the processes of a cluster folder, and what the coordinator says of them",
      OptionTable::Kind::kCommand);
  table.Add("folder", &options.folder, "cluster folder");
  AddOutputOption(&table, &options.output);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  const std::string folder = Folder(context, options.folder);
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
                    {"log", absl::StrCat(folder, "/", name, ".log")}});
    text.push_back({TaskNameOf(name), absl::StrCat(process.pid), alive ? "runs" : "ended",
                    ShowPath(context, absl::StrCat(folder, "/", name, ".log"))});
  }
  Connection connection;
  connection.folder = folder;
  connection.timeout = std::chrono::milliseconds(3000);
  connection.wait = std::chrono::milliseconds(
      500);  // who asks for the status wants to hear that the coordinator is gone
  auto client = ControlClient::Connect(context, connection);
  absl::StatusOr<v1::GetClusterInfoResponse> info =
      client.ok() ? (*client)->GetClusterInfo() : client.status();
  absl::StatusOr<v1::ListTasksResponse> tasks =
      client.ok() && info.ok() ? (*client)->ListTasks() : info.status();
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

int Restart(Context& context, const std::vector<std::string>& args) {
  ClusterOptions options;
  std::string task_name;
  bool kill_it = false;
  OptionTable table("psctl cluster restart",
                    "ends one task of a cluster folder and starts it again",
                    OptionTable::Kind::kCommand);
  table.AddArgument("ROLE/INDEX", &task_name, "worker/0, ps_server/1, coordinator");
  table.Add("folder", &options.folder, "cluster folder");
  table.Add("kill", &kill_it, "with SIGKILL, as a machine would go");
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  const std::string folder = Folder(context, options.folder);
  const auto text = fs::ReadFile(absl::StrCat(folder, "/cluster.json"), 1u << 20);
  const auto json = text.ok() ? nlohmann::json::parse(*text, nullptr, false) : nlohmann::json();
  const std::map<std::string, ProcessId> processes = PidFiles(folder);
  if (!json.is_object() || processes.empty()) return Report(context, NoCluster(context, folder));
  LocalTask task;
  std::string bin, address;
  bool supervised = false, found = false;
  std::vector<std::string> names;
  try {
    bin = json.at("bin").get<std::string>();
    address = json.at("coordinator").get<std::string>();
    supervised = json.at("supervise").get<bool>();
    for (const auto& entry : json.at("tasks")) {
      LocalTask candidate;
      const std::string role = entry.at("role").get<std::string>();
      candidate.role = role == "coordinator" ? Role::kCoordinator
                       : role == "ps_server" ? Role::kPsServer
                                             : Role::kWorker;
      candidate.identity = entry.at("identity").get<std::string>();
      candidate.args = entry.at("args").get<std::vector<std::string>>();
      names.push_back(candidate.Name());
      if (candidate.Name() == task_name ||
          (candidate.role == Role::kCoordinator && task_name == "coordinator/0"))
        task = candidate, found = true;
    }
  } catch (const nlohmann::json::exception& error) {
    return Report(
        context,
        UserError(absl::InvalidArgumentError(absl::StrCat(
            "cannot read what `cluster up` wrote (psctl cluster down, then up, writes it anew): ",
            folder, "/cluster.json: ", error.what()))));
  }
  if (!found)
    return Report(context, UserError(absl::NotFoundError(absl::StrCat(
                               "no task `", task_name, "`: the cluster has ",
                               absl::StrJoin(names, ", "), config::Suggestion(task_name, names)))));
  context.handles_signals->store(true);
  const auto pause = Pause(context);
  const std::string pid_file = absl::StrCat(folder, "/", task.FileName(), ".pid");
  const auto before = ReadPidFile(pid_file);
  if (before && IsAlive(*before)) {
    ::kill(before->pid, kill_it ? SIGKILL : SIGTERM);
    ::kill(before->pid, SIGCONT);
    // Longer than a server takes at most to hand over its shards.
    MonoTime until = context.clock->Now() + std::chrono::seconds(15);
    while (IsAlive(*before)) {
      if (context.clock->Now() > until)
        ::kill(before->pid, SIGKILL), until += std::chrono::seconds(10);
      if (!pause(kPoll)) return kInterrupted;
    }
  }
  if (supervised) {
    const MonoTime until = context.clock->Now() + std::chrono::seconds(15);
    for (;;) {
      const auto now = ReadPidFile(pid_file);
      if (now && IsAlive(*now) &&
          (!before || now->pid != before->pid || now->start_ticks != before->start_ticks))
        break;
      if (context.clock->Now() > until)
        return Report(context, absl::InternalError(absl::StrCat("the supervisor did not start ",
                                                                task_name, " again: log=", folder,
                                                                "/", kSupervisor, ".log")));
      if (!pause(kPoll)) return kInterrupted;
    }
  } else {
    SpawnOptions spawn;
    spawn.program = ProgramOf(bin, task.role);
    spawn.args = ArgumentsOf(task, folder, address);
    spawn.log_file = absl::StrCat(folder, "/", task.FileName(), ".log");
    spawn.detached = true;
    const auto pid = Spawn(spawn);
    if (!pid.ok()) return Report(context, pid.status());
    const auto identity = IdentityOf(*pid);
    const absl::Status written =
        identity.ok() ? WritePidFile(pid_file, *identity) : identity.status();
    if (!written.ok()) {
      context.err << "psctl: " << task_name << " ended at once; its log:\n"
                  << Tail(spawn.log_file, 10) << "\n";
      return kFailed;
    }
  }
  const auto after = ReadPidFile(pid_file);
  // It reads its journal before it listens: who calls next shall reach it.
  for (const MonoTime until = context.clock->Now() + std::chrono::seconds(15);
       task.role == Role::kCoordinator;) {
    Connection connection;
    connection.folder = folder;
    connection.timeout = std::chrono::milliseconds(1000);
    connection.wait = {};  // asked again and again here
    auto client = ControlClient::Connect(context, connection);
    if (client.ok() && (*client)->GetClusterInfo().ok()) break;
    if (context.clock->Now() > until || (!supervised && !(after && IsAlive(*after))))
      return Report(context,
                    absl::InternalError(absl::StrCat(
                        "the coordinator does not answer: log=", folder, "/", task.FileName(),
                        ".log\n", Tail(absl::StrCat(folder, "/", task.FileName(), ".log"), 2))));
    if (!pause(kPoll)) return kInterrupted;
  }
  context.out << task.Name() << ": pid " << (before ? absl::StrCat(before->pid) : "none") << " -> "
              << (after ? absl::StrCat(after->pid) : "none") << "\n";
  return kSucceeded;
}

}  // namespace

std::vector<Verb> ClusterVerbs() {
  return {{"cluster", "up", "start a cluster in the background on this machine", Up},
          {"cluster", "down", "end it", Down},
          {"cluster", "status", "show its processes and tasks", Status},
          {"cluster", "restart", "end one task and start it again", Restart},
          {"cluster", "run", "run a cluster in the foreground", RunForeground}};
}

}  // namespace evergrad::psctl
