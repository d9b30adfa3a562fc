#include "worker/worker.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/client/parameter_client.h"
#include "common/client/protocol.h"
#include "common/client/said_once.h"
#include "common/daemon/exit_codes.h"
#include "common/runtime/executor.h"
#include "evergrad/v1/session.pb.h"
#include "worker/runner/runner.h"

namespace evergrad::worker {
namespace {

// The time limit of a drain. This limit is longer than the sum of the runner's own waits, and
// shorter than the 10 s in which Stop returns.
constexpr std::chrono::milliseconds kDrainMax{8000};

// Returns the properties of this host that affect the bits of results. The instruction set selects
// the kernels, and the number of threads determines how a sum is divided.
std::string ComputeName(const Config& config) {
  const char* const isa = __builtin_cpu_supports("avx512f") ? "avx512"
                          : __builtin_cpu_supports("avx2")  ? "avx2"
                                                            : "baseline";
  // Two GPUs of one model give the same results, so the ordinal is omitted.
  const absl::string_view device =
      absl::StartsWith(config.device, "gpu:")
          ? absl::string_view(config.device_text).substr(config.device.size() + 1)
          : absl::string_view("cpu");
  return absl::StrCat(device, " threads=", config.threads, " isa=", isa);
}

}  // namespace

int ExitCodeOf(absl::string_view kind) {
  return kind == kDeviceLost ? daemon::kExitDevice : daemon::ExitCodeOfRefusal(kind);
}

struct Worker::Impl {
  Dependencies dependencies;
  Config config;
  Identity identity;
  // The configured name, or else a number from the coordinator. Only the control executor uses the
  // name.
  std::string name;
  std::int64_t started_ms = 0;
  std::unique_ptr<transport::Server> server;  // for health checks
  std::unique_ptr<runtime::ThreadExecutor> control, compute;
  // The registry's callbacks share this client, through weak pointers.
  std::shared_ptr<client::ParameterClient> client;
  std::unique_ptr<Runner> runner;                  // control executor
  std::unique_ptr<client::SessionClient> session;  // control executor
  std::string last_rejection;                      // control executor
  std::string leaving;           // control executor; the reason to stop, or "" if there is none
  bool warned_of_roots = false;  // control executor
  bool stopped = false;
  health::Condition session_open, fit;

  // Listen calls this function before any executor has a task.
  void AddToHealth() {
    health::Health* const health = dependencies.health;
    if (health == nullptr) return;
    // The compute executor is not watched, because a step or a user's function may take any time.
    health->liveness().Watch("control", control.get());
    session_open =
        health->readiness().Add("session", "this worker has not dialed the coordinator yet");
    fit = health->readiness().Add("fit", "");
    fit.Meet();
  }

  v1::Hello MakeHello() {
    v1::Hello hello;
    hello.set_role(v1::ROLE_WORKER);
    hello.set_identity(name);
    hello.set_numbered(config.name.empty() && !name.empty());
    hello.set_process_uid(dependencies.process_uid);
    hello.set_started_ms(started_ms);
    client::FillHello(identity, &hello);
    hello.set_compute(ComputeName(config));
    hello.set_leaving(leaving);
    runner->FillHello(&hello);
    return hello;
  }

  void OnRegistered(const v1::Registered& registered) {
    if (name != registered.identity()) {
      name = registered.identity();
      dependencies.logger->SetTask(absl::StrCat("worker/", name));
    }
    last_rejection.clear();
    session_open.Meet();
    // The coordinator may listen for other machines even if this worker reaches it on loopback.
    // Users of other machines may then submit jobs.
    const fs::Roots roots = RootsOf(config, identity.local_only && registered.local_only());
    if (!roots.everything() && roots.folders().empty() && !warned_of_roots) {
      warned_of_roots = true;
      dependencies.logger->Warning(
          "this worker was started without --data-root: it refuses jobs with data files, and "
          "accepts jobs with synthetic data or functions");
    }
    runner->SetDataRoots(roots);
    runner->SetIdentity(name);
    runner->OnRegistered(registered);
  }

  void AddMetrics() {
    metrics::Registry& registry = *dependencies.registry;
    using Stats = client::ParameterClient::Stats;
    const auto count = [&](absl::string_view metric, absl::string_view help,
                           std::uint64_t Stats::*field) {
      registry.AddCallbackCounter(metric, help, {},
                                  [weak = std::weak_ptr<client::ParameterClient>(client), field] {
                                    const auto alive = weak.lock();
                                    return alive == nullptr ? 0 : alive->stats().*field;
                                  });
    };
    count("evergrad_worker_sent_bytes_total", "Bytes of requests to servers", &Stats::bytes_sent);
    count("evergrad_worker_received_bytes_total", "Bytes of answers from servers",
          &Stats::bytes_received);
    count("evergrad_worker_calls_total", "Requests to servers", &Stats::calls);
    count("evergrad_worker_call_failures_total", "Requests to servers that ended without an answer",
          &Stats::failures);
    registry.GetGauge("evergrad_worker_threads", "Number of compute threads").Set(config.threads);
  }

  // Join runs the next three functions on the control executor.
  void MakeClient(transport::ChannelOptions to_servers, const std::string& called) {
    to_servers.lane_ring_bytes = config.lane_bytes;
    to_servers.on_lane = [logger = dependencies.logger,
                          said = std::make_shared<client::SaidOnce>()](const absl::Status& status) {
      const std::string text =
          status.ok() ? "pushes to and pulls from a server on this host go through shared memory"
                      : absl::StrCat(
                            "pushes to and pulls from a server on this host go through a socket, "
                            "not through shared memory: reason=",
                            status.message());
      if (said->First(text)) logger->Info(text);
    };
    client = std::make_shared<client::ParameterClient>(
        dependencies.transport, std::move(to_servers), absl::StrCat("worker/", called),
        identity.host_id);
  }

  void MakeRunner(std::uint64_t message_bytes_max,
                  const std::function<void(const std::string&)>& on_refused) {
    Runner::Environment environment;
    environment.control = control.get();
    environment.compute = compute.get();
    environment.client = client.get();
    environment.logger = dependencies.logger;
    environment.registry = dependencies.registry;
    environment.failpoints = dependencies.failpoints;
    environment.clock = dependencies.clock;
    environment.functions = identity.functions;
    environment.more_job_kinds = identity.more_job_kinds;
    environment.send = [this](v1::TaskMessage message) {
      return session->Send(std::move(message));
    };
    environment.on_device_lost = [this, on_refused,
                                  lost = false](const absl::Status& status) mutable {
      if (std::exchange(lost, true)) return;
      dependencies.logger->Error(
          absl::StrCat("this worker exits to be restarted, because its device has failed: code=",
                       daemon::kExitDevice, " cause=", status.message()));
      fit.Fail(absl::StrCat("the device of this worker has failed: cause=", status.message()));
      on_refused(kDeviceLost);
    };
    Runner::Options options;
    options.device = config.device;
    options.cuda_library = config.cuda_library;
    options.threads = static_cast<int>(config.threads);
    options.bind_threads = true;
    options.prefetch_batches_max = config.prefetch_batches_max;
    options.prefetch_bytes_max = config.prefetch_bytes_max;
    options.data_bytes_max = config.data_bytes_max;
    options.data_cache = dependencies.data_cache;
    options.data_roots = RootsOf(
        // `local_only` is false until the coordinator has stated whether other users may submit
        // jobs.
        config, /*local_only=*/false);
    options.step_records_max = config.step_records_max;
    options.call_deadline = config.call_deadline;
    options.skip_not_finite = config.not_finite == "skip";
    options.message_bytes_max = message_bytes_max;
    options.host = identity.host;
    runner = std::make_unique<Runner>(std::move(environment), std::move(options));
    runner->SetIdentity(name);
  }

  client::SessionClient::Events MakeEvents(std::function<void(const std::string&)> on_refused,
                                           std::function<void(const std::string&)> on_drain) {
    client::SessionClient::Events events;
    events.make_hello = [this] { return MakeHello(); };
    events.make_heartbeat = [this] {
      v1::Heartbeat heartbeat;
      *heartbeat.mutable_worker() = runner->Progress();
      return heartbeat;
    };
    events.on_registered = [this](const v1::Registered& registered) { OnRegistered(registered); };
    events.on_message = [this,
                         on_drain = std::move(on_drain)](const v1::CoordinatorMessage& message) {
      if (!message.has_drain()) return runner->OnMessage(message);
      dependencies.logger->Info(absl::StrCat("the coordinator asks this worker to leave: ",
                                             client::CleanText(message.drain().reason(), 200)));
      if (on_drain) on_drain(client::CleanText(message.drain().reason(), 200));
    };
    events.on_waiting = [this](absl::string_view why) {
      session_open.Fail(absl::StrCat("waiting for the coordinator: reason=", why));
    };
    events.on_lost = [this](absl::string_view why) {
      session_open.Fail(absl::StrCat("the session with the coordinator has ended: reason=", why));
      dependencies.logger->Info(
          "this worker keeps its work, and connects to the coordinator again");
      runner->OnLost();
    };
    events.on_rejected = [this, on_refused = std::move(on_refused)](const v1::Rejected& rejected) {
      if (!rejected.exit()) return;
      dependencies.logger->Error(absl::StrCat(
          "this worker exits, because the coordinator has refused it: kind=", rejected.kind(),
          " code=", ExitCodeOf(rejected.kind()), " message=", rejected.message()));
      on_refused(rejected.kind());
    };
    return events;
  }
};

Worker::Worker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Worker::~Worker() { Stop("destroyed"); }

std::string Worker::address() const { return impl_->server->address(); }

absl::StatusOr<std::unique_ptr<Worker>> Worker::Listen(const Dependencies& dependencies,
                                                       const Config& config,
                                                       transport::ServerOptions server_options) {
  auto impl = std::make_unique<Impl>();
  impl->dependencies = dependencies;
  impl->config = config;
  impl->name = config.name;
  impl->started_ms = dependencies.clock->WallMillis();
  transport::Handlers handlers;
  // A worker accepts no unary calls and no streams. The transport itself answers health checks.
  handlers.stream = [](const transport::PeerInfo&, absl::string_view,
                       const std::shared_ptr<transport::MessageStream>&)
      -> std::optional<transport::MessageStreamEvents> {
    return std::nullopt;  // a worker dials and accepts no streams
  };
  handlers.data = [](const transport::PeerInfo&, transport::ReceivedFrame,
                     std::unique_ptr<transport::DataResponder> responder) {
    responder->Fail(absl::UnimplementedError("a worker holds no shards"));
  };
  auto server = dependencies.transport->Listen(server_options, std::move(handlers));
  if (!server.ok()) return server.status();
  impl->server = *std::move(server);
  impl->control =
      std::make_unique<runtime::ThreadExecutor>(runtime::ThreadExecutor::Options{"control"});
  impl->compute =
      std::make_unique<runtime::ThreadExecutor>(runtime::ThreadExecutor::Options{"compute"});
  impl->AddToHealth();
  return std::unique_ptr<Worker>(new Worker(std::move(impl)));
}

void Worker::Join(Identity identity, client::SessionClient::Options session,
                  std::function<void(const std::string&)> on_refused,
                  std::function<void(const std::string&)> on_drain) {
  Impl* impl = impl_.get();  // the executor is shut down before `impl` is destroyed
  impl->identity = std::move(identity);
  impl->control->Post([impl, session = std::move(session), on_refused = std::move(on_refused),
                       on_drain = std::move(on_drain)]() mutable {
    const std::string called = impl->name.empty()
                                   ? absl::StrCat(impl->identity.host, ":", impl->identity.pid)
                                   : impl->name;
    impl->dependencies.logger->SetTask(absl::StrCat("worker/", called));
    impl->MakeClient(session.channel, called);
    impl->AddMetrics();
    impl->MakeRunner(session.channel.message_bytes_max, on_refused);
    session.jitter_seed = impl->dependencies.process_uid;
    impl->session = std::make_unique<client::SessionClient>(
        impl->dependencies.transport, impl->control.get(), impl->dependencies.logger,
        std::move(session), impl->MakeEvents(std::move(on_refused), std::move(on_drain)));
    impl->session->Start();
  });
}

void Worker::Stop(absl::string_view reason) {
  if (std::exchange(impl_->stopped, true)) return;
  Impl* impl = impl_.get();
  impl->fit.Fail(absl::StrCat("this worker leaves: reason=", reason));
  // The event is shared with the drain, which may outlive the wait.
  const auto drained = std::make_shared<runtime::WaitableEvent>();
  const auto say = [impl, reason = std::string(reason)] {
    impl->leaving = reason;
    v1::TaskMessage leaving;
    leaving.mutable_leaving()->set_reason(reason);
    impl->session->Send(std::move(leaving));
  };
  // The Leaving message is sent first. The coordinator then grants no new work to this worker, and
  // grants the returned work to other workers at once.
  impl->control->Post([impl, drained, say] {
    if (impl->session != nullptr) say();
    if (impl->runner == nullptr) return drained->Set();
    impl->runner->Drain([drained] { drained->Set(); });
  });
  if (!drained->WaitFor(kDrainMax))
    impl->dependencies.logger->Warning(
        "this worker exits before all of its work was handed back, because the time limit has "
        "passed");
  runtime::WaitableEvent said;
  impl->control->Post([impl, &said, say] {
    if (impl->session != nullptr) {
      say();  // once more, because a new session may have begun
      impl->session->Stop();
    }
    said.Set();
  });
  said.Wait();
  // This order avoids calls into destroyed objects. The executors are shut down
  // first, because functions that they run use the client, the session and the runner.
  impl->server->Shutdown();
  impl->compute->Shutdown();
  impl->control->Shutdown();
  impl->client.reset();
  impl->session.reset();
  impl->runner.reset();
}

}  // namespace evergrad::worker
