// A job among scripted tasks under a manual clock. Every message goes through this fixture, one
// after another; nothing runs by itself.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/client/protocol.h"
#include "common/grants/grant_proof.h"
#include "common/snapshot/shard_file.h"
#include "coordinator/jobs/job.h"
#include "fake_host.h"

namespace evergrad::coordinator {

struct FakeWorker {
  TaskId task;
  std::uint64_t process = 0;
  std::vector<std::string> functions;
  std::string identity;
  v1::ShardMap map;
  std::vector<v1::Grant> held;                   // granted and not answered
  std::vector<v1::TaskMessage> unanswered;       // Dones sent and not answered
  std::set<std::uint64_t> answered, superseded;  // n of attempts
  std::vector<v1::RunFileAnswer> files;          // answers to its RunFileChunks
  bool ended = false;                            // JobEnded was received
  std::string ended_state;
};
struct FakeServer {
  struct Shard {
    v1::Assign assign;
    bool sealed = false, stopped = false;
    bool loading = false;  // as in its Hello
    IntervalSet done;
    IntervalSet refused = {};
    std::uint64_t lsn = 0;
    std::optional<v1::ShardFile> saved;  // file of its present state
    std::uint64_t stopped_in = 0;
  };
  TaskId task;
  std::uint64_t process = 0;
  std::string identity;
  std::map<std::uint32_t, Shard> shards;
  bool silent = false;  // reads, but never answers
  std::uint64_t bytes = 0;
  bool ended = false;
  // Received shards, by the epoch from which they come.
  std::map<std::uint32_t, std::pair<v1::Stamp, Shard>> moving;
  std::string leaving;  // as in its Hello
  int drained = 0;      // number of Drained messages received
  std::string cannot;   // `cannot` of the last Drained
};

// Workers and servers that obey at once, except for what `hold` keeps back.
class FakeCluster {
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
                      !runs.empty() ? runs  // a folder of the real disk: exported files go there
                      : spec.checkpoint.on ? "/runs/fake-" + JobUidString(uid)
                                           : "/runs/fake",
                      kGrantKey});
    // A submission is acknowledged once it is durable.
    if (!job->Keep() || !host.memory.CommitTerm(host.term_now).ok()) std::abort();
  }

  // The calls of a functions job.
  FunctionCalls& function_calls() { return **job->function_calls(); }

  // The coordinator's process ends, with everything in it and in flight, and another one begins on
  // the same store. Servers named in `gone` end with it. The others, and the workers, register anew
  // with what they hold.
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
      const auto adopted = [&](const v1::Stamp& attempt) {
        for (const v1::HeldAttempt& a : registered.adopted()) {
          if (a.attempt().term() == attempt.term() && a.attempt().n() == attempt.n()) return true;
        }
        return false;
      };
      std::erase_if(worker.held, [&](const v1::Grant& g) { return !adopted(g.attempt()); });
      std::erase_if(worker.unanswered,
                    [&](const v1::TaskMessage& m) { return !adopted(m.done().attempt()); });
      if (registered.has_map()) worker.map = registered.map();
      job->Ready(worker.task);
    }
    if (!job->started()) job->Start();  // the record of its start was torn off
    for (auto& [identity, worker] : workers) {
      for (const v1::TaskMessage& done : std::vector<v1::TaskMessage>(worker.unanswered))
        Say(worker.task, done);
      for (const v1::Grant& grant : std::vector<v1::Grant>(worker.held)) {
        if (!hold(worker, grant)) Finish(worker, grant);
      }
    }
  }
  template <class Message>
  static void AddHeld(const Message& from, const v1::Stamp& v1_stamp, v1::Hello* hello,
                      const std::string& granted_to = "0") {
    v1::HeldAttempt* held = hello->add_attempts();
    held->set_job_uid(from.job_uid());
    held->set_closure(from.closure());
    *held->mutable_attempt() = from.attempt();
    held->set_kind(from.kind());
    held->set_all_targets(from.all_targets());
    *held->mutable_targets() = from.targets();
    *held->mutable_v1() = v1_stamp;
    held->set_granted_to(granted_to);
    if (from.kind() != v1::TRAIN) return;
    held->set_proof(grants::MakeProof(kGrantKey, JobUid(from.job_uid()), ClosureId(from.closure()),
                                      client::FromProto<Attempt>(from.attempt()), granted_to));
  }

  JobOptions options;

  FakeHost host;
  config::JobSpec spec;
  std::unique_ptr<Job> job;
  std::map<std::string, FakeWorker> workers;
  std::map<std::string, FakeServer> servers;
  std::uint64_t server_budget_bytes_max = 0;  // limit that servers state in their Hello
  std::function<bool(const FakeWorker&, const v1::Grant&)> hold =
      [](const FakeWorker&, const v1::Grant&) { return false; };
  // Says what keeps a worker from doing granted work, which then fails at once.
  std::function<v1::Lack(const FakeWorker&, const v1::Grant&)> lacks =
      [](const FakeWorker&, const v1::Grant&) { return v1::NO_LACK; };
  std::function<absl::Status(const v1::CutShards&, std::uint32_t shard)> cut_error =
      [](const v1::CutShards&, std::uint32_t) { return absl::OkStatus(); };
  // File system to which the servers write; null for that of the coordinator.
  std::shared_ptr<fs::MemoryFileSystem> elsewhere;
  fs::MemoryFileSystem* servers_disk() { return elsewhere ? elsewhere.get() : host.disk.get(); }
  std::function<void(const std::string& uri, const v1::ShardFile&)> on_saved =
      [](const std::string&, const v1::ShardFile&) {};
  std::uint64_t cuts = 0;  // number of shards that were saved
  std::vector<v1::Assign> assigns;
  // Returns whether a message to a server is lost on its way.
  std::function<bool(const FakeServer&, const v1::CoordinatorMessage&)> lose =
      [](const FakeServer&, const v1::CoordinatorMessage&) { return false; };
  // Returns why a shard that must move cannot be stopped, or received.
  std::function<absl::Status(const FakeServer&, std::uint32_t shard)> move_error =
      [](const FakeServer&, std::uint32_t) { return absl::OkStatus(); };
  std::function<bool(const v1::Assign&)> hold_assign = [](const v1::Assign&) { return false; };
  std::map<std::uint64_t, int> trained;  // closures by number of accepted ALL-target executions
  std::vector<v1::Grant> granted;        // all grants in order
  std::uint64_t next_task = 1;
  std::int64_t eval_count = 7;  // count in each evaluation closure
  static constexpr char kGrantKey[] = "known to the job and its servers";
  std::uint64_t updates_reported = 32;  // number of updates that each shard reports, at any time
  std::vector<v1::HeldAttempt> last_adopted;

  // Without `former_died` the process is the one that had the identity before, if there was one.
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
    v1::Hello hello;
    hello.set_host("host-of-" + identity);
    hello.mutable_endpoint()->set_address("inproc:" + identity + "." + std::to_string(next_task));
    hello.mutable_endpoint()->set_budget_bytes_max(server_budget_bytes_max);
    FakeServer server;
    if (servers.count(identity) != 0) {
      if (known) former = servers[identity].task;
      if (keeps) server.shards = servers[identity].shards;
    }
    for (const auto& [p, shard] : server.shards) {
      v1::HeldShard* held = hello.add_shards();
      held->set_job_uid(job->uid().value());
      held->set_shard(p);
      *held->mutable_epoch() = shard.assign.epoch();
      *held->mutable_start() = shard.assign.start();
      *held->mutable_done() = client::ToProto(shard.done);
      held->set_loading(shard.loading);
      held->set_stopped_in(shard.stopped_in);
    }
    if (keeps && servers.count(identity) != 0) server.leaving = servers[identity].leaving;
    hello.set_leaving(server.leaving);
    server.task = TaskId(next_task++);
    server.identity = identity;
    server.process = servers.count(identity) != 0 && keeps ? servers[identity].process
                                                           : 1000 + server.task.value();
    hello.set_process_uid(server.process);
    v1::Registered registered;
    const absl::Status status =
        job->AdmitServer(server.task, identity, former, former && !keeps, hello, &registered);
    (void)status;
    servers[identity] = server;
    job->Ready(server.task);
    return servers[identity];
  }
  void KillWorker(const std::string& identity) {
    const TaskId task = workers.at(identity).task;
    workers.erase(identity);
    job->OnWorkerGone(task, "its session closed", false);
  }

  v1::Done DoneOf(const FakeWorker& worker, const v1::Grant& grant) const {
    v1::Done done;
    done.set_job_uid(grant.job_uid());
    done.set_closure(grant.closure());
    *done.mutable_attempt() = grant.attempt();
    done.set_kind(grant.kind());
    done.set_all_targets(grant.all_targets());
    *done.mutable_targets() = grant.targets();
    *done.mutable_v0() = worker.map.version();
    *done.mutable_v1() = worker.map.version();
    switch (grant.kind()) {
      case v1::DESCRIBE: {
        v1::DescribeResult* d = done.mutable_describe();
        d->set_train_examples(spec.counting.examples);
        d->set_eval_examples(spec.counting.examples);
        v1::VariableSpec* v = d->add_variables();
        v->set_name("counting/samples");
        v->add_shape(spec.counting.examples);
        v->add_shape(1);
        v->set_dtype(v1::DTYPE_FLOAT32);
        v->mutable_optimizer()->set_type("counting");
        d->set_parameters(spec.counting.examples);
        break;
      }
      case v1::TRAIN: {
        v1::ClosureMetrics* m = done.mutable_metrics();
        m->set_examples(8);
        m->set_steps(2);
        m->set_loss_sum(8.0 / (1.0 + static_cast<double>(grant.closure())));
        for (std::uint32_t u = 0; u < 2; ++u) {
          v1::StepRecord* r = m->add_step_records();
          r->set_global_step(grant.closure() * 2 + u);
          r->set_loss(1.0 / (1.0 + static_cast<double>(grant.closure())));
          r->set_examples(4);
        }
        break;
      }
      case v1::EVALUATE: {
        v1::ClosureMetrics* m = done.mutable_metrics();
        m->set_examples(8);
        v1::NamedSum* s = m->add_sums();
        s->set_name("count");
        s->set_is_integer(true);
        s->set_count(eval_count);
        break;
      }
      default:
        done.mutable_export_()->add_files("/runs/fake/weights.npz");
        done.mutable_export_()->set_host("far");
        break;
    }
    return done;
  }
  std::function<void(const v1::Grant&, v1::Done*)> on_done = [](const v1::Grant&, v1::Done*) {};
  void Finish(FakeWorker& worker, const v1::Grant& grant) {
    v1::TaskMessage message;
    *message.mutable_done() = DoneOf(worker, grant);
    on_done(grant, message.mutable_done());
    std::erase_if(worker.held, [&](const v1::Grant& g) {
      return g.attempt().n() == grant.attempt().n() && g.attempt().term() == grant.attempt().term();
    });
    worker.unanswered.push_back(message);
    Say(worker.task, message);
  }
  absl::Status Try(TaskId task, const v1::TaskMessage& message) {
    const absl::Status status = job->OnMessage(task, message);
    if (!turns_held) job->EndTurn();
    return status;
  }
  bool turns_held = false;  // if true, Dones are accepted and the turn does not end
  void Say(TaskId task, const v1::TaskMessage& message) {
    if (absl::Status status = Try(task, message); !status.ok()) refused.push_back(status);
  }
  std::vector<absl::Status> refused;
  // Finishes all attempts that the worker now has in hand, but not those that it is granted for
  // them.
  void FinishHeld(FakeWorker& worker) {
    for (const v1::Grant& grant : std::vector<v1::Grant>(worker.held)) Finish(worker, grant);
  }
  void FailGrant(FakeWorker& worker, const v1::Grant& grant, const std::string& text, bool user,
                 v1::Lack lack = v1::NO_LACK) {
    v1::TaskMessage message;
    v1::Failed* failed = message.mutable_failed();
    failed->set_job_uid(grant.job_uid());
    failed->set_closure(grant.closure());
    *failed->mutable_attempt() = grant.attempt();
    failed->set_kind(grant.kind());
    failed->set_all_targets(grant.all_targets());
    failed->set_user_error(user);
    failed->set_lack(lack);
    failed->mutable_cause()->set_message(text);
    failed->mutable_cause()->set_kind(user ? "user" : "transport");
    failed->mutable_cause()->set_retryable(!user);
    std::erase_if(worker.held,
                  [&](const v1::Grant& g) { return g.attempt().n() == grant.attempt().n(); });
    Say(worker.task, message);
  }
  void Report(FakeWorker& worker, const v1::Grant& grant, std::uint32_t step) {
    v1::TaskMessage message;
    v1::WorkerProgress* p = message.mutable_heartbeat()->mutable_worker();
    p->set_job_uid(grant.job_uid());
    p->set_state("running");
    p->set_running_closure(grant.closure());
    *p->mutable_running_attempt() = grant.attempt();
    p->set_running_step(step);
    Say(worker.task, message);
  }

  // Delivers messages until nothing is in flight.
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
          if (!server.silent && !lose(server, message)) AtServer(server, message);
        }
      }
    }
  }
  // Lets time pass in ticks of 25 ms until `until` holds. Returns false after `limit`.
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

 private:
  v1::ShardFile Save(const v1::CutShards& cut, FakeServer::Shard* shard) {
    if (shard->saved &&
        client::FromProto(shard->saved->done())->ToString() == shard->done.ToString() &&
        client::FromProto(shard->saved->refused())->ToString() == shard->refused.ToString())
      return *shard->saved;
    ++cuts;
    const v1::ShardFile said =
        WriteShardFile(servers_disk(), cut, shard->assign.spec(), shard->assign.epoch(),
                       shard->assign.start(), ++shard->lsn, shard->done, shard->refused);
    shard->saved = said;
    on_saved(fs::JoinUri(cut.folder(), said.file()), said);
    return said;
  }
  absl::Status Load(const v1::Assign& assign, FakeServer::Shard* shard) {
    const auto report = snapshot::VerifyShardFile(*servers_disk(), assign.snapshot().uri());
    if (!report.ok()) return report.status();
    shard->done = report->done;
    if (auto more = client::FromProto(assign.refused()); more.ok())
      shard->refused = report->refused.Union(*more);
    shard->lsn = report->header.lsn();
    if (assign.snapshot().replace_ledger()) {
      if (auto done = client::FromProto(assign.snapshot().done()); done.ok()) shard->done = *done;
    }
    return absl::OkStatus();
  }
  void AtWorker(FakeWorker& worker, const v1::CoordinatorMessage& message) {
    switch (message.message_case()) {
      case v1::CoordinatorMessage::kMap: worker.map = message.map(); break;
      case v1::CoordinatorMessage::kGrant:
        granted.push_back(message.grant());
        worker.held.push_back(message.grant());
        if (const v1::Lack of = lacks(worker, message.grant()); of != v1::NO_LACK) {
          const v1::Grant grant = message.grant();
          FailGrant(worker, grant, "not here: worker/" + worker.identity, true, of);
          break;
        }
        if (!hold(worker, message.grant())) {
          const v1::Grant grant = message.grant();
          Finish(worker, grant);
        }
        break;
      case v1::CoordinatorMessage::kRecall: {
        // The begun attempt, which is the oldest, continues.
        for (std::size_t i = 1; i < worker.held.size(); ++i) {
          if (worker.held[i].attempt().n() != message.recall().attempt().n()) continue;
          worker.held.erase(worker.held.begin() + static_cast<std::ptrdiff_t>(i));
          v1::TaskMessage dropped;
          dropped.mutable_dropped()->set_job_uid(message.recall().job_uid());
          dropped.mutable_dropped()->set_closure(message.recall().closure());
          *dropped.mutable_dropped()->mutable_attempt() = message.recall().attempt();
          Say(worker.task, dropped);
          break;
        }
        break;
      }
      case v1::CoordinatorMessage::kDoneAnswer:
        std::erase_if(worker.unanswered, [&](const v1::TaskMessage& m) {
          return m.done().attempt().n() == message.done_answer().attempt().n() &&
                 m.done().attempt().term() == message.done_answer().attempt().term();
        });
        if (message.done_answer().superseded()) {
          std::erase_if(worker.held, [&](const v1::Grant& g) {
            return g.attempt().n() == message.done_answer().attempt().n();
          });
        }
        (message.done_answer().superseded() ? worker.superseded : worker.answered)
            .insert(message.done_answer().attempt().n());
        break;
      case v1::CoordinatorMessage::kRunFileAnswer:
        worker.files.push_back(message.run_file_answer());
        break;
      case v1::CoordinatorMessage::kJobEnded:
        worker.ended = true;
        worker.ended_state = message.job_ended().state();
        worker.held.clear();
        worker.unanswered.clear();
        break;
      default: break;
    }
  }
  void AtServer(FakeServer& server, const v1::CoordinatorMessage& message) {
    v1::TaskMessage answer;
    switch (message.message_case()) {
      case v1::CoordinatorMessage::kAssign:
        assigns.push_back(message.assign());
        server.shards[message.assign().spec().shard()] = {
            message.assign(), false, false, false, {}, {}, 0, std::nullopt, 0};
        if (message.assign().has_moved_from()) {
          auto moved = server.moving.extract(message.assign().spec().shard());
          if (moved.empty() || moved.mapped().first.n() != message.assign().moved_from().n()) {
            server.shards.erase(message.assign().spec().shard());
            answer.mutable_assigned()->set_job_uid(message.assign().job_uid());
            answer.mutable_assigned()->set_shard(message.assign().spec().shard());
            *answer.mutable_assigned()->mutable_epoch() = message.assign().epoch();
            *answer.mutable_assigned()->mutable_error() = client::ToErrorDetail(
                absl::NotFoundError("this server does not have the state of a moved shard"));
            break;
          }
          FakeServer::Shard& shard = server.shards[message.assign().spec().shard()];
          shard.done = moved.mapped().second.done;
          shard.refused = moved.mapped().second.refused;
          shard.lsn = moved.mapped().second.lsn;
        }
        if (message.assign().has_snapshot()) {
          if (absl::Status status =
                  Load(message.assign(), &server.shards[message.assign().spec().shard()]);
              !status.ok()) {
            server.shards.erase(message.assign().spec().shard());
            answer.mutable_assigned()->set_job_uid(message.assign().job_uid());
            answer.mutable_assigned()->set_shard(message.assign().spec().shard());
            *answer.mutable_assigned()->mutable_epoch() = message.assign().epoch();
            *answer.mutable_assigned()->mutable_error() = client::ToErrorDetail(status);
            break;
          }
        }
        if (hold_assign(message.assign())) return;
        answer.mutable_assigned()->set_job_uid(message.assign().job_uid());
        answer.mutable_assigned()->set_shard(message.assign().spec().shard());
        *answer.mutable_assigned()->mutable_epoch() = message.assign().epoch();
        answer.mutable_assigned()->set_ok(true);
        break;
      case v1::CoordinatorMessage::kDrop: {
        const auto is = [&](const v1::Stamp& epoch) {
          return epoch.term() == message.drop().epoch().term() &&
                 epoch.n() == message.drop().epoch().n();
        };
        if (const auto moved = server.moving.find(message.drop().shard());
            moved != server.moving.end() && is(moved->second.first))
          server.moving.erase(moved);
        if (const auto held = server.shards.find(message.drop().shard());
            held != server.shards.end() && is(held->second.assign.epoch()))
          server.shards.erase(held);
        return;
      }
      case v1::CoordinatorMessage::kStop: {
        v1::ShardStopped* stopped = answer.mutable_stopped();
        stopped->set_job_uid(message.stop().job_uid());
        stopped->set_shard(message.stop().shard());
        *stopped->mutable_epoch() = message.stop().epoch();
        if (absl::Status status = move_error(server, message.stop().shard()); !status.ok()) {
          *stopped->mutable_error() = client::ToErrorDetail(status);
          break;
        }
        server.shards.at(message.stop().shard()).stopped = true;
        server.shards.at(message.stop().shard()).stopped_in = host.term().value();
        stopped->set_bytes(100);
        stopped->set_sha256(std::string(32, 's'));
        break;
      }
      case v1::CoordinatorMessage::kReceive: {
        const v1::ReceiveShard& receive = message.receive();
        v1::ShardReceived* received = answer.mutable_received();
        received->set_job_uid(receive.job_uid());
        received->set_shard(receive.spec().shard());
        *received->mutable_epoch() = receive.epoch();
        const auto from = servers.find(receive.from().server());
        absl::Status status = move_error(server, receive.spec().shard());
        if (status.ok() &&
            (from == servers.end() || from->second.shards.count(receive.spec().shard()) == 0))
          status = absl::UnavailableError("nobody is there");
        if (!status.ok()) {
          *received->mutable_error() = client::ToErrorDetail(status);
          break;
        }
        const FakeServer::Shard& state = from->second.shards.at(receive.spec().shard());
        if (!state.stopped || receive.sha256() != std::string(32, 's'))
          throw std::runtime_error("a shard is moved that goes on");
        server.moving[receive.spec().shard()] = {receive.epoch(), state};
        break;
      }
      case v1::CoordinatorMessage::kDrained:
        ++server.drained;
        server.cannot = message.drained().cannot();
        return;
      case v1::CoordinatorMessage::kClose: {
        const auto closes = server.shards.find(message.close().shard());
        const bool taken = closes != server.shards.end() && !closes->second.stopped;
        if (auto done = client::FromProto(message.close().done()); taken && done.ok())
          server.shards[message.close().shard()].done.UnionWith(*done);
        if (auto refused_set = client::FromProto(message.close().refused());
            taken && refused_set.ok())
          server.shards[message.close().shard()].refused.UnionWith(*refused_set);
        answer.mutable_closed()->set_job_uid(message.close().job_uid());
        answer.mutable_closed()->set_shard(message.close().shard());
        *answer.mutable_closed()->mutable_epoch() = message.close().epoch();
        *answer.mutable_closed()->mutable_version() = message.close().version();
        answer.mutable_closed()->set_taken(taken);
        break;
      }
      case v1::CoordinatorMessage::kCut:
        for (const v1::CutShard& one : message.cut().shards()) {
          v1::TaskMessage durable;
          v1::ShardDurable* said = durable.mutable_shard_durable();
          said->set_job_uid(message.cut().job_uid());
          said->set_shard(one.shard());
          *said->mutable_epoch() = one.epoch();
          const absl::Status status = cut_error(message.cut(), one.shard());
          if (status.ok())
            *said->mutable_file() = Save(message.cut(), &server.shards.at(one.shard()));
          // No answer at all.
          else if (absl::IsDeadlineExceeded(status))
            continue;
          else
            *said->mutable_error() = client::ToErrorDetail(status);
          said->set_tried_again(absl::IsResourceExhausted(status));
          Say(server.task, durable);
        }
        return;
      case v1::CoordinatorMessage::kSeal:
        server.shards[message.seal().shard()].sealed = true;
        answer.mutable_sealed()->set_job_uid(message.seal().job_uid());
        answer.mutable_sealed()->set_shard(message.seal().shard());
        *answer.mutable_sealed()->mutable_epoch() = message.seal().epoch();
        break;
      case v1::CoordinatorMessage::kReportShards: {
        // As in the daemon, a report comes with the counters of its moment.
        v1::TaskMessage beat;
        v1::JobUsage* use = beat.mutable_heartbeat()->mutable_server()->add_jobs();
        use->set_job_uid(message.report_shards().job_uid());
        use->set_stint(1);
        use->set_duplicates_refused(server.shards.size());
        use->set_bytes_received(server.bytes);
        Say(server.task, beat);
        v1::ShardReport* report = answer.mutable_shard_report();
        report->set_request_id(message.report_shards().request_id());
        for (const auto& [p, shard] : server.shards) {
          // One shard per message, as a server with many shards splits its report.
          if (report->shards_size() > 0) {
            report->set_more(true);
            Say(server.task, answer);
            report->clear_shards();
            report->set_more(false);
          }
          v1::ShardState* state = report->add_shards();
          state->set_job_uid(job->uid().value());
          state->set_shard(p);
          state->set_variable(shard.assign.spec().variable().name());
          state->set_row_begin(shard.assign.spec().row_begin());
          state->set_row_end(shard.assign.spec().row_end());
          state->set_bytes((shard.assign.spec().row_end() - shard.assign.spec().row_begin()) * 4);
          *state->mutable_epoch() = shard.assign.epoch();
          *state->mutable_start() = shard.assign.start();
          state->set_lsn(40 + p);
          state->set_updates_applied(updates_reported);
          state->set_duplicates_refused(1);
          state->set_digest(1000 + p);
        }
        break;
      }
      case v1::CoordinatorMessage::kJobEnded:
        server.ended = true;
        server.shards.clear();
        return;
      default: return;
    }
    Say(server.task, answer);
  }
};

// Returns the events that the job has reported to people, one per line.
inline std::string AllEvents(const FakeCluster& c) {
  std::string text;
  const v1::JobStatus status = c.Status();
  for (const v1::Event& event : status.events()) text += event.kind() + ": " + event.text() + "\n";
  return text;
}

}  // namespace evergrad::coordinator
