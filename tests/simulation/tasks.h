// The living processes of servers and workers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/simulated_server.h"
#include "tests/simulation/simulated_worker.h"

namespace evergrad::simulation {

class Tasks {
 public:
  // Starts kServers servers and kWorkers workers. All three references outlive the tasks.
  Tasks(WalkContext& walk, SnapshotFolder& folder, InvariantChecker& checker);

  const std::vector<std::unique_ptr<SimulatedServer>>& servers() const { return servers_; }
  const std::vector<std::unique_ptr<SimulatedWorker>>& workers() const { return workers_; }
  template <class F>
  void Each(F f) {
    for (auto& s : servers_) f(*s);
    for (auto& w : workers_) f(*w);
  }
  // The processes by their number, and the connected server of an identity; nullptr if there is
  // none.
  SimulatedServer* ServerOf(int process) const;
  SimulatedWorker* WorkerOf(int process) const;
  SimulatedServer* ConnectedServer(const std::string& identity, bool registered) const;
  bool IsConnectedWorker(TaskId registration) const;
  bool HasServer(const std::string& identity) const;

  // Draw one of the processes.
  SimulatedServer& AnyServer() { return *servers_[walk_.random.Below(servers_.size())]; }
  SimulatedWorker& AnyWorker() { return *workers_[walk_.random.Below(workers_.size())]; }
  // Calls f with a server or a worker.
  template <class F>
  void WithAny(F f) {
    const std::size_t i = walk_.random.Below(servers_.size() + workers_.size());
    if (i < servers_.size()) {
      f(*servers_[i]);
    } else {
      f(*workers_[i - servers_.size()]);
    }
  }

  // A server of this identity, or of a new one.
  void StartServer(std::string identity);
  void StartServer();
  void StartWorker();
  // The process has ended; its session ended before.
  void Remove(const SimulatedServer& server);
  void Remove(const SimulatedWorker& worker);
  // Most processes are lost with their cluster, and others start in their place.
  void LoseMost();

  // Begins a session, unless another process of the server's identity has one [P7].
  void TryConnect(SimulatedServer& server);
  void TryConnect(SimulatedWorker& worker);
  // Delivers a message of the coordinator, if this registration is still connected.
  void Deliver(TaskId registration, Down m);

 private:
  WalkContext& walk_;
  SnapshotFolder& folder_;
  InvariantChecker& checker_;
  std::vector<std::unique_ptr<SimulatedServer>> servers_;
  std::vector<std::unique_ptr<SimulatedWorker>> workers_;
  int processes_ = 0, identities_ = 0;
  std::uint64_t registrations_ = 0;
};

}  // namespace evergrad::simulation
