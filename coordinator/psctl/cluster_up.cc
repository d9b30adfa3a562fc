// psctl cluster up: starts a cluster in the background and waits until every task has registered.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/daemon/option_table.h"
#include "common/fs/file.h"
#include "coordinator/psctl/cluster_folder.h"
#include "coordinator/psctl/control_client.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

using daemon::OptionTable;

// Returns argv of the supervisor, which is psctl itself with the foreground verb.
std::vector<std::string> SupervisorArguments(const LocalOptions& local) {
  std::vector<std::string> args = {"cluster",
                                   "run",
                                   "--folder",
                                   local.folder,
                                   "--runs",
                                   local.runs,
                                   "--supervise",
                                   "--servers",
                                   absl::StrCat(local.servers),
                                   "--jobs-running-max",
                                   absl::StrCat(local.jobs_running_max),
                                   "--threads",
                                   absl::StrCat(local.worker_threads)};
  const auto add = [&args](std::string flag, std::string value) {
    args.push_back(std::move(flag));
    args.push_back(std::move(value));
  };
  if (local.gpus)
    args.emplace_back("--gpus");
  else
    add("--workers", absl::StrCat(local.workers));
  if (!local.device.empty()) add("--device", local.device);
  if (!local.failpoints.empty()) add("--failpoints", local.failpoints);
  for (const std::string& root : local.data_roots) add("--data-root", root);
  for (const std::string& root : local.checkpoint_roots) add("--checkpoint-root", root);
  return args;
}

// One call of `psctl cluster up`. Each step returns the exit code with which psctl ends, or nullopt
// if the next step follows. A signal during the start stops the processes that have been started.
class ClusterStart {
 public:
  ClusterStart(Context& context, const ClusterOptions& options,
               std::function<bool(std::chrono::milliseconds)> pause)
      : context_(context), options_(options), pause_(std::move(pause)) {}

  // Starts a supervisor in a separate session. The daemons are its children.
  std::optional<int> StartSupervised() {
    SpawnOptions spawn;
    spawn.program = context_.program;
    spawn.args = SupervisorArguments(options_.local);
    spawn.log_file = LogFileOf(folder(), kSupervisor);
    spawn.folder = context_.folder;
    spawn.detached = true;
    const auto pid = Spawn(spawn);
    if (!pid.ok()) return Report(context_, pid.status());
    if (const auto identity = IdentityOf(*pid); identity.ok()) {
      supervisor_ = *identity;
      const absl::Status written = WritePidFile(PidFileOf(folder(), kSupervisor), *identity);
      if (!written.ok()) return Report(context_, written);
    }
    return WaitForAddress(spawn.log_file);
  }

  // Starts the daemons as processes that outlive psctl.
  std::optional<int> StartDetached() {
    LocalOptions local = options_.local;
    local.detached = true;
    cluster_ = std::make_unique<LocalCluster>(local, context_.clock, pause_);
    absl::Status started = cluster_->Start();
    if (started.ok())
      started = WriteClusterFile(
          folder(), {local.bin, cluster_->coordinator_address(), false, cluster_->tasks()});
    if (started.ok()) return std::nullopt;
    cluster_->Stop();
    return absl::IsCancelled(started) ? kInterrupted : Report(context_, started);
  }

  // Waits until the requested numbers of workers and servers are alive, and prints a message.
  int WaitForTasks() {
    Connection connection;
    connection.folder = folder();
    connection.wait = {};  // the loop below repeats the call
    auto client = ControlClient::Connect(context_, connection);
    if (!client.ok()) return Report(context_, client.status());
    const std::size_t wanted = options_.local.workers + options_.local.servers;
    const MonoTime until = context_.clock->Now() + options_.wait;
    for (;;) {
      const auto tasks = (*client)->Call<v1::ListTasksResponse>(v1::ListTasksRequest());
      const std::size_t alive = tasks.ok() ? AliveIn(*tasks) : 0;
      if (alive >= wanted) return SayUp((*client)->address());
      if (const auto code = Tick()) return *code;
      if (context_.clock->Now() > until) {
        context_.err << "psctl: not every task has registered: want=" << wanted << " got=" << alive
                     << (tasks.ok() ? ""
                                    : absl::StrCat(" (", Printable(tasks.status().message()), ")"))
                     << "; the start continues in the background (psctl cluster status)\n";
        return kFailed;
      }
      if (!pause_(kPollInterval)) return Interrupted();
    }
  }

 private:
  const std::string& folder() const { return options_.local.folder; }

  static std::size_t AliveIn(const v1::ListTasksResponse& tasks) {
    return static_cast<std::size_t>(
        std::count_if(tasks.tasks().begin(), tasks.tasks().end(), [](const v1::TaskRow& task) {
          return task.role() != v1::ROLE_COORDINATOR && task.state() == "alive";
        }));
  }

  int Interrupted() {
    if (cluster_ != nullptr) cluster_->Stop();
    if (supervisor_ && IsAlive(*supervisor_)) ::kill(supervisor_->pid, SIGTERM);
    return kInterrupted;
  }

  // Waits until the coordinator, which the supervisor starts, has written its address.
  std::optional<int> WaitForAddress(const std::string& supervisor_log) {
    const MonoTime until = context_.clock->Now() + options_.wait;
    while (!fs::Exists(absl::StrCat(folder(), "/coordinator.address"))) {
      if (!supervisor_ || !IsAlive(*supervisor_)) {
        context_.err << "psctl: the supervisor ended; its log:\n"
                     << Tail(supervisor_log, 10) << "\n";
        return kFailed;
      }
      if (context_.clock->Now() > until)
        return Report(context_, absl::DeadlineExceededError(absl::StrCat(
                                    "the coordinator does not listen yet: logs=", folder())));
      if (!pause_(kPollInterval)) return Interrupted();
    }
    return std::nullopt;
  }

  // Watches the daemons during the wait, unless a supervisor does.
  std::optional<int> Tick() {
    if (cluster_ == nullptr) return std::nullopt;
    for (const std::string& line : cluster_->Tick()) context_.err << "psctl: " << line << "\n";
    const auto broken = cluster_->broken();
    if (!broken) return std::nullopt;
    context_.err << "psctl: " << broken->text << "\n";
    cluster_->Stop();
    return kFailed;
  }

  int SayUp(const std::string& address) {
    const std::uint32_t servers = options_.local.servers, workers = options_.local.workers;
    if (options_.output == "json")
      context_.out << Dump({{"coordinator", address},
                            {"folder", folder()},
                            {"workers", workers},
                            {"servers", servers}})
                   << "\n";
    else
      context_.out << "cluster up: coordinator " << address << ", " << servers
                   << (servers == 1 ? " server, " : " servers, ") << workers
                   << (workers == 1 ? " worker" : " workers") << "; folder "
                   << ShowPath(context_, folder()) << " (psctl cluster down ends it)\n";
    return kSucceeded;
  }

  Context& context_;
  const ClusterOptions& options_;
  const std::function<bool(std::chrono::milliseconds)> pause_;
  std::unique_ptr<LocalCluster> cluster_;  // set without --supervise
  std::optional<ProcessId> supervisor_;    // set with --supervise
};

}  // namespace

int ClusterUp(Context& context, const std::vector<std::string>& args) {
  ClusterOptions options;
  OptionTable table("psctl cluster up", "starts a cluster in the background on this machine",
                    OptionTable::Kind::kCommand);
  AddLocalOptions(&table, &options);
  table.Add("wait", &options.wait, "how long to wait until all tasks have registered");
  AddOutputOption(&table, &options.output);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  CompleteLocalOptions(context, &options);
  const std::string& folder = options.local.folder;
  if (AnyAlive(PidFiles(folder)))
    return Report(context, UserError(absl::AlreadyExistsError(
                               absl::StrCat("a cluster runs already in ", ShowPath(context, folder),
                                            " (psctl cluster status; psctl cluster down)"))));
  context.handles_signals->store(true);
  const auto pause = Pause(context);
  if (const absl::Status made = fs::MakeDirectories(folder); !made.ok())
    return Report(context, made);
  if (const absl::Status gpus = ApplyGpus(context, table, pause, &options.local); !gpus.ok())
    return absl::IsCancelled(gpus) ? kInterrupted : Report(context, gpus);
  RemovePidFiles(folder);
  std::error_code ignored;
  std::filesystem::remove(absl::StrCat(folder, "/coordinator.address"), ignored);
  ClusterStart start(context, options, pause);
  if (const auto code = options.local.supervise ? start.StartSupervised() : start.StartDetached())
    return *code;
  return start.WaitForTasks();
}

}  // namespace evergrad::psctl
