// A runner between a coordinator and real servers (ps_server/service), over the in-process
// transport. The test acts as the coordinator.
#pragma once

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/client/parameter_client.h"
#include "common/client/protocol.h"
#include "common/grants/grant_proof.h"
#include "common/plan/plan.h"
#include "common/runtime/executor.h"
#include "common/wire/data_frame.h"
#include "ps_server/service/shard_host.h"
#include "ps_server/service/shard_spec.h"
#include "tests/support/inproc/inproc_transport.h"
#include "tests/support/temp_folder.h"
#include "worker/counting/counting_kind.h"
#include "worker/runner/runner.h"

namespace evergrad::worker {

inline constexpr std::uint64_t kJob = 77;
inline constexpr std::uint32_t kSlots = 16;  // the number of slots of all tables

// A push that a server received.
struct SeenPush {
  std::string server;
  std::uint32_t shard;
  std::uint64_t closure;
  std::uint32_t update;
  Attempt attempt;
  ShardEpoch epoch;
  v1::UpdateKind kind;
};

inline constexpr char kGrantKey[] = "known to the coordinator and the servers";

// One server: a real ShardHost behind a listener. A test can set a hook, which may answer requests
// in place of the ShardHost.
class Node {
 public:
  // Returns true if the hook has handled the request.
  using Intercept =
      std::function<bool(const v1::RequestHeader&, std::unique_ptr<transport::DataResponder>&)>;

  // If `budget_bytes_max` is 0, the server has the default budget, and its endpoint does not state
  // a budget.
  Node(transport::Transport* transport, std::string identity, metrics::Registry* registry,
       std::uint64_t budget_bytes_max = 0)
      : identity_(std::move(identity)),
        transport_(transport),
        budget_bytes_max_(budget_bytes_max),
        executor_({absl::StrCat("lane", identity_)}) {
    ps_server::ShardHost::Options options;
    options.executors = {&executor_};
    options.registry = registry;
    host_ = std::make_unique<ps_server::ShardHost>(options);
    Listen();
  }
  ~Node() {
    StopListening();
    executor_.Shutdown();
  }

  void Listen() {
    transport::ServerOptions options;
    options.listen = absl::StrCat("server-", identity_);
    if (budget_bytes_max_ > 0) options.budget_bytes_max = budget_bytes_max_;
    transport::Handlers handlers;
    handlers.data = [this](const transport::PeerInfo&, transport::ReceivedFrame frame,
                           std::unique_ptr<transport::DataResponder> responder) {
      auto request = wire::ParseRequest({frame.bytes.data(), frame.bytes.size()});
      if (request.ok()) {
        Intercept intercept;
        {
          MutexLock lock(&mu_);
          for (const v1::PushSection& p : request->header->pushes()) {
            seen_.push_back({identity_, p.shard(), p.closure(), p.update(),
                             client::FromProto<Attempt>(p.attempt()),
                             client::FromProto<ShardEpoch>(p.epoch()), p.kind()});
          }
          intercept = intercept_;
        }
        if (intercept && intercept(*request->header, responder)) return;
      }
      host_->Handle(std::move(frame), std::move(responder));
    };
    auto server = transport_->Listen(options, std::move(handlers));
    REQUIRE(server.ok());
    server_ = *std::move(server);
  }
  void StopListening() {
    if (server_ != nullptr) server_->Shutdown();
    server_.reset();
  }
  v1::Endpoint endpoint() const {
    v1::Endpoint endpoint;
    endpoint.set_address(absl::StrCat("server-", identity_));
    endpoint.set_budget_bytes_max(budget_bytes_max_);
    return endpoint;
  }
  transport::Server::Stats stats() const { return server_->stats(); }
  const std::string& identity() const { return identity_; }
  void SetIntercept(Intercept intercept) {
    MutexLock lock(&mu_);
    intercept_ = std::move(intercept);
  }
  std::vector<SeenPush> seen() {
    MutexLock lock(&mu_);
    return seen_;
  }
  void Assign(const v1::ShardSpec& spec, ShardEpoch epoch, MapVersion start, MapVersion version,
              std::uint32_t total) {
    host_->jobs().Learn(JobUid(kJob), version, total);
    // In these tests each push must prove its grant.
    host_->jobs().SetGrantKey(JobUid(kJob), kGrantKey);
    runtime::WaitableEvent loaded;
    absl::Status status;
    host_->shard_executor(ShardId(spec.shard()))
        .Assign(*ps_server::ShardSettingsOf(JobUid(kJob), spec), epoch, start, {},
                [&](const ps_server::ShardExecutor::Loaded& l) {
                  status = l.status;
                  loaded.Set();
                });
    loaded.Wait();
    REQUIRE(status.ok());
  }
  void Learn(MapVersion version) { host_->jobs().Learn(JobUid(kJob), version, 0); }
  void Drop(std::uint32_t shard, ShardEpoch epoch) {
    host_->shard_executor(ShardId(shard)).Drop({JobUid(kJob), ShardId(shard)}, epoch);
  }
  std::vector<v1::ShardState> Report() {
    runtime::WaitableEvent reported;
    std::vector<v1::ShardState> states;
    host_->Report(JobUid(kJob), true, [&](std::vector<v1::ShardState> s) {
      states = std::move(s);
      reported.Set();
    });
    reported.Wait();
    return states;
  }

 private:
  const std::string identity_;
  transport::Transport* const transport_;
  const std::uint64_t budget_bytes_max_;
  runtime::ThreadExecutor executor_;
  std::unique_ptr<ps_server::ShardHost> host_;
  std::unique_ptr<transport::Server> server_;
  Mutex mu_;
  Intercept intercept_ ABSL_GUARDED_BY(mu_);
  std::vector<SeenPush> seen_ ABSL_GUARDED_BY(mu_);
};

using test::TempFolder;

// Writes images of 4 x 4 pixels in three classes. The classes differ in the bright row, and the
// images have some noise. A model learns the classes in a few steps.
inline void WriteIdx(const TempFolder& folder, const std::string& prefix, std::uint32_t n) {
  const auto big = [](std::uint32_t v) {
    return std::string{static_cast<char>(v >> 24), static_cast<char>(v >> 16),
                       static_cast<char>(v >> 8), static_cast<char>(v)};
  };
  std::string images = big(0x803) + big(n) + big(4) + big(4), labels = big(0x801) + big(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t label = i % 3;
    for (std::uint32_t row = 0; row < 4; ++row) {
      for (std::uint32_t column = 0; column < 4; ++column)
        images.push_back(
            static_cast<char>((row == label ? 200 : 20) + (i * 7 + row * 5 + column * 3) % 40));
    }
    labels.push_back(static_cast<char>(label));
  }
  std::ofstream(folder / (prefix + "-images"), std::ios::binary) << images;
  std::ofstream(folder / (prefix + "-labels"), std::ios::binary) << labels;
}

class Stage {
 public:
  struct Settings {
    int servers = 2;
    // The memory budget of each server. With 0, servers have the default budget, which workers are
    // not told.
    std::uint64_t budget_bytes_max = 0;
    std::string failpoints;
    std::vector<const JobKind*> more_job_kinds = {&CountingJobs()};
    bool skip_not_finite = false;
    std::uint64_t message_bytes_max = 4ull << 20;
    const sdk::Registry* functions = nullptr;
    std::string device = "auto", cuda_library = {};
    std::chrono::milliseconds drain_step_max{5000}, drain_done_max{20};
  };
  Stage() : Stage(Settings{}) {}
  explicit Stage(Settings settings) {
    if (!settings.failpoints.empty()) REQUIRE(failpoints.Arm(settings.failpoints, 1).ok());
    for (int i = 0; i < settings.servers; ++i)
      nodes.push_back(std::make_unique<Node>(transport.get(), absl::StrCat(i), &server_registry,
                                             settings.budget_bytes_max));
    Runner::Environment environment;
    environment.control = &control;
    environment.compute = &compute;
    environment.client = &client;
    environment.logger = &logger;
    environment.registry = &registry;
    environment.failpoints = &failpoints;
    environment.functions = settings.functions;
    environment.more_job_kinds = settings.more_job_kinds;
    environment.clock = &clock;
    environment.send = [this](v1::TaskMessage message) {
      MutexLock lock(&mu_);
      if (!session_) return false;
      if (message.has_heartbeat()) steps_logged_ += message.heartbeat().worker().steps_log_size();
      sent_.push_back(std::move(message));
      changed_.NotifyAll();
      return true;
    };
    Runner::Options options;
    options.skip_not_finite = settings.skip_not_finite;
    options.message_bytes_max = settings.message_bytes_max;
    options.drain_step_max = settings.drain_step_max;
    options.drain_done_max = settings.drain_done_max;
    options.host = "here";
    options.device = settings.device;
    options.cuda_library = settings.cuda_library;
    runner = std::make_unique<Runner>(std::move(environment), options);
    OnControl([&] { runner->SetIdentity("0"); });
  }
  ~Stage() {
    compute.Shutdown();
    control.Shutdown();
    runner.reset();
  }

  // --- the actions of the coordinator
  void OnControl(std::function<void()> f) {
    runtime::WaitableEvent ran;
    control.Post([&] {
      f();
      ran.Set();
    });
    ran.Wait();
  }
  void Message(const v1::CoordinatorMessage& message) {
    OnControl([&] { runner->OnMessage(message); });
  }
  // Begins a new session. `adopted` has the numbers of the attempts that the coordinator adopts,
  // among the grants made so far.
  void Register(const std::vector<std::uint64_t>& adopted = {}, std::uint64_t term = 1,
                bool with_job = true) {
    v1::Registered registered;
    registered.set_term(term);
    registered.set_life_id(term);
    registered.set_identity("0");
    for (const std::uint64_t n : adopted) {
      v1::HeldAttempt& held = *registered.add_adopted();
      held.set_job_uid(kJob);
      *held.mutable_attempt() = client::ToProto(Attempt{1, n});
    }
    if (with_job) {
      *registered.mutable_job() = job;
      if (map.version().n() > 0) *registered.mutable_map() = map;
    }
    OnControl([&] {  // one task, as in SessionClient, so that nothing is sent before Registered
      {
        MutexLock lock(&mu_);
        session_ = true;
      }
      runner->OnRegistered(registered);
    });
  }
  void LoseSession() {
    {
      MutexLock lock(&mu_);
      session_ = false;
    }
    OnControl([&] { runner->OnLost(); });
  }
  // Makes the coordinator's runs folder visible to the worker.
  void ShareRunsFolder() {
    std::filesystem::create_directories(folder / "runs");
    std::ofstream(folder / "runs/.mark") << "job\n";
    export_order.set_mark_file(".mark");
    export_order.set_mark("job\n");
  }
  void Confirm(const v1::RunFileChunk& chunk, const absl::Status& error = absl::OkStatus()) {
    v1::CoordinatorMessage message;
    v1::RunFileAnswer& answer = *message.mutable_run_file_answer();
    answer.set_job_uid(chunk.job_uid());
    answer.set_closure(chunk.closure());
    *answer.mutable_attempt() = chunk.attempt();
    answer.set_name(chunk.name());
    answer.set_written(chunk.offset() + chunk.data().size());
    if (!error.ok()) *answer.mutable_error() = client::ToErrorDetail(error, "coordinator");
    Message(message);
  }
  void Submit(const std::string& yaml) {
    job.set_job_uid(kJob);
    job.set_name("test");
    job.set_yaml(yaml);
    job.set_seed(11);
    job.set_runs_folder(folder / "runs");
  }
  // Submits the job, lets the runner run the describe closure, makes the plan from the result,
  // assigns the shards round-robin, and sends the plan and the shard map.
  v1::DescribeResult Begin(const std::string& yaml, std::uint64_t shards_per_variable,
                           plan::PlanSpec spec) {
    Submit(yaml);
    Register();
    Grant(1ull << 32, v1::DESCRIBE);
    const v1::TaskMessage done = Next(v1::TaskMessage::kDone);
    Answer(done.done());
    const v1::DescribeResult described = done.done().describe();
    spec.train_examples = described.train_examples();
    spec.eval_examples = described.eval_examples();
    client::FillPlan(spec, job.mutable_plan());
    for (const v1::VariableSpec& variable : described.variables()) {
      const std::uint64_t rows = variable.shape_size() == 0 ? 1 : variable.shape(0);
      const std::uint64_t n = std::min(rows, shards_per_variable);
      for (std::uint64_t i = 0; i < n; ++i) {
        v1::ShardSpec& shard = *job.mutable_plan()->add_shards();
        shard.set_shard(static_cast<std::uint32_t>(job.plan().shards_size() - 1));
        *shard.mutable_variable() = variable;
        shard.set_row_begin(rows * i / n);
        shard.set_row_end(rows * (i + 1) / n);
      }
    }
    *job.mutable_plan()->mutable_tables() = described.tables();
    for (std::uint32_t slot = 0; described.tables_size() > 0 && slot < kSlots; ++slot) {
      v1::ShardSpec& shard = *job.mutable_plan()->add_shards();
      shard.set_shard(static_cast<std::uint32_t>(job.plan().shards_size() - 1));
      shard.mutable_slot()->set_slot(slot);
      shard.mutable_slot()->set_slots(kSlots);
    }
    Place();
    return described;
  }
  // Assigns the shards of the plan in `job` round-robin, and sends the plan and the shard map to
  // the runner.
  void Place() {
    plan.emplace(*plan::Plan::Create(client::PlanSpecOf(job.plan())));
    map.set_job_uid(kJob);
    *map.mutable_version() = client::ToProto(MapVersion{1, 1});
    for (const v1::ShardSpec& shard : job.plan().shards()) {
      Node& node = *nodes[shard.shard() % nodes.size()];
      v1::ShardSpec whole = shard;
      if (shard.has_slot()) *whole.mutable_slot()->mutable_tables() = job.plan().tables();
      node.Assign(whole, {1, 1}, {0, 0}, {1, 1},
                  static_cast<std::uint32_t>(job.plan().shards_size()));
      v1::ShardLocation& location = *map.add_shards();
      location.set_shard(shard.shard());
      *location.mutable_epoch() = client::ToProto(ShardEpoch{1, 1});
      location.set_server_identity(node.identity());
      *location.mutable_endpoint() = node.endpoint();
    }
    v1::CoordinatorMessage message;
    *message.mutable_job() = job;
    Message(message);
    SendMap();
  }
  void SendMap() {
    v1::CoordinatorMessage message;
    *message.mutable_map() = map;
    Message(message);
  }
  v1::ExportOrder export_order;
  std::uint64_t LastAttempt() const { return attempts_; }
  void NextAttempt(std::uint64_t number) { attempts_ = number - 1; }
  std::uint64_t Grant(std::uint64_t closure, v1::WorkKind kind = v1::TRAIN,
                      const std::vector<std::uint32_t>& targets = {},
                      const std::string& function = "", const std::string& arguments = "") {
    Message(GrantOf(closure, kind, targets, function, arguments));
    return attempts_;
  }
  // Sends all grants in one task of the control executor, so that all arrive before one of them
  // begins.
  void GrantTogether(const std::vector<std::uint64_t>& closures) {
    OnControl([&] {
      for (const std::uint64_t closure : closures) runner->OnMessage(GrantOf(closure));
    });
  }
  v1::CoordinatorMessage GrantOf(std::uint64_t closure, v1::WorkKind kind = v1::TRAIN,
                                 const std::vector<std::uint32_t>& targets = {},
                                 const std::string& function = "",
                                 const std::string& arguments = "") {
    v1::CoordinatorMessage message;
    v1::Grant& grant = *message.mutable_grant();
    grant.set_job_uid(kJob);
    grant.set_closure(closure);
    *grant.mutable_attempt() = client::ToProto(Attempt{1, ++attempts_});
    grant.set_kind(kind);
    if (kind == v1::TRAIN)
      grant.set_proof(grants::MakeProof(kGrantKey, JobUid(kJob), ClosureId(closure),
                                        Attempt{1, attempts_}, "0"));
    grant.set_all_targets(targets.empty());
    for (const std::uint32_t t : targets) grant.add_targets(t);
    grant.set_function(function);
    grant.set_arguments(arguments);
    if (kind == v1::EXPORT) *grant.mutable_export_order() = export_order;
    return message;
  }
  void Answer(const v1::Done& done, bool superseded = false) {
    v1::CoordinatorMessage message;
    message.mutable_done_answer()->set_job_uid(done.job_uid());
    message.mutable_done_answer()->set_closure(done.closure());
    *message.mutable_done_answer()->mutable_attempt() = done.attempt();
    message.mutable_done_answer()->set_superseded(superseded);
    Message(message);
  }
  // Returns the next message of this kind, and drops messages that come before it. If no such
  // message comes, a check fails and an empty message is returned.
  v1::TaskMessage Next(v1::TaskMessage::MessageCase kind) { return Next(kind, kind); }
  v1::TaskMessage Next(v1::TaskMessage::MessageCase kind, v1::TaskMessage::MessageCase or_kind) {
    std::string others;
    {
      MutexLock lock(&mu_);
      for (;;) {
        while (!sent_.empty()) {
          v1::TaskMessage message = std::move(sent_.front());
          sent_.pop_front();
          if (message.message_case() == kind || message.message_case() == or_kind) return message;
          absl::StrAppend(&others, message.ShortDebugString(), "\n");
        }
        if (!changed_.WaitFor(&mu_, std::chrono::seconds(20))) break;
      }
    }
    FAIL("no message of kind " << kind << " came; others: " << others);
    return {};
  }
  // Returns the number of step records in all heartbeats so far. A heartbeat is sent before each
  // Done.
  int StepsLogged() {
    MutexLock lock(&mu_);
    return steps_logged_;
  }
  // Grants a closure, waits for its Done and acknowledges it.
  v1::Done RunClosure(std::uint64_t closure, v1::WorkKind kind = v1::TRAIN,
                      const std::vector<std::uint32_t>& targets = {}) {
    Grant(closure, kind, targets);
    const v1::TaskMessage message = Next(v1::TaskMessage::kDone);
    Answer(message.done());
    return message.done();
  }
  std::vector<v1::ShardState> States() {
    std::vector<v1::ShardState> all;
    for (const auto& node : nodes) {
      for (v1::ShardState& state : node->Report()) all.push_back(std::move(state));
    }
    std::sort(all.begin(), all.end(), [&](const auto& a, const auto& b) {
      return std::pair(a.variable(), a.row_begin()) < std::pair(b.variable(), b.row_begin());
    });
    return all;
  }
  std::uint64_t Digest() {
    std::uint64_t digest = 0;
    for (const v1::ShardState& state : States()) digest += state.digest();
    return digest;
  }
  std::vector<SeenPush> Seen() {
    std::vector<SeenPush> all;
    for (const auto& node : nodes) {
      const auto seen = node->seen();
      all.insert(all.end(), seen.begin(), seen.end());
    }
    return all;
  }
  bool HoldsNothing() {
    v1::Hello hello;
    OnControl([&] { runner->FillHello(&hello); });
    return hello.attempts_size() == 0;
  }

  TempFolder folder;
  fault::Failpoints failpoints;
  RealClock clock;
  metrics::Registry registry, server_registry;
  log::Logger logger{[] {
    log::Options options;
    options.file = "/dev/null";
    return options;
  }()};
  std::unique_ptr<transport::Transport> transport = transport::MakeInprocTransport(nullptr);
  std::vector<std::unique_ptr<Node>> nodes;
  runtime::ThreadExecutor control{{"control"}}, compute{{"compute"}};
  client::ParameterClient client{transport.get(), {}, "worker/0"};
  std::unique_ptr<Runner> runner;
  v1::JobInfo job;
  v1::ShardMap map;
  std::optional<plan::Plan> plan;

 private:
  std::uint64_t attempts_ = 0;
  Mutex mu_;
  CondVar changed_;
  std::deque<v1::TaskMessage> sent_ ABSL_GUARDED_BY(mu_);
  int steps_logged_ ABSL_GUARDED_BY(mu_) = 0;
  bool session_ ABSL_GUARDED_BY(mu_) = true;
};

inline std::string TrainingYaml(const TempFolder& folder, double learning_rate = 0.5,
                                int pipeline = 0) {
  const auto source = [&](const std::string& prefix) {
    return absl::StrCat("{format: idx, images: \"", folder / (prefix + "-images"), "\", labels: \"",
                        folder / (prefix + "-labels"), "\"}");
  };
  return absl::StrCat(R"(apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: test}
spec:
  data:
    train: )",
                      source("train"), R"(
    eval: )",
                      source("eval"), R"(
    fields:
      image: {transforms: [{scale: 0.00392156862}]}
    batch_size: 10
  model:
    inputs: {image: {shape: [4, 4, 1]}}
    layers:
      - {name: flat, type: flatten, input: image}
      - {name: hidden, type: dense, units: 8, activation: tanh}
      - {name: logits, type: dense, units: 3}
    losses: {type: sparse_categorical_crossentropy, from_logits: true, output: logits, labels: label}
    metrics: [accuracy]
  optimizer: {type: sgd, learning_rate: )",
                      learning_rate, R"(}
  strategy: {mode: async, pipeline: )",
                      pipeline, R"(}
  training: {epochs: 2, steps_per_closure: 4}
)");
}
inline std::string CountingYaml(int examples, int step_ms = 0, int tables = 0) {
  return absl::StrCat(R"(apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: test}
spec:
  type: counting
  counting: {examples: )",
                      examples, ", shards: 4, step_ms: ", step_ms, ", tables: ", tables, R"(}
  data: {batch_size: 10, shuffle: {seed: 7}}
  training: {epochs: 2, steps_per_closure: 4}
)");
}
inline plan::PlanSpec SmallPlan() {
  plan::PlanSpec spec;
  spec.batch_size = 10;
  spec.steps_per_closure = 4;
  spec.epochs = 2;
  spec.shuffle_seed = 7;
  spec.eval_batch_size = 10;
  spec.eval_steps_per_closure = 4;
  return spec;
}

}  // namespace evergrad::worker
