// Runs a whole worker over the in-process transport. The test acts as the coordinator.
#include "worker/worker.h"

#include <catch2/catch.hpp>

#include <deque>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/client/protocol.h"
#include "common/runtime/executor.h"
#include "tests/support/inproc/inproc_transport.h"
#include "worker/counting/counting_kind.h"

namespace evergrad::worker {
namespace {

using namespace std::chrono_literals;

// Accepts sessions, and answers each Hello with the result of `answer`. Keeps all messages that it
// receives.
class Coordinator {
 public:
  Coordinator(transport::Transport* transport,
              std::function<v1::CoordinatorMessage(const v1::Hello&)> answer)
      : answer_(std::move(answer)) {
    transport::ServerOptions options;
    options.listen = "coordinator";
    transport::Handlers handlers;
    handlers.stream = [this](const transport::PeerInfo&, absl::string_view,
                             std::shared_ptr<transport::MessageStream> stream) {
      std::optional<transport::MessageStreamEvents> events;
      events.emplace();
      {
        MutexLock lock(&mu_);
        stream_ = stream;
      }
      events->on_message = [this, stream](std::string bytes) {
        v1::TaskBatch batch;
        if (!batch.ParseFromString(bytes)) return;
        for (const v1::TaskMessage& message : batch.messages()) {
          if (message.has_hello()) Send(*stream, answer_(message.hello()));
          MutexLock lock(&mu_);
          if (!message.has_heartbeat() || received_.size() < 1000) received_.push_back(message);
          changed_.NotifyAll();
        }
      };
      events->on_end = [](absl::Status) {};
      return events;
    };
    server_ = *transport->Listen(options, std::move(handlers));
  }
  ~Coordinator() { server_->Shutdown(); }

  static v1::CoordinatorMessage Registered(const std::string& identity, std::uint64_t term = 1) {
    v1::CoordinatorMessage message;
    v1::Registered& registered = *message.mutable_registered();
    registered.set_term(term);
    registered.set_life_id(term);
    registered.set_identity(identity);
    registered.set_lease_ms(30000);
    registered.set_heartbeat_ms(10);
    return message;
  }
  v1::TaskMessage Next(v1::TaskMessage::MessageCase kind) {
    MutexLock lock(&mu_);
    for (;;) {
      while (!received_.empty()) {
        v1::TaskMessage message = std::move(received_.front());
        received_.pop_front();
        if (message.message_case() == kind) return message;
      }
      if (!changed_.WaitFor(&mu_, 20s)) return {};
    }
  }
  void Send(const v1::CoordinatorMessage& message) {
    std::shared_ptr<transport::MessageStream> stream;
    {
      MutexLock lock(&mu_);
      stream = stream_;
    }
    Send(*stream, message);
  }
  void Cut() {
    std::shared_ptr<transport::MessageStream> stream;
    {
      MutexLock lock(&mu_);
      stream = std::move(stream_);
    }
    stream->Close();
  }

 private:
  static void Send(transport::MessageStream& stream, const v1::CoordinatorMessage& message) {
    v1::CoordinatorBatch batch;
    *batch.add_messages() = message;
    (void)stream.Send(batch.SerializeAsString());
  }
  const std::function<v1::CoordinatorMessage(const v1::Hello&)> answer_;
  Mutex mu_;
  CondVar changed_;
  std::deque<v1::TaskMessage> received_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<transport::MessageStream> stream_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<transport::Server> server_;
};

struct Bench {
  explicit Bench(std::function<v1::CoordinatorMessage(const v1::Hello&)> answer,
                 const std::string& name = "")
      : coordinator(transport.get(), std::move(answer)) {
    Config config;
    config.name = name;
    config.threads = 1;
    transport::ServerOptions options;
    options.listen = "worker";
    worker = *Worker::Listen({transport.get(), &logger, &registry, &clock, nullptr, 4711, &health},
                             config, options);
    Worker::Identity identity;
    identity.more_job_kinds = {&CountingJobs()};
    identity.pid = 12;
    identity.host = "here";
    client::SessionClient::Options session;
    session.coordinator_address = "coordinator";
    session.backoff_min = 1ms;
    session.backoff_max = 5ms;
    worker->Join(identity, session, [this](const std::string& kind) {
      refused_kind = kind;
      refused.Set();
    });
  }

  RealClock clock;
  metrics::Registry registry;
  log::Logger logger{[] {
    log::Options options;
    options.level = log::Level::kInfo;
    options.file = "/dev/null";
    return options;
  }()};
  health::Health health{&clock};
  std::unique_ptr<transport::Transport> transport =
      transport::MakeInprocTransport(nullptr, &health);
  std::string NotReady() { return health.Ask(health::Question::kReady).text; }
  Coordinator coordinator;
  std::string refused_kind;
  runtime::WaitableEvent refused;
  std::unique_ptr<Worker> worker;
};

TEST_CASE(
    "the Hello states the identity and the held attempts, and a given number is kept for the next "
    "session") {
  Bench bench([](const v1::Hello&) { return Coordinator::Registered("5", 3); });
  const v1::Hello first = bench.coordinator.Next(v1::TaskMessage::kHello).hello();
  CHECK(first.role() == v1::ROLE_WORKER);
  CHECK(first.identity().empty());
  CHECK_FALSE(first.numbered());
  CHECK(first.process_uid() == 4711);
  CHECK(first.pid() == 12);
  CHECK(first.host() == "here");
  CHECK(first.protocol_version() == client::kProtocolVersion);
  CHECK(bench.coordinator.Next(v1::TaskMessage::kHeartbeat).heartbeat().worker().state() == "idle");
  bench.coordinator.Cut();
  const v1::Hello second = bench.coordinator.Next(v1::TaskMessage::kHello).hello();
  CHECK(second.identity() == "5");
  CHECK(second.numbered());
  CHECK(second.process_uid() == 4711);
  CHECK(second.highest_term() == 3);
  CHECK(second.life_id() == 3);
}

TEST_CASE("a chosen name is never reported as a given number, also not in the next session") {
  Bench bench([](const v1::Hello&) { return Coordinator::Registered("5"); }, "5");
  CHECK_FALSE(bench.coordinator.Next(v1::TaskMessage::kHello).hello().numbered());
  CHECK(bench.coordinator.Next(v1::TaskMessage::kHeartbeat).has_heartbeat());
  bench.coordinator.Cut();
  const v1::Hello second = bench.coordinator.Next(v1::TaskMessage::kHello).hello();
  CHECK(second.identity() == "5");
  CHECK_FALSE(second.numbered());
}

TEST_CASE("the older of two workers with one identity exits with a code of its own") {
  Bench bench(
      [](const v1::Hello&) {
        v1::CoordinatorMessage message;
        message.mutable_rejected()->set_kind("replaced");
        message.mutable_rejected()->set_message("a newer worker of this identity has registered");
        message.mutable_rejected()->set_exit(true);
        return message;
      },
      "0");
  REQUIRE(bench.refused.WaitFor(20s));
  CHECK(bench.refused_kind == "replaced");
  CHECK(ExitCodeOf("replaced") == 7);
  CHECK(ExitCodeOf("version") == 8);
  bench.worker->Stop("refused");
}

TEST_CASE("a stop sends Leaving, returns work that has not begun, and may be repeated") {
  Bench bench(
      [](const v1::Hello&) {
        v1::CoordinatorMessage message = Coordinator::Registered("0");
        v1::JobInfo& job = *message.mutable_registered()->mutable_job();
        job.set_job_uid(9);
        job.set_name("test");
        job.set_yaml(
            "apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: test}\nspec:\n "
            " type: counting\n  counting: {examples: 40, "
            "shards: 4}\n"
            "  data: {batch_size: 10, shuffle: {seed: 7}}\n  training: {epochs: 1, "
            "steps_per_closure: 4}\n");
        plan::PlanSpec spec;
        spec.train_examples = spec.eval_examples = 40;
        spec.batch_size = 10;
        client::FillPlan(spec, job.mutable_plan());
        v1::ShardSpec& shard = *job.mutable_plan()->add_shards();
        shard.set_row_end(40);
        shard.mutable_variable()->set_name("counting/samples");
        shard.mutable_variable()->add_shape(40);
        shard.mutable_variable()->add_shape(1);
        shard.mutable_variable()->set_dtype(v1::DTYPE_FLOAT32);
        return message;  // the message has no shard map, so no attempt can begin
      },
      "0");
  REQUIRE(bench.coordinator.Next(v1::TaskMessage::kHeartbeat).has_heartbeat());
  v1::CoordinatorMessage grant;
  grant.mutable_grant()->set_job_uid(9);
  grant.mutable_grant()->mutable_attempt()->set_term(1);
  grant.mutable_grant()->mutable_attempt()->set_n(1);
  grant.mutable_grant()->set_kind(v1::TRAIN);
  grant.mutable_grant()->set_all_targets(true);
  bench.coordinator.Send(grant);
  v1::WorkerProgress progress;
  while (progress.waiting_for() != "the shard map") {
    const v1::TaskMessage heartbeat = bench.coordinator.Next(v1::TaskMessage::kHeartbeat);
    REQUIRE(heartbeat.has_heartbeat());
    progress = heartbeat.heartbeat().worker();
  }
  CHECK(progress.state() == "waiting");
  bench.worker->Stop("SIGTERM");
  // Next drops messages of other kinds. It therefore finds Leaving and Dropped only if Leaving came
  // first.
  CHECK(bench.coordinator.Next(v1::TaskMessage::kLeaving).leaving().reason() == "SIGTERM");
  CHECK(bench.coordinator.Next(v1::TaskMessage::kDropped).dropped().reason() == "draining");
  bench.worker->Stop("again");
}

TEST_CASE(
    "a worker serves its logs over the session and answers health checks, and stops even if never "
    "registered") {
  Bench bench([](const v1::Hello&) { return Coordinator::Registered("5"); });
  REQUIRE(bench.coordinator.Next(v1::TaskMessage::kHeartbeat).has_heartbeat());
  v1::CoordinatorMessage read;
  read.mutable_read_logs()->set_request_id(3);
  bench.coordinator.Send(read);
  const v1::LogLines lines = bench.coordinator.Next(v1::TaskMessage::kLogLines).log_lines();
  CHECK(lines.request_id() == 3);
  CHECK(lines.end());
  CHECK(lines.lines_size() > 0);
  const auto channel = bench.transport->Dial({bench.worker->address(), ""}, {});
  REQUIRE(channel.ok());
  CHECK(transport::UnaryAndWait(**channel, "/grpc.health.v1.Health/Check", "", 5s).value() ==
        std::string("\x08\x01", 2));
  CHECK(transport::UnaryAndWait(**channel, "/other", "", 5s).status().code() ==
        absl::StatusCode::kUnimplemented);
}

TEST_CASE("a worker is ready while its session is open, until it leaves") {
  bool registers = true;  // read on the transport's thread, set while no session is open
  Bench bench([&](const v1::Hello&) {
    if (registers) return Coordinator::Registered("5");
    v1::CoordinatorMessage message;
    message.mutable_rejected()->set_kind("not_active");
    message.mutable_rejected()->set_message("try again");
    return message;
  });
  REQUIRE(bench.coordinator.Next(v1::TaskMessage::kHeartbeat).has_heartbeat());
  CHECK(bench.NotReady() == "ok\n");
  registers = false;
  bench.coordinator.Cut();
  for (int i = 0; i < 3; ++i) REQUIRE(bench.coordinator.Next(v1::TaskMessage::kHello).has_hello());
  CHECK_THAT(bench.NotReady(), Catch::Equals("not ready: session: waiting for the coordinator: "
                                             "reason=not_active: try again\n"));
  CHECK(bench.health.Ask(health::Question::kLive).ok);
  bench.worker->Stop("SIGTERM");
  CHECK_THAT(bench.NotReady(),
             Catch::Contains("not ready: fit: this worker leaves: reason=SIGTERM\n"));
}

}  // namespace
}  // namespace evergrad::worker
