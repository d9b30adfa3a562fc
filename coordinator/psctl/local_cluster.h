// The daemons of a cluster on this machine, as child processes: started, watched, started again,
// stopped. One folder holds for each task NAME.log, NAME.pid and NAME.address ("worker-0"). One
// thread, the process's main one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/psctl/process.h"

namespace evergrad::psctl {

struct LocalOptions {
  std::string bin;  // where the daemons lie
  std::string
      folder;  // logs, pid and address files, the coordinator's journal in state/; made when absent
  std::string runs;  // the coordinator's --runs
  std::uint32_t workers = 2, servers = 2;
  std::uint32_t worker_threads = 0;    // 0: cores / workers, at least 1
  std::string device;                  // the workers' --device; "": theirs to choose
  bool gpus = false;                   // worker i computes on gpu:i
  std::uint32_t jobs_running_max = 1;  // of the coordinator
  std::vector<std::string> data_roots,
      checkpoint_roots;    // absolute; none: as the daemons have it on loopback, any folder
  std::string failpoints;  // "": none are allowed; "none" allows counting jobs
  bool supervise = false;  // start again what dies
  bool detached = false;   // `cluster up`: they outlive us
  bool logs_move =
      false;  // the logs will lie elsewhere when it is over: what happened does not name them
};

struct LocalTask {
  Role role = Role::kWorker;
  std::string identity;
  std::vector<std::string> args;  // but for --listen and --coordinator
  ProcessId process;
  bool running = false;
  int starts = 0;
  MonoTime started{0};
  std::optional<MonoTime> start_again;
  std::string Name() const;      // "worker/0"
  std::string FileName() const;  // "worker-0"
};

// The tasks that `options` ask for, coordinator first. Pure.
std::vector<LocalTask> PlanTasks(const LocalOptions& options, unsigned cores);
// How many GPUs this host has, as its worker says. Cancelled: interrupted (`pause` as
// LocalCluster's). UserError: none, and why.
absl::StatusOr<std::uint32_t> CountGpus(
    const LocalOptions& options, const Clock& clock,
    const std::function<bool(std::chrono::milliseconds)>& pause);
// How long to wait before the n-th start of a task (2 is the first restart). Pure.
std::chrono::milliseconds RestartDelay(int starts, MonoTime lived);

class LocalCluster {
 public:
  // `pause` waits a little; false: interrupted, stop waiting. clock outlives the cluster.
  LocalCluster(LocalOptions options, const Clock* clock,
               std::function<bool(std::chrono::milliseconds)> pause);
  ~LocalCluster();  // Stop(), unless detached

  // Starts the coordinator, waits until it listens, then the others. Cancelled: interrupted.
  absl::Status Start();
  // Reaps, starts again what is due, and returns what happened, for people.
  std::vector<std::string> Tick();
  // Why no job can go on (the coordinator is gone, a server, or every worker, and nothing starts
  // them again), or nullopt.
  struct Broken {
    bool coordinator = false;
    std::string text;
  };
  std::optional<Broken> broken() const;
  // SIGTERM, then after `grace` SIGKILL; afterwards none is left. Idempotent.
  void Stop(std::chrono::milliseconds grace = std::chrono::seconds(10));

  const std::string& coordinator_address() const { return address_; }
  const std::vector<LocalTask>& tasks() const { return tasks_; }
  std::string LogOf(const LocalTask& task) const;

 private:
  absl::Status Launch(LocalTask* task);
  std::string LogHint(const std::string& path) const;  // "; log: …"
  absl::Status WaitForCoordinator();

  const LocalOptions options_;
  const Clock* const clock_;
  const std::function<bool(std::chrono::milliseconds)> pause_;
  std::vector<LocalTask> tasks_;
  std::string address_;
  bool stopped_ = false;
};

// argv of a task as `cluster up` runs it; shared with `cluster restart`.
std::vector<std::string> ArgumentsOf(const LocalTask& task, const std::string& folder,
                                     const std::string& coordinator_address);
std::string ProgramOf(const std::string& bin, Role role);
// The last lines of a file, for a message.
std::string Tail(const std::string& path, int lines);

}  // namespace evergrad::psctl
