#include "ps_server/server.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/runtime/executor.h"
#include "evergrad/v1/session.pb.h"
#include "ps_server/service/control.h"
#include "ps_server/service/shard_host.h"

namespace evergrad::ps_server {
namespace {

// grpc.health.v1.HealthCheckResponse{status: SERVING}.
constexpr absl::string_view kHealthMethod = "/grpc.health.v1.Health/Check";
constexpr absl::string_view kServing("\x08\x01", 2);

// The name of the socket must not collide with a server of another cluster or of another life in the same folder.
std::string SocketPath(const Config& config, std::uint64_t unique) {
  if (config.unix_dir.empty()) return "";
  return absl::StrCat(config.unix_dir, "/ps-server-", config.index, "-", absl::Hex(unique & 0xffffffff), ".sock");
}

}  // namespace

struct Server::Impl {
  Dependencies dependencies;
  Config config;
  std::vector<std::unique_ptr<runtime::ThreadExecutor>> executors;
  std::unique_ptr<runtime::ThreadExecutor> control_executor;
  std::unique_ptr<ShardHost> host;
  std::unique_ptr<Control> control;                // control executor
  std::unique_ptr<client::SessionClient> session;  // control executor
  std::unique_ptr<SnapshotWriter> writer;
  std::unique_ptr<Restorer> restorer;
  std::unique_ptr<transport::Server> server;
  Identity identity;
  std::int64_t started_ms = 0;
  bool stopped = false;

  // Scraped from the exporter's thread, possibly before the server is bound or after it is gone.
  struct Counted {
    Mutex mu;
    transport::Server* server ABSL_GUARDED_BY(mu) = nullptr;
    transport::Server::Stats Read() {
      MutexLock lock(&mu);
      return server == nullptr ? transport::Server::Stats{} : server->stats();
    }
  };
  std::shared_ptr<Counted> counted = std::make_shared<Counted>();  // shared with the callbacks of the registry, which outlives us

  void AddMetrics(const transport::ServerOptions& limits) {
    metrics::Registry& registry = *dependencies.registry;
    using Stats = transport::Server::Stats;
    const auto gauge = [&](absl::string_view name, absl::string_view help, std::uint64_t Stats::*field) {
      registry.AddCallbackGauge(name, help, {}, [counted = counted, field] { return static_cast<double>(counted->Read().*field); });
    };
    // Every `_max` setting: how full it is, what it allows, what it has refused.
    const auto bound = [&](const std::string& name, absl::string_view help, std::uint64_t value, std::uint64_t Stats::*current,
                           std::uint64_t Stats::*refused) {
      const std::string prefix = absl::StrCat("evergrad_ps_server_", name);
      if (current != nullptr) gauge(prefix + "_current", help, current);
      registry.GetGauge(prefix + "_limit", absl::StrCat(help, ": limit")).Set(static_cast<double>(value));
      gauge(prefix + "_refused_total", absl::StrCat(help, ": refused for the limit"), refused);
    };
    bound("budget_bytes", "Granted payload in flight", limits.budget_bytes_max, &Stats::budget_used, &Stats::budget_refused);
    bound("small_reserve_bytes", "Reserve for small requests", limits.small_reserve_bytes_max, &Stats::small_used, &Stats::small_refused);
    bound("peer_small_bytes", "Share of that reserve of the worker that uses most", limits.peer_small_bytes_max, &Stats::peer_small_used,
          &Stats::peer_small_refused);
    bound("frame_bytes", "Largest frame that arrived or was answered", limits.frame_bytes_max, nullptr, &Stats::frame_refused);
    bound("streams", "Connections", limits.streams_max, &Stats::streams, &Stats::streams_refused);
    registry.AddCallbackGauge("evergrad_ps_server_frame_bytes_current", "Largest frame that arrived or was answered", {},
                              [largest = host->largest_frame()] { return static_cast<double>(largest->load(std::memory_order_relaxed)); });
    gauge("evergrad_ps_server_budget_bytes_waiting", "Announced payload that waits for a grant", &Stats::budget_waiting);
    gauge("evergrad_ps_server_refused_total", "Requests and streams refused for any limit", &Stats::refused_total);
    gauge("evergrad_ps_server_granted_total", "Requests that were granted", &Stats::granted_total);
    gauge("evergrad_ps_server_malformed_streams_total", "Streams ended for a malformed message", &Stats::malformed_total);
    gauge("evergrad_ps_server_received_bytes_total", "Bytes received on data streams", &Stats::bytes_received);
    gauge("evergrad_ps_server_sent_bytes_total", "Bytes sent on data streams", &Stats::bytes_sent);
  }

  transport::Handlers MakeHandlers() {
    transport::Handlers handlers;
    handlers.unary = [](const transport::PeerInfo&, absl::string_view method, std::string, std::unique_ptr<transport::UnaryResponder> responder) {
      if (method == kHealthMethod) return responder->Answer(std::string(kServing));
      responder->Answer(absl::UnimplementedError(absl::StrCat("unknown method: ", method.substr(0, 200))));
    };
    handlers.stream = [](const transport::PeerInfo&, absl::string_view,
                         std::shared_ptr<transport::MessageStream>) -> std::optional<transport::MessageStreamEvents> {
      return std::nullopt;  // workers use data streams, the coordinator is dialed by us
    };
    handlers.data = [host = host.get()](const transport::PeerInfo&, transport::ReceivedFrame frame,
                                        std::unique_ptr<transport::DataResponder> responder) {
      host->Handle(std::move(frame), std::move(responder));
    };
    return handlers;
  }

  v1::Hello MakeHello() {
    v1::Hello hello;
    hello.set_role(v1::ROLE_PS_SERVER);
    hello.set_identity(config.index);
    hello.set_process_uid(dependencies.process_uid);
    hello.mutable_endpoint()->set_address(identity.advertised_address);
    hello.mutable_endpoint()->set_unix_path(server->unix_path());
    hello.set_started_ms(started_ms);
    client::FillHello(identity, &hello);
    control->FillHello(&hello);
    return hello;
  }

  v1::Heartbeat MakeHeartbeat() {
    v1::Heartbeat heartbeat;
    *heartbeat.mutable_server() = control->Progress();
    const transport::Server::Stats stats = server->stats();
    heartbeat.mutable_server()->set_bytes_sent(stats.bytes_sent);
    heartbeat.mutable_server()->set_bytes_received(stats.bytes_received);
    return heartbeat;
  }
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { Stop("destroyed"); }

absl::StatusOr<std::unique_ptr<Server>> Server::Listen(const Dependencies& dependencies, const Config& config,
                                                       transport::ServerOptions server_options) {
  auto impl = std::make_unique<Impl>();
  impl->dependencies = dependencies;
  impl->config = config;
  impl->started_ms = dependencies.clock->WallMillis();
  server_options.budget_bytes_max = config.budget_bytes_max;
  server_options.small_reserve_bytes_max = config.small_reserve_bytes_max;
  server_options.peer_small_bytes_max = config.peer_small_bytes_max;
  server_options.frame_bytes_max = config.frame_bytes_max;
  server_options.streams_max = config.streams_max;
  server_options.data_peers = "worker";
  server_options.unix_path = SocketPath(config, dependencies.process_uid);

  ShardHost::Options host;
  for (std::uint32_t i = 0; i < config.executors; ++i) {
    impl->executors.push_back(std::make_unique<runtime::ThreadExecutor>(runtime::ThreadExecutor::Options{absl::StrCat("shards-", i)}));
    host.executors.push_back(impl->executors.back().get());
  }
  impl->control_executor = std::make_unique<runtime::ThreadExecutor>(runtime::ThreadExecutor::Options{"control"});
  host.registry = dependencies.registry;
  host.failpoints = dependencies.failpoints;
  host.frame_bytes_max = config.frame_bytes_max;
  host.pool_bytes_max = config.pool_bytes_max;
  if (dependencies.failpoints != nullptr && dependencies.failpoints->IsArmed("ledger.off")) {
    host.mutant = fault::Mutant::kLedgerOff;
    dependencies.logger->Warning("the ledger is off (failpoint ledger.off): updates are applied as often as they arrive");
  }
  impl->host = std::make_unique<ShardHost>(std::move(host));
  SnapshotWriter::Options writer;
  writer.files = dependencies.files;
  writer.registry = dependencies.registry;
  writer.clock = dependencies.clock;
  writer.failpoints = dependencies.failpoints;
  writer.pool = impl->host->pool();
  writer.bytes_max = config.snapshot_bytes_max;
  impl->writer = std::make_unique<SnapshotWriter>(std::move(writer));
  Restorer::Options restorer;
  restorer.files = dependencies.files;
  restorer.registry = dependencies.registry;
  restorer.clock = dependencies.clock;
  restorer.failpoints = dependencies.failpoints;
  restorer.pool = impl->host->pool();
  impl->restorer = std::make_unique<Restorer>(std::move(restorer));

  impl->AddMetrics(server_options);
  auto server = dependencies.transport->Listen(server_options, impl->MakeHandlers());
  if (!server.ok()) return server.status();
  impl->server = *std::move(server);
  {
    MutexLock lock(&impl->counted->mu);
    impl->counted->server = impl->server.get();
  }
  dependencies.logger->SetTask(absl::StrCat("ps_server/", config.index));
  if (!config.unix_dir.empty()) {
    if (impl->server->unix_path().empty()) {
      dependencies.logger->Warning(absl::StrCat("no unix socket, TCP only: path is not usable, path=", server_options.unix_path,
                                                " bytes=", server_options.unix_path.size(), " max=107"));
    } else {
      dependencies.logger->Info(absl::StrCat("listening on unix socket ", impl->server->unix_path()));
    }
  }
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

std::string Server::address() const { return impl_->server->address(); }
std::string Server::unix_path() const { return impl_->server->unix_path(); }

void Server::Join(Identity identity, client::SessionClient::Options session_options, std::function<void(const std::string&)> on_refused) {
  Impl* impl = impl_.get();
  impl->identity = std::move(identity);
  session_options.coordinator_address = impl->identity.coordinator_address;
  session_options.jitter_seed = impl->dependencies.process_uid;
  impl->control_executor->Post([impl, session_options = std::move(session_options), on_refused = std::move(on_refused)]() mutable {
    Control::Options control;
    control.executor = impl->control_executor.get();
    control.host = impl->host.get();
    control.logger = impl->dependencies.logger;
    control.clock = impl->dependencies.clock;
    control.writer = impl->writer.get();
    control.restorer = impl->restorer.get();
    control.send = [impl](v1::TaskMessage message) { return impl->session != nullptr && impl->session->Send(std::move(message)); };
    impl->control = std::make_unique<Control>(std::move(control));

    client::SessionClient::Events events;
    events.make_hello = [impl] { return impl->MakeHello(); };
    events.make_heartbeat = [impl] { return impl->MakeHeartbeat(); };
    events.on_registered = [impl](const v1::Registered& registered) { impl->control->OnRegistered(registered); };
    events.on_message = [impl](const v1::CoordinatorMessage& message) {
      if (message.has_report_shards()) {
        // A report comes with the counters of its moment: a job may be over before the next heartbeat is due.
        v1::TaskMessage beat;
        *beat.mutable_heartbeat() = impl->MakeHeartbeat();
        impl->session->Send(std::move(beat));
      }
      impl->control->OnMessage(message);
    };
    events.on_lost = [impl](absl::string_view) { impl->control->OnLost(); };
    events.on_rejected = [on_refused = std::move(on_refused)](const v1::Rejected& rejected) {
      if (rejected.exit()) on_refused(rejected.kind());
    };
    impl->session = std::make_unique<client::SessionClient>(impl->dependencies.transport, impl->control_executor.get(), impl->dependencies.logger,
                                                            std::move(session_options), std::move(events));
    impl->session->Start();
  });
}

void Server::Stop(absl::string_view reason) {
  if (std::exchange(impl_->stopped, true)) return;
  Impl* impl = impl_.get();
  impl->control_executor->Post([impl, reason = std::string(reason)] {
    if (impl->session == nullptr) return;
    v1::TaskMessage leaving;
    leaving.mutable_leaving()->set_reason(reason);
    impl->session->Send(std::move(leaving));
    impl->session->Stop();
  });
  // In this order nobody calls what is gone: no request after the server, no shard's callback after the executors, no file's answer after the
  // writer and the restorer (what they post to an executor that has ended is dropped).
  runtime::Event said;
  impl->control_executor->Post([&said] { said.Set(); });
  said.Wait();
  {
    MutexLock lock(&impl->counted->mu);
    impl->counted->server = nullptr;
  }
  impl->server->Shutdown();
  for (const auto& executor : impl->executors) executor->Shutdown();
  impl->control_executor->Shutdown();
  impl->session.reset();
  impl->writer.reset();
  impl->restorer.reset();
  impl->control.reset();
}

}  // namespace evergrad::ps_server
