// The daemons of a cluster on this machine as child processes: started, watched, restarted,
// stopped. One folder holds NAME.log, NAME.pid and NAME.address for each task ("worker-0").
// Everything runs on the main thread of the process.
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
  std::string bin;  // folder of the daemons
  // The folder for logs, pid files and address files. The coordinator's journal is in its subfolder
  // state/. The folder is created if absent.
  std::string folder;
  std::string runs;  // the coordinator's --runs
  std::uint32_t workers = 2, servers = 2;
  std::uint32_t worker_threads = 0;    // 0 means cores / workers, at least 1
  std::string device;                  // the workers' --device; with "" each worker chooses
  bool gpus = false;                   // worker i computes on gpu:i
  std::uint32_t jobs_running_max = 1;  // --jobs-running-max of the coordinator
  // Absolute paths of the folders that jobs may name. If a list is empty, the daemons use their
  // default on loopback, which allows any folder.
  std::vector<std::string> data_roots, checkpoint_roots;
  // With "", the daemons allow no failpoints and no counting jobs. "none" allows counting jobs.
  std::string failpoints;
  bool supervise = false;  // if true, processes that die are restarted
  bool detached = false;   // if true, the daemons outlive this process (for `cluster up`)
  // The logs move to another folder at the end, so messages do not name them.
  bool logs_move = false;
};

struct LocalTask {
  Role role = Role::kWorker;
  std::string identity;
  std::vector<std::string> args;  // without --listen and --coordinator
  ProcessId process;
  bool running = false;
  int starts = 0;
  MonoTime started{0};
  std::optional<MonoTime> start_again;
  std::string Name() const;      // "worker/0"
  std::string FileName() const;  // "worker-0"
};

// Returns the tasks that `options` request, the coordinator first. Pure.
std::vector<LocalTask> PlanTasks(const LocalOptions& options, unsigned cores);
// Returns the number of GPUs of this host, as its worker program reports it. Returns Cancelled if
// interrupted (`pause` as in LocalCluster), and a user's error with the reason if there is no GPU.
absl::StatusOr<std::uint32_t> CountGpus(
    const LocalOptions& options, const Clock& clock,
    const std::function<bool(std::chrono::milliseconds)>& pause);
// Returns the delay before the n-th start of a task; n = 2 is the first restart. Pure.
std::chrono::milliseconds RestartDelay(int starts, MonoTime lived);

class LocalCluster {
 public:
  // `pause` waits a little and returns false to stop waiting. The clock outlives the cluster.
  LocalCluster(LocalOptions options, const Clock* clock,
               std::function<bool(std::chrono::milliseconds)> pause);
  ~LocalCluster();  // calls Stop(), unless detached

  // Starts the coordinator, waits until it listens, and then starts the servers and workers.
  // Returns Cancelled if interrupted.
  absl::Status Start();
  // Reaps ended children, restarts children that are due for a restart, and returns the events as
  // texts for people.
  std::vector<std::string> Tick();
  // Returns the reason why no job can continue, or nullopt if jobs can continue. The reason is that
  // the coordinator, a server or every worker has ended and is not restarted.
  struct Broken {
    bool coordinator = false;
    std::string text;
  };
  std::optional<Broken> broken() const;
  // Sends SIGTERM and, after `grace`, SIGKILL. No process is left afterwards. Idempotent.
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

// Returns argv of a task as `cluster up` runs it. `cluster restart` uses the same arguments.
std::vector<std::string> ArgumentsOf(const LocalTask& task, const std::string& folder,
                                     const std::string& coordinator_address);
std::string ProgramOf(const std::string& bin, Role role);
// Returns the last lines of a file, for a message.
std::string Tail(const std::string& path, int lines);

}  // namespace evergrad::psctl
