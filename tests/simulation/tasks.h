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
  // Starts kServers servers and kWorkers workers. All three referenced objects must outlive the
  // tasks.
  Tasks(WalkContext& walk, SnapshotFolder& folder, InvariantChecker& checker);

  const std::vector<std::unique_ptr<SimulatedServer>>& servers() const { return servers_; }
  const std::vector<std::unique_ptr<SimulatedWorker>>& workers() const { return workers_; }
  template <class F>
  void Each(F f) {
    for (auto& s : servers_) f(*s);
    for (auto& w : workers_) f(*w);
  }
  // ServerOf and WorkerOf return the process with this number. ConnectedServer returns the
  // connected server of an identity. They return nullptr if it does not exist.
  SimulatedServer* ServerOf(int process) const;
  SimulatedWorker* WorkerOf(int process) const;
  SimulatedServer* ConnectedServer(const std::string& identity, bool registered) const;
  bool IsConnectedWorker(TaskId registration) const;
  bool HasServer(const std::string& identity) const;

  // Returns a random process.
  SimulatedServer& AnyServer() { return *servers_[walk_.random.Below(servers_.size())]; }
  SimulatedWorker& AnyWorker() { return *workers_[walk_.random.Below(workers_.size())]; }
  // Calls f with a random server or a random worker.
  template <class F>
  void WithAny(F f) {
    const std::size_t i = walk_.random.Below(servers_.size() + workers_.size());
    if (i < servers_.size()) {
      f(*servers_[i]);
    } else {
      f(*workers_[i - servers_.size()]);
    }
  }

  // Starts a server with the given identity, or with a new one.
  void StartServer(std::string identity);
  void StartServer();
  void StartWorker();
  // Removes a process that has died. Its session must have ended before.
  void Remove(const SimulatedServer& server);
  void Remove(const SimulatedWorker& worker);
  // Removes most processes, which are lost with their cluster, and starts others in their place.
  void LoseMost();

  // Begins a session, unless another process with the same identity has one [P7].
  void TryConnect(SimulatedServer& server);
  void TryConnect(SimulatedWorker& worker);
  // Delivers a message from the coordinator, if this registration is still connected.
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
