// A job with scripted tasks under a manual clock. The fixture delivers all messages one after
// another, and no other thread runs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "coordinator/jobs/job.h"
#include "fake_host.h"
#include "fake_servers.h"
#include "fake_workers.h"

namespace evergrad::coordinator {

// Scripted workers and servers, which do at once what the job orders. A worker leaves a grant
// unfinished if `hold` returns true for the grant.
class FakeCluster : public FakeServers, public FakeWorkers {
 public:
  explicit FakeCluster(std::function<void(config::JobSpec&, JobOptions&)> change = {},
                       MemoryStateStore::Options store = {}, JobUid uid = JobUid(0xabcdef),
                       std::shared_ptr<fs::MemoryFileSystem> disk = nullptr,
                       const std::string& runs = "")
      : host(store) {
    if (disk) host.disk = std::move(disk);
    spec.name = "fake";
    spec.type = "counting";
    spec.counting.examples = 64;
    spec.counting.shards = 4;
    spec.optimizer.type = "counting";
    spec.data.batch_size = 4;
    spec.data.shuffle = false;
    spec.training.epochs = 2;
    spec.training.steps_per_closure = 2;
    spec.checkpoint.on = false;
    if (change) change(spec, options);
    const std::string yaml = store.persistent ? config::EmitYaml(spec) : "yaml: here\n";
    job = std::make_unique<Job>(
        &host, options,
        Job::Identity{uid, spec, yaml,
                      !runs.empty() ? runs  // a folder of the real disk, for jobs that export files
                      : spec.checkpoint.on ? "/runs/fake-" + JobUidString(uid)
                                           : "/runs/fake",
                      kGrantKey});
    // A submission is acknowledged only when it is durable.
    if (!job->Keep() || !host.memory.CommitTerm(host.term_now).ok()) std::abort();
  }

  // Returns the part of a functions job that answers calls.
  FunctionCalls& function_calls() { return **job->function_calls(); }

  // Ends the coordinator's process, which loses everything that is in memory or in flight, and
  // begins another process with the same store. The servers named in `gone` end, too. The other
  // servers, and the workers, register again with the shards and attempts that they hold.
  void Restart(const std::set<std::string>& gone = {}) {
    host.sent.clear();
    host.later.clear();
    const JobUid uid = job->uid();
    job.reset();
    auto restored = Job::Restore(&host, options, uid, *host.memory.LoadJob(uid));
    if (!restored.ok()) throw std::runtime_error(std::string(restored.status().message()));
    job = *std::move(restored);
    host.term_now = Term(host.term_now.value() + 1);
    if (!host.memory.CommitTerm(host.term_now).ok()) std::abort();
    job->Resume(host.term_now);
    auto before = std::move(servers);
    servers.clear();
    for (auto& [identity, server] : before) {
      if (gone.count(identity) != 0) continue;
      servers[identity].shards = server.shards;
      servers[identity].process = server.process;
      servers[identity].leaving = server.leaving;
      AddServer(identity, true, false);
    }
    job->CloseWindow();
    for (auto& [identity, worker] : workers) {
      v1::Hello hello;
      for (const v1::Grant& grant : worker.held)
        AddHeld(grant, worker.map.version(), &hello, identity);
      for (const v1::TaskMessage& done : worker.unanswered)
        AddHeld(done.done(), done.done().v1(), &hello, identity);
      worker.task = TaskId(next_task++);
      hello.set_process_uid(worker.process);
      for (const std::string& name : worker.functions) hello.add_functions(name);
      v1::Registered registered;
      job->AdmitWorker(worker.task, identity, MonoTime{0}, std::nullopt, false, hello, &registered);
      last_adopted.assign(registered.adopted().begin(), registered.adopted().end());
      KeepAdopted(registered, &worker);
      if (registered.has_map()) worker.map = registered.map();
      job->Ready(worker.task);
    }
    if (!job->started()) job->Start();  // the journal had lost the record of the start
    for (auto& [identity, worker] : workers) {
      for (const v1::TaskMessage& done : std::vector<v1::TaskMessage>(worker.unanswered))
        Say(worker.task, done);
      for (const v1::Grant& grant : std::vector<v1::Grant>(worker.held)) {
        if (!hold(worker, grant)) Finish(worker, grant);
      }
    }
  }

  JobOptions options;
  FakeHost host;
  std::unique_ptr<Job> job;
  std::uint64_t next_task = 1;
  // if true, the turn in which Dones are accepted does not end, so the Dones get no answer
  bool turns_held = false;
  std::vector<absl::Status> refused;

  // Adds a worker. If a worker had this identity before and `former_died` is false, the new session
  // belongs to the same process.
  FakeWorker& AddWorker(const std::string& identity, v1::Hello hello = {},
                        bool former_died = true) {
    std::optional<TaskId> former;
    if (workers.count(identity) != 0) former = workers[identity].task;
    FakeWorker worker;
    worker.task = TaskId(next_task++);
    worker.identity = identity;
    if (hello.process_uid() == 0)
      hello.set_process_uid(former && !former_died ? workers[identity].process
                                                   : 1000 + worker.task.value());
    worker.process = hello.process_uid();
    worker.functions.assign(hello.functions().begin(), hello.functions().end());
    v1::Registered registered;
    job->AdmitWorker(worker.task, identity, MonoTime{0}, former, former && former_died, hello,
                     &registered);
    last_adopted.assign(registered.adopted().begin(), registered.adopted().end());
    worker.map = registered.map();
    workers[identity] = worker;
    job->Ready(worker.task);
    return workers[identity];
  }
  FakeServer& AddServer(const std::string& identity, bool keeps = false, bool known = true) {
    std::optional<TaskId> former;
    FakeServer server;
    server.identity = identity;
    server.task = TaskId(next_task++);
    server.process = 1000 + server.task.value();
    if (const auto before = servers.find(identity); before != servers.end()) {
      if (known) former = before->second.task;
      if (keeps) {
        server.shards = before->second.shards;
        server.leaving = before->second.leaving;
        server.process = before->second.process;
      }
    }
    v1::Registered registered;
    // If the job refuses the server, the tests see this in the job's state.
    job->AdmitServer(server.task, identity, former, former && !keeps, HelloOf(server, job->uid()),
                     &registered)
        .IgnoreError();
    servers[identity] = server;
    job->Ready(server.task);
    return servers[identity];
  }
  void KillWorker(const std::string& identity) {
    const TaskId task = workers.at(identity).task;
    workers.erase(identity);
    job->OnWorkerGone(task, "its session closed", false);
  }

  absl::Status Try(TaskId task, const v1::TaskMessage& message) {
    const absl::Status status = job->OnMessage(task, message);
    if (!turns_held) job->EndTurn();
    return status;
  }
  void Say(TaskId task, const v1::TaskMessage& message) override {
    if (absl::Status status = Try(task, message); !status.ok()) refused.push_back(status);
  }

  // Delivers messages until none is in flight.
  void Deliver() {
    for (bool more = true; more;) {
      more = false;
      while (!host.later.empty()) {
        auto task = std::move(host.later.front());
        host.later.pop_front();
        task();
        more = true;
      }
      for (auto& [identity, worker] : workers) {
        while (!host.sent[worker.task].empty()) {
          const v1::CoordinatorMessage message = std::move(host.sent[worker.task].front());
          host.sent[worker.task].pop_front();
          more = true;
          AtWorker(worker, message);
        }
      }
      for (auto& [identity, server] : servers) {
        while (!host.sent[server.task].empty()) {
          const v1::CoordinatorMessage message = std::move(host.sent[server.task].front());
          host.sent[server.task].pop_front();
          more = true;
          if (!server.silent && !lose(server, message)) AtServer(server, message, host);
        }
      }
    }
  }
  // Lets time pass in ticks of 25 ms until `until` returns true. Returns false if `limit` passes
  // first.
  bool Run(const std::function<bool()>& until,
           std::chrono::milliseconds limit = std::chrono::seconds(60)) {
    const MonoTime end = host.clock.Now() + limit;
    for (;;) {
      Deliver();
      if (until()) return true;
      if (host.clock.Now() >= end) return false;
      host.clock.Advance(std::chrono::milliseconds(25));
      job->Tick();
    }
  }
  bool RunToEnd() {
    return Run([&] { return job->ended(); });
  }
  v1::JobStatus Status() const {
    v1::JobStatus status;
    job->FillStatus(&status, 0);
    return status;
  }
};

// Returns the events that the job has reported to users, one per line.
inline std::string AllEvents(const FakeCluster& c) {
  std::string text;
  const v1::JobStatus status = c.Status();
  for (const v1::Event& event : status.events()) text += event.kind() + ": " + event.text() + "\n";
  return text;
}

}  // namespace evergrad::coordinator
