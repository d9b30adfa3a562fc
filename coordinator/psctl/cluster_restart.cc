// psctl cluster restart: ends one task of a cluster folder and starts it again.
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/daemon/option_table.h"
#include "common/schema/scalar.h"
#include "coordinator/psctl/cluster_folder.h"
#include "coordinator/psctl/control_client.h"

namespace evergrad::psctl {
namespace {

using daemon::OptionTable;
constexpr auto kPatience = std::chrono::seconds(15);

absl::StatusOr<LocalTask> FindTask(const ClusterFile& cluster, const std::string& name) {
  std::vector<std::string> names;
  for (const LocalTask& task : cluster.tasks) {
    if (task.Name() == name || (task.role == Role::kCoordinator && name == "coordinator/0"))
      return task;
    names.push_back(task.Name());
  }
  return UserError(absl::NotFoundError(absl::StrCat("no task `", name, "`: the cluster has ",
                                                    absl::StrJoin(names, ", "),
                                                    config::Suggestion(name, names))));
}

// One call of the verb. Each step returns the exit code with which psctl ends, or nullopt if the
// next step follows.
class TaskRestart {
 public:
  TaskRestart(Context& context, const std::string& folder, const ClusterFile& cluster,
              const LocalTask& task)
      : context_(context),
        folder_(folder),
        cluster_(cluster),
        task_(task),
        pause_(Pause(context)),
        pid_file_(PidFileOf(folder, task.FileName())),
        before_(ReadPidFile(pid_file_)) {}

  std::optional<int> End(int signal) {
    if (!before_ || !IsAlive(*before_)) return std::nullopt;
    ::kill(before_->pid, signal);
    ::kill(before_->pid, SIGCONT);
    // kPatience is longer than the longest time that a server takes to hand over its shards.
    MonoTime until = context_.clock->Now() + kPatience;
    while (IsAlive(*before_)) {
      if (context_.clock->Now() > until)
        ::kill(before_->pid, SIGKILL), until += std::chrono::seconds(10);
      if (!pause_(kPollInterval)) return kInterrupted;
    }
    return std::nullopt;
  }

  std::optional<int> WaitForSupervisor() {
    const MonoTime until = context_.clock->Now() + kPatience;
    for (;;) {
      const auto now = ReadPidFile(pid_file_);
      if (now && IsAlive(*now) &&
          (!before_ || now->pid != before_->pid || now->start_ticks != before_->start_ticks))
        return std::nullopt;
      if (context_.clock->Now() > until)
        return Report(context_, absl::InternalError(
                                    absl::StrCat("the supervisor did not start ", task_.Name(),
                                                 " again: log=", LogFileOf(folder_, kSupervisor))));
      if (!pause_(kPollInterval)) return kInterrupted;
    }
  }

  std::optional<int> Start() {
    SpawnOptions spawn;
    spawn.program = ProgramOf(cluster_.bin, task_.role);
    spawn.args = ArgumentsOf(task_, folder_, cluster_.address);
    spawn.log_file = LogFileOf(folder_, task_.FileName());
    spawn.detached = true;
    const auto pid = Spawn(spawn);
    if (!pid.ok()) return Report(context_, pid.status());
    const auto identity = IdentityOf(*pid);
    const absl::Status written =
        identity.ok() ? WritePidFile(pid_file_, *identity) : identity.status();
    if (written.ok()) return std::nullopt;
    context_.err << "psctl: " << task_.Name() << " ended at once; its log:\n"
                 << Tail(spawn.log_file, 10) << "\n";
    return kFailed;
  }

  // Waits until the coordinator answers, so that the user's next call reaches it. A coordinator
  // reads its journal before it listens.
  std::optional<int> WaitForCoordinator() {
    const auto after = ReadPidFile(pid_file_);
    Connection connection;
    connection.folder = folder_;
    connection.timeout = std::chrono::milliseconds(1000);
    connection.wait = {};  // this loop repeats the call
    const MonoTime until = context_.clock->Now() + kPatience;
    for (;;) {
      auto client = ControlClient::Connect(context_, connection);
      if (client.ok() &&
          (*client)->Call<v1::GetClusterInfoResponse>(v1::GetClusterInfoRequest()).ok())
        return std::nullopt;
      if (context_.clock->Now() > until || (!cluster_.supervised && !(after && IsAlive(*after)))) {
        const std::string log = LogFileOf(folder_, task_.FileName());
        return Report(context_,
                      absl::InternalError(absl::StrCat("the coordinator does not answer: log=", log,
                                                       "\n", Tail(log, 2))));
      }
      if (!pause_(kPollInterval)) return kInterrupted;
    }
  }

  int SayRestarted() {
    const auto text = [](const std::optional<ProcessId>& process) {
      return process ? absl::StrCat(process->pid) : "none";
    };
    context_.out << task_.Name() << ": pid " << text(before_) << " -> "
                 << text(ReadPidFile(pid_file_)) << "\n";
    return kSucceeded;
  }

 private:
  Context& context_;
  const std::string& folder_;
  const ClusterFile& cluster_;
  const LocalTask& task_;
  const std::function<bool(std::chrono::milliseconds)> pause_;
  const std::string pid_file_;
  const std::optional<ProcessId> before_;
};

}  // namespace

int ClusterRestart(Context& context, const std::vector<std::string>& args) {
  std::string cluster_folder = ClusterOptions().folder, task_name;
  bool kill_it = false;
  OptionTable table("psctl cluster restart",
                    "ends one task of a cluster folder and starts it again",
                    OptionTable::Kind::kCommand);
  table.AddArgument("ROLE/INDEX", &task_name, "worker/0, ps_server/1, coordinator");
  table.Add("folder", &cluster_folder, "cluster folder");
  table.Add("kill", &kill_it,
            "end the task with SIGKILL, which acts like a failure of its machine");
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  const std::string folder = AbsolutePath(context, cluster_folder);
  const auto cluster = ReadClusterFile(folder);
  if (absl::IsNotFound(cluster.status()) || PidFiles(folder).empty())
    return Report(context, NoCluster(context, folder));
  if (!cluster.ok()) return Report(context, cluster.status());
  const auto task = FindTask(*cluster, task_name);
  if (!task.ok()) return Report(context, task.status());
  context.handles_signals->store(true);
  TaskRestart restart(context, folder, *cluster, *task);
  if (const auto code = restart.End(kill_it ? SIGKILL : SIGTERM)) return *code;
  if (const auto code = cluster->supervised ? restart.WaitForSupervisor() : restart.Start())
    return *code;
  if (task->role == Role::kCoordinator)
    if (const auto code = restart.WaitForCoordinator()) return *code;
  return restart.SayRestarted();
}

}  // namespace evergrad::psctl
