// A complete coordinator on the in-process transport, with its own threads, and tasks that exchange
// raw session messages with it.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/client/control.h"
#include "common/client/protocol.h"
#include "common/health/health.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "coordinator/coordinator.h"
#include "coordinator/jobs/state_store.h"
#include "tests/support/inproc/inproc_transport.h"
#include "tests/support/temp_folder.h"

namespace evergrad::coordinator {

// The task's end of one session. `on_down`, if it is not empty, is called for each message of the
// coordinator, on the transport's thread. Thread-safe.
class TestTask {
 public:
  using OnDown = std::function<void(TestTask&, const v1::CoordinatorMessage&)>;
  // Like the daemon, a worker sends a heartbeat after it is registered. With `silent` it sends
  // none.
  TestTask(transport::Transport* transport, const std::string& address, const v1::Hello& hello,
           OnDown on_down = {}, bool silent = false)
      : on_down_(std::move(on_down)), speaks_(!silent && hello.role() == v1::ROLE_WORKER) {
    auto channel = transport->Dial({address, ""}, {});
    if (!channel.ok()) std::abort();
    channel_ = *std::move(channel);
    transport::MessageStreamEvents events;
    events.on_message = [this](const std::string& bytes) { OnMessage(bytes); };
    events.on_end = [this](const absl::Status&) {
      MutexLock lock(&mu_);
      ended_ = true;
      changed_.NotifyAll();
    };
    stream_ = channel_->OpenStream(client::kSessionMethod, std::move(events));
    v1::TaskMessage message;
    *message.mutable_hello() = hello;
    Send(message);
  }
  ~TestTask() {
    stream_->Close();
    stream_.reset();
  }

  void Send(const v1::TaskMessage& message) {
    v1::TaskBatch batch;
    *batch.add_messages() = message;
    SendBytes(batch.SerializeAsString());
  }
  void SendBytes(const std::string& bytes) {
    const absl::Status status = stream_->Send(bytes);
    (void)status;  // sending fails if the coordinator has ended the stream
  }
  void Heartbeat() {
    v1::TaskMessage message;
    message.mutable_heartbeat()->set_sequence(1);
    Send(message);
  }
  // Returns the first message for which `which` returns true, or nullopt after ten seconds.
  std::optional<v1::CoordinatorMessage> Wait(
      const std::function<bool(const v1::CoordinatorMessage&)>& which) {
    MutexLock lock(&mu_);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (;;) {
      for (const v1::CoordinatorMessage& m : down_) {
        if (which(m)) return m;
      }
      if (std::chrono::steady_clock::now() >= end) return std::nullopt;
      changed_.WaitFor(&mu_, std::chrono::milliseconds(100));
    }
  }
  // Returns whether a message has arrived for which `which` returns true.
  bool Has(const std::function<bool(const v1::CoordinatorMessage&)>& which) {
    MutexLock lock(&mu_);
    return std::any_of(down_.begin(), down_.end(), which);
  }
  std::optional<v1::Registered> Registered() {
    auto m = Wait([](const v1::CoordinatorMessage& d) { return d.has_registered(); });
    if (!m) return std::nullopt;
    return m->registered();
  }
  std::optional<v1::Rejected> Rejected() {
    auto m = Wait([](const v1::CoordinatorMessage& d) { return d.has_rejected(); });
    if (!m) return std::nullopt;
    return m->rejected();
  }
  bool WaitEnd() {
    MutexLock lock(&mu_);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!ended_ && std::chrono::steady_clock::now() < end)
      changed_.WaitFor(&mu_, std::chrono::milliseconds(100));
    return ended_;
  }
  void Cut() { stream_->Close(); }

 private:
  void OnMessage(const std::string& bytes) {
    v1::CoordinatorBatch batch;
    if (!batch.ParseFromString(bytes)) std::abort();
    for (const v1::CoordinatorMessage& m : batch.messages()) {
      {
        MutexLock lock(&mu_);
        down_.push_back(m);
        changed_.NotifyAll();
      }
      if (speaks_ && m.has_registered()) Heartbeat();
      if (on_down_) on_down_(*this, m);
    }
  }
  const OnDown on_down_;
  const bool speaks_;
  std::unique_ptr<transport::Channel> channel_;
  std::unique_ptr<transport::MessageStream> stream_;
  mutable Mutex mu_;
  CondVar changed_;
  std::deque<v1::CoordinatorMessage> down_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

class TestCluster {
 public:
  // The cluster uses the store `other` instead of its own, and `other` must outlive the cluster.
  // The transport `over` takes the place of the in-process transport.
  explicit TestCluster(std::function<void(ControlOptions&)> change = {},
                       StateStore* other = nullptr,
                       std::unique_ptr<transport::Transport> over = nullptr,
                       log::Options log_options = OnlyErrors())
      : logger(std::move(log_options)) {
    if (over) transport = std::move(over);
    Options options;
    options.control.runs_folder = folder_ / "runs";
    options.control.window = std::chrono::milliseconds(0);
    options.control.tick = std::chrono::milliseconds(5);
    // The lease is so long that it does not expire on a loaded machine. A test in which a lease
    // must expire sets a shorter lease.
    options.control.membership.lease = std::chrono::seconds(20);
    options.control.membership.server_lost_after = std::chrono::seconds(60);
    options.control.counting_allowed = true;
    options.control.build_id = "test";
    if (change) change(options.control);
    Coordinator::Parts parts;
    parts.transport = transport.get();
    parts.clock = &clock;
    parts.logger = &logger;
    parts.registry = &registry;
    parts.failpoints = &failpoints;
    parts.store = other != nullptr ? other : &store;
    parts.health = &health;
    parts.on_end = [this](const absl::Status& why) {
      end = why;
      ended.Set();
    };
    transport::ServerOptions server;
    server.listen = "coordinator:0";
    auto made = Coordinator::Create(options, server, parts);
    if (!made.ok()) std::abort();
    coordinator = *std::move(made);
    address = coordinator->address();
    coordinator->Start(address, "");
    auto dialed = transport->Dial({address, ""}, {});
    if (!dialed.ok()) std::abort();
    channel = *std::move(dialed);
  }
  static log::Options OnlyErrors() {
    log::Options options;
    options.level = log::Level::kError;
    return options;
  }
  ~TestCluster() {
    tasks.clear();
    channel.reset();
    coordinator.reset();
  }

  template <class Response, class Request>
  absl::StatusOr<Response> Call(const Request& request) {
    return client::CallControl<Response>(*channel, request, std::chrono::seconds(15));
  }
  static std::string CountingYaml(const std::string& name, int examples = 64, int epochs = 2) {
    return "apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: " + name +
           "}\nspec:\n  type: counting\n  counting: {examples: " + std::to_string(examples) +
           ", shards: 4}\n  data: {batch_size: 4, shuffle: {seed: 7}}\n  training: {epochs: " +
           std::to_string(epochs) + ", steps_per_closure: 2}\n  checkpoint: off\n";
  }
  absl::StatusOr<v1::SubmitJobResponse> Submit(const std::string& yaml) {
    v1::SubmitJobRequest request;
    request.set_yaml(yaml);
    return Call<v1::SubmitJobResponse>(request);
  }
  // Polls the status of the job, as psctl does, until `until` returns true for the status.
  absl::StatusOr<v1::JobStatus> WaitJob(const std::string& job,
                                        const std::function<bool(const v1::JobStatus&)>& until) {
    std::uint64_t seen = 0;
    for (int i = 0; i < 400; ++i) {
      v1::GetJobRequest request;
      request.set_job(job);
      request.set_seen_revision(seen);
      request.set_wait_ms(500);
      auto response = Call<v1::GetJobResponse>(request);
      if (!response.ok()) return response.status();
      if (until(response->job())) return response->job();
      seen = response->job().revision();
    }
    return absl::DeadlineExceededError("the job did not get there");
  }
  absl::StatusOr<v1::JobStatus> WaitState(const std::string& job, const std::string& state) {
    return WaitJob(job, [&](const v1::JobStatus& s) { return s.state() == state; });
  }

  static v1::Hello HelloOf(v1::Role role, const std::string& identity, std::uint64_t uid) {
    v1::Hello hello;
    hello.set_protocol_version(client::kProtocolVersion);
    hello.set_build_id("test");
    hello.set_role(role);
    hello.set_identity(identity);
    hello.set_process_uid(uid);
    hello.set_pid(static_cast<std::int64_t>(uid));
    hello.set_host("h");
    if (role == v1::ROLE_PS_SERVER) hello.mutable_endpoint()->set_address("server:" + identity);
    return hello;
  }
  TestTask& Add(const v1::Hello& hello, TestTask::OnDown on_down = {}, bool silent = false) {
    tasks.push_back(
        std::make_unique<TestTask>(transport.get(), address, hello, std::move(on_down), silent));
    return *tasks.back();
  }
  // Adds a worker that finishes each granted closure at once.
  TestTask& AddWorker(const std::string& identity, std::uint64_t uid) {
    return Add(HelloOf(v1::ROLE_WORKER, identity, uid), Work);
  }
  TestTask& AddServer(const std::string& identity, std::uint64_t uid) {
    auto held = std::make_shared<Held>();  // used only on the transport's thread
    return Add(HelloOf(v1::ROLE_PS_SERVER, identity, uid),
               [held](TestTask& task, const v1::CoordinatorMessage& m) { Serve(*held, task, m); });
  }

  static void Work(TestTask& task, const v1::CoordinatorMessage& m) {
    if (m.has_read_logs()) {
      v1::TaskMessage answer;
      answer.mutable_log_lines()->set_request_id(m.read_logs().request_id());
      answer.mutable_log_lines()->set_end(true);
      for (const std::int64_t ms : {1000, 2000, 2000, 3000}) {
        if (ms < m.read_logs().since_wall_ms()) continue;
        v1::LogLine* line = answer.mutable_log_lines()->add_lines();
        line->set_wall_ms(ms);
        line->set_text("line at " + std::to_string(ms));
      }
      task.Send(answer);
    }
    if (!m.has_grant()) return;
    v1::TaskMessage message;
    v1::Done* done = message.mutable_done();
    done->set_job_uid(m.grant().job_uid());
    done->set_closure(m.grant().closure());
    *done->mutable_attempt() = m.grant().attempt();
    done->set_kind(m.grant().kind());
    done->set_all_targets(m.grant().all_targets());
    *done->mutable_targets() = m.grant().targets();
    // The map version is the highest one of its term, so that no closure needs a repair.
    done->mutable_v0()->set_term(m.grant().attempt().term());
    done->mutable_v0()->set_n(~0ull);
    *done->mutable_v1() = m.grant().attempt();
    if (m.grant().kind() == v1::DESCRIBE) {
      done->mutable_describe()->set_train_examples(64);
      done->mutable_describe()->set_eval_examples(64);
      v1::VariableSpec* v = done->mutable_describe()->add_variables();
      v->set_name("counting/samples");
      v->add_shape(64);
      v->add_shape(1);
      v->set_dtype(v1::DTYPE_FLOAT32);
      v->mutable_optimizer()->set_type("counting");
    }
    if (m.grant().kind() == v1::TRAIN || m.grant().kind() == v1::EVALUATE) {
      done->mutable_metrics()->set_examples(8);
      v1::NamedSum* sum = done->mutable_metrics()->add_sums();
      sum->set_name("count");
      sum->set_is_integer(true);
      sum->set_count(8);
    }
    task.Send(message);
  }
  using Held = std::map<std::pair<std::uint64_t, std::uint32_t>, v1::Assign>;  // key: (job, shard)
  static void Serve(Held& held, TestTask& task, const v1::CoordinatorMessage& m) {
    v1::TaskMessage answer;
    if (m.has_assign()) {
      held[{m.assign().job_uid(), m.assign().spec().shard()}] = m.assign();
      answer.mutable_assigned()->set_job_uid(m.assign().job_uid());
      answer.mutable_assigned()->set_shard(m.assign().spec().shard());
      *answer.mutable_assigned()->mutable_epoch() = m.assign().epoch();
      answer.mutable_assigned()->set_ok(true);
    } else if (m.has_close()) {
      answer.mutable_closed()->set_job_uid(m.close().job_uid());
      answer.mutable_closed()->set_shard(m.close().shard());
      *answer.mutable_closed()->mutable_epoch() = m.close().epoch();
      answer.mutable_closed()->set_taken(true);
    } else if (m.has_seal()) {
      answer.mutable_sealed()->set_job_uid(m.seal().job_uid());
      answer.mutable_sealed()->set_shard(m.seal().shard());
      *answer.mutable_sealed()->mutable_epoch() = m.seal().epoch();
    } else if (m.has_report_shards()) {
      answer.mutable_shard_report()->set_request_id(m.report_shards().request_id());
      for (const auto& [key, assign] : held) {
        if (key.first != m.report_shards().job_uid()) continue;
        const std::uint32_t p = key.second;
        v1::ShardState* state = answer.mutable_shard_report()->add_shards();
        state->set_job_uid(assign.job_uid());
        state->set_shard(p);
        state->set_variable(assign.spec().variable().name());
        state->set_row_begin(assign.spec().row_begin());
        state->set_row_end(assign.spec().row_end());
        *state->mutable_epoch() = assign.epoch();
        state->set_digest(1ull << p);
      }
    } else if (m.has_read_logs()) {
      answer.mutable_log_lines()->set_request_id(m.read_logs().request_id());
      answer.mutable_log_lines()->set_end(true);
    } else {
      if (m.has_job_ended())
        std::erase_if(held,
                      [&](const auto& one) { return one.first.first == m.job_ended().job_uid(); });
      return;
    }
    task.Send(answer);
  }

  runtime::WaitableEvent ended;  // set when the coordinator asks its process to end
  absl::Status end;              // why the process must end; written before `ended` is set

  // Waits until the exported metrics have this value for a metric without labels.
  bool WaitMetric(const std::string& name, const std::string& value) {
    const std::string line = absl::StrCat("\n", name, " ", value, "\n");
    for (int i = 0; i < 4000; ++i) {
      if (registry.PrometheusText().find(line) != std::string::npos) return true;
      runtime::WaitableEvent().WaitFor(std::chrono::milliseconds(5));
    }
    return false;
  }

  // Waits until /readyz would answer `text`. Returns the last answer.
  std::string WaitReady(const std::string& text) {
    std::string now;
    for (int i = 0; i < 4000; ++i) {
      now = health.Ask(health::Question::kReady).text;
      if (now == text) break;
      runtime::WaitableEvent().WaitFor(std::chrono::milliseconds(5));
    }
    return now;
  }

  RealClock clock;
  health::Health health{&clock};
  log::Logger logger;
  metrics::Registry registry;
  fault::Failpoints failpoints;
  MemoryStateStore store;
  std::unique_ptr<transport::Transport> transport = transport::MakeInprocTransport(nullptr);
  std::unique_ptr<Coordinator> coordinator;
  std::string address;
  std::unique_ptr<transport::Channel> channel;
  std::vector<std::unique_ptr<TestTask>> tasks;

 private:
  const test::TempFolder folder_;
};

}  // namespace evergrad::coordinator
