#include "coordinator/psctl/local_cluster.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/daemon/daemon.h"
#include "common/fs/file.h"

namespace evergrad::psctl {
namespace {
constexpr auto kPoll = std::chrono::milliseconds(10);
constexpr auto kListenWithin = std::chrono::seconds(30);
}  // namespace

std::string LocalTask::Name() const {
  return absl::StrCat(RoleName(role), role == Role::kCoordinator ? "" : "/",
                      role == Role::kCoordinator ? "" : identity);
}
std::string LocalTask::FileName() const {
  return absl::StrCat(RoleName(role), role == Role::kCoordinator ? "" : "-",
                      role == Role::kCoordinator ? "" : identity);
}

std::vector<LocalTask> PlanTasks(const LocalOptions& options, unsigned cores) {
  std::vector<LocalTask> tasks;
  auto add = [&](Role role, std::string identity, std::vector<std::string> args) {
    if (!options.failpoints.empty()) {
      args.emplace_back("--failpoints");
      args.push_back(options.failpoints);
    }
    LocalTask task;
    task.role = role;
    task.identity = std::move(identity);
    task.args = std::move(args);
    tasks.push_back(std::move(task));
  };
  std::vector<std::string> coordinator = {"--runs", options.runs, "--state-dir",
                                          absl::StrCat(options.folder, "/state")};
  if (options.jobs_running_max != 1)
    coordinator.insert(coordinator.end(),
                       {"--jobs-running-max", absl::StrCat(options.jobs_running_max)});
  std::vector<std::string> checkpoint_roots;
  for (const std::string& root : options.checkpoint_roots)
    checkpoint_roots.insert(checkpoint_roots.end(), {"--checkpoint-root", root});
  coordinator.insert(coordinator.end(), checkpoint_roots.begin(), checkpoint_roots.end());
  add(Role::kCoordinator, "0", std::move(coordinator));
  // Checkpoints of jobs that name no folder are stored in the runs folder.
  if (!checkpoint_roots.empty())
    checkpoint_roots.insert(checkpoint_roots.end(), {"--checkpoint-root", options.runs});
  for (std::uint32_t i = 0; i < options.servers; ++i) {
    std::vector<std::string> args = {"--index", absl::StrCat(i)};
    args.insert(args.end(), checkpoint_roots.begin(), checkpoint_roots.end());
    add(Role::kPsServer, absl::StrCat(i), std::move(args));
  }
  const std::uint32_t threads = options.worker_threads != 0
                                    ? options.worker_threads
                                    : std::max(1u, cores / std::max(1u, options.workers));
  for (std::uint32_t i = 0; i < options.workers; ++i) {
    std::vector<std::string> args = {"--name", absl::StrCat(i), "--threads", absl::StrCat(threads)};
    const std::string device = options.gpus ? absl::StrCat("gpu:", i) : options.device;
    if (!device.empty()) args.insert(args.end(), {"--device", device});
    for (const std::string& root : options.data_roots)
      args.insert(args.end(), {"--data-root", root});
    add(Role::kWorker, absl::StrCat(i), std::move(args));
  }
  return tasks;
}

absl::StatusOr<std::uint32_t> CountGpus(
    const LocalOptions& options, const Clock& clock,
    const std::function<bool(std::chrono::milliseconds)>& pause) {
  EG_RETURN_IF_ERROR(fs::MakeDirectories(options.folder));
  SpawnOptions spawn;
  spawn.program = ProgramOf(options.bin, Role::kWorker);
  spawn.args = {"--list-devices"};
  spawn.log_file = absl::StrCat(options.folder, "/devices.txt");
  ::unlink(spawn.log_file.c_str());
  EG_ASSIGN_OR_RETURN(const pid_t pid, Spawn(spawn));
  const MonoTime until = clock.Now() + kListenWithin;
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) != pid) {
    const bool late = clock.Now() > until;
    if (!late && pause(kPoll)) continue;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, &status, 0);
    return late ? absl::DeadlineExceededError("the GPUs of this host do not answer")
                : absl::CancelledError("interrupted");
  }
  EG_ASSIGN_OR_RETURN(const std::string text, fs::ReadFile(spawn.log_file, 1u << 20));
  std::uint32_t count = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n'))
    count += absl::StartsWith(line, "gpu:") ? 1 : 0;
  if (status != 0 || count == 0) {
    const absl::string_view said = absl::StripAsciiWhitespace(text);
    return UserError(absl::FailedPreconditionError(
        absl::StrCat("--gpus: no GPU can be used on this host: ",
                     said.empty() ? DescribeExit(status) : std::string(said))));
  }
  return count;
}

// Returns the message in the last log line of a process that ended by itself.
std::string LastWords(const std::string& path) {
  std::string line = Tail(path, 1);
  // The line has the form "TIME LEVEL COMPONENT job=… closure=… MESSAGE".
  if (const auto closure = line.find(" closure="); closure != std::string::npos) {
    const auto message = line.find(' ', closure + 1);
    line = message == std::string::npos ? "" : line.substr(message + 1);
  }
  return line.empty() ? "" : absl::StrCat(": ", line);
}

std::chrono::milliseconds RestartDelay(int starts, MonoTime lived) {
  // A task that ran for more than 10 s did not fail at its start, so it is restarted after 100 ms.
  // For other tasks each delay is twice the previous delay, up to 5 s.
  if (lived > std::chrono::seconds(10) || starts <= 1) return std::chrono::milliseconds(100);
  return std::min(std::chrono::milliseconds(5000),
                  std::chrono::milliseconds(100) * (1 << std::min(starts - 1, 6)));
}

std::string ProgramOf(const std::string& bin, Role role) {
  return absl::StrCat(bin, "/", daemon::ProgramOf(role).name);
}

std::vector<std::string> ArgumentsOf(const LocalTask& task, const std::string& folder,
                                     const std::string& coordinator_address) {
  std::vector<std::string> args = {"--address-file",
                                   absl::StrCat(folder, "/", task.FileName(), ".address")};
  if (task.role != Role::kCoordinator) {
    args.insert(args.end(), {"--coordinator", coordinator_address});
  } else if (!coordinator_address.empty()) {
    // A restarted coordinator keeps its address, because tasks redial the address that they know.
    args.insert(args.end(), {"--listen", coordinator_address});
  } else {
    // A new cluster has no earlier tasks, so there are no registrations to collect before the first
    // term.
    args.insert(args.end(), {"--window", "0"});
  }
  args.insert(args.end(), task.args.begin(), task.args.end());
  return args;
}

std::string Tail(const std::string& path, int lines) {
  const auto text = fs::ReadFile(path, 64u << 20);
  if (!text.ok()) return "";
  std::vector<std::string> all = absl::StrSplit(*text, '\n');
  while (!all.empty() && all.back().empty()) all.pop_back();
  if (all.size() > static_cast<std::size_t>(lines)) all.erase(all.begin(), all.end() - lines);
  return absl::StrJoin(all, "\n", [](std::string* out, const std::string& line) {
    absl::StrAppend(out, Escaped(line));
  });
}

LocalCluster::LocalCluster(LocalOptions options, const Clock* clock,
                           std::function<bool(std::chrono::milliseconds)> pause)
    : options_(std::move(options)),
      clock_(clock),
      pause_(std::move(pause)),
      tasks_(PlanTasks(options_,
                       static_cast<unsigned>(std::max(1l, ::sysconf(_SC_NPROCESSORS_ONLN))))) {}

LocalCluster::~LocalCluster() {
  if (!options_.detached) Stop();
}

std::string LocalCluster::LogOf(const LocalTask& task) const {
  return absl::StrCat(options_.folder, "/", task.FileName(), ".log");
}

std::string LocalCluster::LogHint(const std::string& path) const {
  return options_.logs_move ? "" : absl::StrCat("; log: ", path);
}

absl::Status LocalCluster::Launch(LocalTask* task) {
  SpawnOptions spawn;
  spawn.program = ProgramOf(options_.bin, task->role);
  spawn.args = ArgumentsOf(*task, options_.folder, address_);
  spawn.log_file = LogOf(*task);
  spawn.detached = options_.detached;
  EG_ASSIGN_OR_RETURN(const pid_t pid, Spawn(spawn));
  task->process = {pid, 0};
  task->running = true;
  task->started = clock_->Now();
  task->start_again.reset();
  ++task->starts;
  // If the process has ended already, Tick or the wait for its address reports the end.
  if (const auto identity = IdentityOf(pid); identity.ok()) task->process = *identity;
  return WritePidFile(absl::StrCat(options_.folder, "/", task->FileName(), ".pid"), task->process);
}

absl::Status LocalCluster::WaitForCoordinator() {
  LocalTask& task = tasks_.front();
  const std::string file = absl::StrCat(options_.folder, "/", task.FileName(), ".address");
  const MonoTime until = clock_->Now() + kListenWithin;
  for (;;) {
    if (fs::Exists(file)) {
      EG_ASSIGN_OR_RETURN(const std::string text, fs::ReadFile(file, 4096));
      address_ = std::string(absl::StripAsciiWhitespace(text));
      if (!address_.empty()) return absl::OkStatus();
    }
    int status = 0;
    if (::waitpid(task.process.pid, &status, WNOHANG) == task.process.pid) {
      task.running = false;
      return absl::InternalError(absl::StrCat("the coordinator ", DescribeExit(status),
                                              " before it listened; its log:\n",
                                              Tail(LogOf(task), 10)));
    }
    if (clock_->Now() > until)
      return absl::DeadlineExceededError(
          absl::StrCat("the coordinator does not listen yet: log=", LogOf(task)));
    if (!pause_(kPoll)) return absl::CancelledError("interrupted");
  }
}

absl::Status LocalCluster::Start() {
  EG_RETURN_IF_ERROR(fs::MakeDirectories(options_.folder));
  for (const LocalTask& task : tasks_)
    ::unlink(absl::StrCat(options_.folder, "/", task.FileName(), ".address").c_str());
  EG_RETURN_IF_ERROR(Launch(&tasks_.front()));
  EG_RETURN_IF_ERROR(WaitForCoordinator());
  for (std::size_t i = 1; i < tasks_.size(); ++i) EG_RETURN_IF_ERROR(Launch(&tasks_[i]));
  return absl::OkStatus();
}

std::vector<std::string> LocalCluster::Tick() {
  std::vector<std::string> news;
  if (stopped_) return news;
  const MonoTime now = clock_->Now();
  for (LocalTask& task : tasks_) {
    int status = 0;
    if (task.running && ::waitpid(task.process.pid, &status, WNOHANG) == task.process.pid) {
      task.running = false;
      std::string text =
          absl::StrCat(task.Name(), " (pid ", task.process.pid, ") ", DescribeExit(status));
      if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        absl::StrAppend(&text, LastWords(LogOf(task)));
      if (options_.supervise) {
        const auto delay = RestartDelay(task.starts, now - task.started);
        task.start_again = now + delay;
        absl::StrAppend(&text, "; restarting it in ", delay.count(), " ms");
      } else {
        absl::StrAppend(&text, LogHint(LogOf(task)));
      }
      news.push_back(std::move(text));
    }
    if (!task.running && task.start_again && now >= *task.start_again) {
      const absl::Status started = Launch(&task);
      if (started.ok()) {
        news.push_back(absl::StrCat(task.Name(), " restarted: pid ", task.process.pid));
      } else {
        task.start_again = now + std::chrono::seconds(5);
        news.push_back(absl::StrCat(task.Name(), " could not be restarted: ", started.message()));
      }
    }
  }
  return news;
}

std::optional<LocalCluster::Broken> LocalCluster::broken() const {
  if (options_.supervise || stopped_) return std::nullopt;
  bool any_worker = false;
  for (const LocalTask& task : tasks_) {
    any_worker = any_worker || (task.role == Role::kWorker && task.running);
    if (task.running || task.starts == 0) continue;
    if (task.role == Role::kCoordinator)
      return Broken{
          true, absl::StrCat("the coordinator at ", address_, " has ended", LogHint(LogOf(task)))};
    if (task.role == Role::kPsServer)
      return Broken{false, absl::StrCat(task.Name(),
                                        " has ended and is not restarted (--supervise restarts it)",
                                        LogHint(LogOf(task)))};
  }
  if (!any_worker && options_.workers > 0)
    return Broken{
        false,
        absl::StrCat("every worker has ended and is not restarted (--supervise restarts them)",
                     LogHint(options_.folder))};
  return std::nullopt;
}

void LocalCluster::Stop(std::chrono::milliseconds grace) {
  if (stopped_) return;
  stopped_ = true;
  auto reap = [&] {
    bool any = false;
    for (LocalTask& task : tasks_) {
      int status = 0;
      if (task.running && ::waitpid(task.process.pid, &status, WNOHANG) != 0) task.running = false;
      any = any || task.running;
    }
    return any;
  };
  auto signal_all = [&](int signal) {
    for (const LocalTask& task : tasks_)
      if (task.running) ::kill(task.process.pid, signal);
  };
  reap();
  signal_all(SIGTERM);
  signal_all(SIGCONT);  // a stopped process must receive the signal
  const MonoTime until = clock_->Now() + grace;
  // A second Ctrl-C (pause returns false) requests an immediate stop.
  while (reap() && clock_->Now() < until && pause_(kPoll)) {
  }
  signal_all(SIGKILL);
  for (LocalTask& task : tasks_) {
    int status = 0;
    if (task.running) ::waitpid(task.process.pid, &status, 0);
    task.running = false;
    ::unlink(absl::StrCat(options_.folder, "/", task.FileName(), ".pid").c_str());
  }
}

}  // namespace evergrad::psctl
