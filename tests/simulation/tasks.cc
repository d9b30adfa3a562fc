#include "tests/simulation/tasks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace evergrad::simulation {
namespace {

template <class T>
T* ByProcess(const std::vector<std::unique_ptr<T>>& tasks, int process) {
  const auto found = std::find_if(tasks.begin(), tasks.end(),
                                  [&](const auto& t) { return t->process == process; });
  return found == tasks.end() ? nullptr : found->get();
}

}  // namespace

Tasks::Tasks(WalkContext& walk, SnapshotFolder& folder, InvariantChecker& checker)
    : walk_(walk), folder_(folder), checker_(checker) {
  for (std::uint32_t k = 0; k < kServers; ++k) StartServer();
  for (std::uint32_t k = 0; k < kWorkers; ++k) StartWorker();
}

SimulatedServer* Tasks::ServerOf(int process) const { return ByProcess(servers_, process); }

SimulatedWorker* Tasks::WorkerOf(int process) const { return ByProcess(workers_, process); }

SimulatedServer* Tasks::ConnectedServer(const std::string& identity, bool registered) const {
  for (const auto& s : servers_) {
    if (s->connected && s->identity() == identity && (s->registered || !registered)) return s.get();
  }
  return nullptr;
}

bool Tasks::IsConnectedWorker(TaskId registration) const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [&](const auto& w) { return w->connected && w->task == registration; });
}

bool Tasks::HasServer(const std::string& identity) const {
  return std::any_of(servers_.begin(), servers_.end(),
                     [&](const auto& s) { return s->identity() == identity; });
}

void Tasks::StartServer(std::string identity) {
  servers_.push_back(std::make_unique<SimulatedServer>(walk_, folder_, checker_, ++processes_,
                                                       std::move(identity)));
}

void Tasks::StartServer() { StartServer(absl::StrCat(identities_++)); }

void Tasks::StartWorker() {
  workers_.push_back(std::make_unique<SimulatedWorker>(walk_, ++processes_));
}

void Tasks::Remove(const SimulatedServer& server) {
  std::erase_if(servers_, [&](const auto& s) { return s.get() == &server; });
}

void Tasks::Remove(const SimulatedWorker& worker) {
  std::erase_if(workers_, [&](const auto& w) { return w.get() == &worker; });
}

void Tasks::LoseMost() {
  std::erase_if(servers_, [&](const auto&) { return walk_.random.Chance(0.7); });
  while (servers_.size() < kServers) StartServer();
  std::erase_if(workers_, [&](const auto&) { return walk_.random.Chance(0.7); });
  while (workers_.size() < kWorkers) StartWorker();
}

void Tasks::TryConnect(SimulatedServer& server) {
  if (ConnectedServer(server.identity(), false) == nullptr)
    server.BeginSession(TaskId(++registrations_));
}

void Tasks::TryConnect(SimulatedWorker& worker) { worker.BeginSession(TaskId(++registrations_)); }

void Tasks::Deliver(TaskId registration, Down m) {
  Each([&](Task& t) {
    if (t.connected && t.task == registration) t.in.Push(std::move(m));
  });
}

}  // namespace evergrad::simulation
