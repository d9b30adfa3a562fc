#include "ps_server/server.h"

#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/client/parameter_client.h"
#include "common/client/protocol.h"
#include "common/client/said_once.h"
#include "common/runtime/executor.h"
#include "evergrad/v1/session.pb.h"
#include "ps_server/service/control.h"
#include "ps_server/service/index_taken.h"
#include "ps_server/service/lifeline.h"
#include "ps_server/service/shard_host.h"
#include "ps_server/unused_grants.h"

namespace evergrad::ps_server {
namespace {

// Longest wait of a drain for a session. A coordinator that restarts needs this time to start and
// to pass its start-up window.
constexpr std::chrono::milliseconds kDrainAloneMax{3000};
// Bytes of shared memory, in each direction, between this server and each server of this host from
// which it receives shards.
constexpr std::uint64_t kPeerLaneBytes = 2ull << 20;

// Returns a unique name for the socket, because servers of other clusters, or earlier processes of
// this cluster, may use the same folder.
std::string SocketPath(const Config& config, std::uint64_t unique) {
  if (config.unix_dir.empty()) return "";
  return absl::StrCat(config.unix_dir, "/ps-server-", config.index, "-",
                      absl::Hex(unique & 0xffffffff), ".sock");
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
  std::unique_ptr<Images> images;
  std::unique_ptr<client::ParameterClient> peers;  // other servers, whose shards move to this one
  std::unique_ptr<transport::Server> server;
  Identity identity;
  std::int64_t started_ms = 0;
  bool stopped = false;
  // Used on the control executor. The reason for leaving, or "".
  std::string leaving;
  // True from the coordinator's announcement that it stops until the next session begins.
  bool coordinator_stops = false;
  // The result of a drain, shared with the call of Drain that waits for it.
  struct Drained {
    runtime::WaitableEvent over;
    std::atomic<bool> handed_over{false};
  };
  std::shared_ptr<Drained> drained = std::make_shared<Drained>();
  std::unique_ptr<Lifeline> lifeline;  // control executor; set by Join
  // Used on the control executor. The uid of the process that held this identity and has ended.
  std::uint64_t ended_process = 0;
  // Used on the control executor. True once a session has begun since the start of this process.
  bool has_registered = false;
  health::Condition registration, restored;

  void EndDrain(bool handed_over) {
    drained->handed_over = handed_over;
    drained->over.Set();
  }
  // Runs on the control executor. Without a session no shard can be moved, so the drain ends after
  // kDrainAloneMax, or at once if there is no shard to move.
  void WaitForSession() {
    if (leaving.empty() || session == nullptr || session->registered()) return;
    if (control->Progress().shards() == 0) return EndDrain(true);
    if (coordinator_stops) return EndDrain(false);
    control_executor->PostAfter(kDrainAloneMax, [this] {
      if (session == nullptr || session->registered()) return;
      dependencies.logger->Warning(
          "cannot move the shards of this server: the coordinator is disconnected");
      EndDrain(false);
    });
  }
  void SayLeaving(const std::string& reason, bool drains) {
    v1::TaskMessage message;
    message.mutable_leaving()->set_reason(reason);
    message.mutable_leaving()->set_drains(drains);
    session->Send(std::move(message));
  }

  // The exporter's thread reads this struct, possibly before the server is bound or after the
  // server is destroyed.
  struct Counted {
    Mutex mu;
    transport::Server* server ABSL_GUARDED_BY(mu) = nullptr;
    transport::Server::Stats Read() {
      MutexLock lock(&mu);
      return server == nullptr ? transport::Server::Stats{} : server->stats();
    }
  };
  // Shared with the callbacks of the registry, which outlives this object.
  std::shared_ptr<Counted> counted = std::make_shared<Counted>();

  void AddMetrics(const transport::ServerOptions& limits) {
    metrics::Registry& registry = *dependencies.registry;
    using Stats = transport::Server::Stats;
    const auto gauge = [&](absl::string_view name, absl::string_view help,
                           std::uint64_t Stats::*field) {
      registry.AddCallbackGauge(name, help, {}, [counted = counted, field] {
        return static_cast<double>(counted->Read().*field);
      });
    };
    const auto count = [&](absl::string_view name, absl::string_view help,
                           std::uint64_t Stats::*field) {
      registry.AddCallbackCounter(name, help, {},
                                  [counted = counted, field] { return counted->Read().*field; });
    };
    // Each setting whose name ends in `_max` has metrics for its present use, its limit and its
    // refusals.
    const auto bound = [&](const std::string& name, absl::string_view help, std::uint64_t value,
                           std::uint64_t Stats::*current, std::uint64_t Stats::*refused) {
      const std::string prefix = absl::StrCat("evergrad_ps_server_", name);
      if (current != nullptr) gauge(prefix + "_current", help, current);
      registry.GetGauge(prefix + "_limit", absl::StrCat(help, ": limit"))
          .Set(static_cast<double>(value));
      count(prefix + "_refused_total", absl::StrCat(help, ": number of refusals at the limit"),
            refused);
    };
    bound("budget_bytes", "Bytes of granted requests and answers in flight",
          limits.budget_bytes_max, &Stats::budget_used, &Stats::budget_refused);
    bound("small_reserve_bytes", "Used bytes of the memory that is reserved for small requests",
          limits.small_reserve_bytes_max, &Stats::small_used, &Stats::small_refused);
    bound("peer_small_bytes",
          "Largest part of the memory reserved for small requests that one worker uses",
          limits.peer_small_bytes_max, &Stats::peer_small_used, &Stats::peer_small_refused);
    bound("frame_bytes", "Size of the largest request or answer so far", limits.frame_bytes_max,
          nullptr, &Stats::frame_refused);
    bound("streams", "Connections of workers and servers", limits.streams_max, &Stats::streams,
          &Stats::streams_refused);
    bound("lane_bytes", "Memory shared with peers of this host", limits.lane_bytes_max,
          &Stats::lane_bytes, &Stats::lane_bytes_refused);
    registry.AddCallbackGauge(
        "evergrad_ps_server_frame_bytes_current", "Size of the largest request or answer so far",
        {}, [largest = host->largest_frame()] {
          return static_cast<double>(largest->load(std::memory_order_relaxed));
        });
    gauge("evergrad_ps_server_budget_bytes_waiting",
          "Bytes of requests that clients have announced and may not send yet, because the "
          "server's memory budget is in use",
          &Stats::budget_waiting);
    count("evergrad_ps_server_refused_total",
          "Requests and streams that were refused because of a limit", &Stats::refused_total);
    count("evergrad_ps_server_granted_total",
          "Requests for which the server has granted a part of its memory budget",
          &Stats::granted_total);
    count("evergrad_ps_server_malformed_streams_total",
          "Streams that were ended because of a malformed message", &Stats::malformed_total);
    count("evergrad_ps_server_received_bytes_total", "Bytes received on data streams",
          &Stats::bytes_received);
    count("evergrad_ps_server_sent_bytes_total", "Bytes sent on data streams", &Stats::bytes_sent);
  }

  transport::Handlers MakeHandlers() {
    transport::Handlers handlers;
    // The handlers accept no unary calls, because the transport itself answers health checks.
    handlers.stream = [](const transport::PeerInfo&, absl::string_view,
                         const std::shared_ptr<transport::MessageStream>&)
        -> std::optional<transport::MessageStreamEvents> {
      return std::nullopt;  // workers use data streams, and this server dials the coordinator
    };
    handlers.data = [host = host.get()](const transport::PeerInfo& peer,
                                        transport::ReceivedFrame frame,
                                        std::unique_ptr<transport::DataResponder> responder) {
      host->Handle(std::move(frame), std::move(responder), peer.certificate_task);
    };
    return handlers;
  }

  v1::Hello MakeHello() {
    v1::Hello hello;
    hello.set_role(v1::ROLE_PS_SERVER);
    hello.set_identity(config.index);
    hello.set_process_uid(dependencies.process_uid);
    hello.mutable_endpoint()->set_unix_path(server->unix_path());
    hello.mutable_endpoint()->set_budget_bytes_max(config.budget_bytes_max);
    hello.mutable_endpoint()->set_frame_bytes_max(config.frame_bytes_max);
    hello.set_started_ms(started_ms);
    client::FillHello(identity, &hello);
    control->FillHello(&hello);
    hello.set_lifeline(lifeline->place());
    hello.set_ended_process(ended_process);
    hello.set_leaving(leaving);
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

  void SetLimits(transport::ServerOptions* options) const {
    options->budget_bytes_max = config.budget_bytes_max;
    options->small_reserve_bytes_max = config.small_reserve_bytes_max;
    options->peer_small_bytes_max = config.peer_small_bytes_max;
    options->frame_bytes_max = config.frame_bytes_max;
    options->streams_max = config.streams_max;
    options->data_peers = "worker,ps_server";
    options->lane_bytes_max = config.lane_bytes_max;
    options->on_lane = [logger = dependencies.logger, said = std::make_shared<client::SaidOnce>()](
                           const std::string& address, const absl::Status& status) {
      // A peer has no lane for one of several reasons. One of them is that the peer is on another
      // host. Each reason is logged once.
      if (status.ok() || !said->First(std::string(status.message()))) return;
      logger->Info(absl::StrCat(
          "pushes and pulls of a peer go through a socket and not through shared memory: peer=",
          address, " reason=", status.message()));
    };
    options->on_unused_grants =
        [unused = std::make_shared<UnusedGrants>(dependencies.logger, dependencies.registry,
                                                 dependencies.clock)](
            const std::string& peer, std::uint64_t grants, std::uint64_t bytes, bool ended) {
          unused->Note(peer, grants, bytes, ended);
        };
    options->unix_path = SocketPath(config, dependencies.process_uid);
  }

  // Makes the executors and the host of the shards that they serve.
  void MakeHost() {
    ShardHost::Options options;
    for (std::uint32_t i = 0; i < config.executors; ++i) {
      executors.push_back(std::make_unique<runtime::ThreadExecutor>(
          runtime::ThreadExecutor::Options{absl::StrCat("shards-", i)}));
      options.executors.push_back(executors.back().get());
    }
    control_executor =
        std::make_unique<runtime::ThreadExecutor>(runtime::ThreadExecutor::Options{"control"});
    options.registry = dependencies.registry;
    options.failpoints = dependencies.failpoints;
    options.frame_bytes_max = config.frame_bytes_max;
    options.pool_bytes_max = config.pool_bytes_max;
    options.memory_bytes_max = config.memory_bytes_max;
    Images::Options kept;
    kept.registry = dependencies.registry;
    kept.failpoints = dependencies.failpoints;
    kept.bytes_max = config.snapshot_bytes_max;
    images = std::make_unique<Images>(kept);
    options.images = images.get();
    options.logger = dependencies.logger;
    options.clock = dependencies.clock;
    host = std::make_unique<ShardHost>(std::move(options));
  }

  // Called after MakeHost, because the writer and the restorer use the pool of the host.
  void MakeSnapshotFiles() {
    SnapshotWriter::Options writing;
    writing.files = dependencies.files;
    writing.registry = dependencies.registry;
    writing.clock = dependencies.clock;
    writing.failpoints = dependencies.failpoints;
    writing.pool = host->pool();
    writing.bytes_max = config.snapshot_bytes_max;
    writer = std::make_unique<SnapshotWriter>(std::move(writing));
    Restorer::Options restoring;
    restoring.files = dependencies.files;
    restoring.registry = dependencies.registry;
    restoring.clock = dependencies.clock;
    restoring.failpoints = dependencies.failpoints;
    restoring.pool = host->pool();
    restorer = std::make_unique<Restorer>(std::move(restoring));
  }

  // Called after MakeHost, before any executor has a task.
  void AddToHealth() {
    health::Health* const health = dependencies.health;
    if (health == nullptr) return;
    for (std::size_t i = 0; i < executors.size(); ++i)
      health->liveness().Watch(absl::StrCat("shards-", i), executors[i].get());
    health->liveness().Watch("control", control_executor.get());
    // Without a session, both conditions keep their state, because the shards continue to serve.
    registration =
        health->readiness().Add("registration", "this server has not dialed the coordinator yet");
    restored = health->readiness().Add("shards", "");
    restored.Meet();
  }

  void SayUnixSocket(const std::string& wanted) const {
    if (config.unix_dir.empty()) return;
    if (server->unix_path().empty()) {
      dependencies.logger->Warning(absl::StrCat(
          "the server uses TCP only, because the path of its unix socket is too long: path=",
          wanted, " bytes=", wanted.size(), " max=107"));
    } else {
      dependencies.logger->Info(absl::StrCat("listening on unix socket ", server->unix_path()));
    }
  }

  // Makes the objects that run on the control executor.
  void MakeControl() {
    Control::Options options;
    options.executor = control_executor.get();
    options.host = host.get();
    options.logger = dependencies.logger;
    options.clock = dependencies.clock;
    options.writer = writer.get();
    options.restorer = restorer.get();
    options.images = images.get();
    options.peers = peers.get();
    options.failpoints = dependencies.failpoints;
    options.restored = restored;
    options.send = [this](v1::TaskMessage message) {
      return session != nullptr && session->Send(std::move(message));
    };
    control = std::make_unique<Control>(std::move(options));
  }

  void OnMessage(const v1::CoordinatorMessage& message,
                 const std::function<void(const std::string&)>& on_drain) {
    switch (message.message_case()) {
      case v1::CoordinatorMessage::kDrain:
        dependencies.logger->Info(
            absl::StrCat("draining: ", client::CleanText(message.drain().reason(), 200)));
        if (on_drain) on_drain(client::CleanText(message.drain().reason(), 200));
        return;
      case v1::CoordinatorMessage::kDrained:
        if (!message.drained().cannot().empty())
          dependencies.logger->Warning(
              absl::StrCat("cannot move the shards of this server: ",
                           client::CleanText(message.drained().cannot(), 500)));
        if (!leaving.empty()) EndDrain(message.drained().cannot().empty());
        return;
      case v1::CoordinatorMessage::kStopping:
        coordinator_stops = true;
        if (!leaving.empty()) EndDrain(control->Progress().shards() == 0);
        return;
      default: break;
    }
    if (message.has_report_shards()) {
      // Current counters are sent with a report, because the job may end before the next heartbeat
      // is due.
      v1::TaskMessage beat;
      *beat.mutable_heartbeat() = MakeHeartbeat();
      session->Send(std::move(beat));
    }
    control->OnMessage(message);
  }

  client::SessionClient::Events MakeEvents(std::function<void(const std::string&)> on_refused,
                                           std::function<void(const std::string&)> on_drain) {
    client::SessionClient::Events events;
    events.make_hello = [this] { return MakeHello(); };
    events.make_heartbeat = [this] { return MakeHeartbeat(); };
    events.on_registered = [this](const v1::Registered& registered) {
      coordinator_stops = false;
      has_registered = true;
      registration.Meet();
      control->OnRegistered(registered);
    };
    events.on_message = [this,
                         on_drain = std::move(on_drain)](const v1::CoordinatorMessage& message) {
      OnMessage(message, on_drain);
    };
    events.on_waiting = [this](absl::string_view why) {
      if (!has_registered)
        registration.Fail(absl::StrCat("waiting for the coordinator: reason=", why));
    };
    events.on_lost = [this](absl::string_view) {
      control->OnLost();
      WaitForSession();
    };
    events.on_rejected = [this, on_refused = std::move(on_refused),
                          taken = IndexTaken(config.index, config.index_by_default, identity.host)](
                             const v1::Rejected& rejected) mutable {
      const IndexTaken::Verdict verdict = taken.Judge(rejected);
      if (!verdict.say.empty()) dependencies.logger->Error(verdict.say);
      if (lifeline->HasEnded(rejected.holder_process(), rejected.holder_lifeline()))
        ended_process = rejected.holder_process();
      if (!rejected.exit() && !verdict.ends) return;
      EndDrain(false);
      on_refused(rejected.kind());
    };
    return events;
  }
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { Stop("destroyed"); }

absl::StatusOr<std::unique_ptr<Server>> Server::Listen(const Dependencies& dependencies,
                                                       const Config& config,
                                                       transport::ServerOptions server_options) {
  auto impl = std::make_unique<Impl>();
  impl->dependencies = dependencies;
  impl->config = config;
  impl->started_ms = dependencies.clock->WallMillis();
  impl->SetLimits(&server_options);
  impl->MakeHost();
  impl->MakeSnapshotFiles();
  impl->AddToHealth();
  impl->AddMetrics(server_options);
  auto server = dependencies.transport->Listen(server_options, impl->MakeHandlers());
  if (!server.ok()) return server.status();
  impl->server = *std::move(server);
  {
    MutexLock lock(&impl->counted->mu);
    impl->counted->server = impl->server.get();
  }
  dependencies.logger->SetTask(absl::StrCat("ps_server/", config.index));
  impl->SayUnixSocket(server_options.unix_path);
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

std::string Server::address() const { return impl_->server->address(); }
std::string Server::unix_path() const { return impl_->server->unix_path(); }

void Server::Join(Identity identity, client::SessionClient::Options session_options,
                  std::function<void(const std::string&)> on_refused,
                  std::function<void(const std::string&)> on_drain) {
  Impl* impl = impl_.get();
  impl->identity = std::move(identity);
  session_options.coordinator_address = impl->identity.coordinator_address;
  session_options.jitter_seed = impl->dependencies.process_uid;
  transport::ChannelOptions to_peers = session_options.channel;
  if (impl->config.lane_bytes_max > 0) to_peers.lane_ring_bytes = kPeerLaneBytes;
  impl->peers =
      std::make_unique<client::ParameterClient>(impl->dependencies.transport, std::move(to_peers),
                                                absl::StrCat("ps_server/", impl->config.index));
  impl->control_executor->Post([impl, session_options = std::move(session_options),
                                on_refused = std::move(on_refused),
                                on_drain = std::move(on_drain)]() mutable {
    impl->MakeControl();
    impl->lifeline = std::make_unique<Lifeline>(impl->dependencies.process_uid);
    impl->session = std::make_unique<client::SessionClient>(
        impl->dependencies.transport, impl->control_executor.get(), impl->dependencies.logger,
        std::move(session_options), impl->MakeEvents(std::move(on_refused), std::move(on_drain)));
    impl->session->Start();
  });
}

bool Server::Drain(absl::string_view reason) {
  Impl* impl = impl_.get();
  const std::shared_ptr<Impl::Drained> drained = impl->drained;
  impl->control_executor->Post([impl, reason = std::string(reason)] {
    impl->leaving = reason;
    if (impl->session == nullptr) return impl->EndDrain(true);
    impl->SayLeaving(reason, /*drains=*/true);
    impl->WaitForSession();
  });
  if (!drained->over.WaitFor(impl->config.drain_max)) {
    impl->dependencies.logger->Warning(
        absl::StrCat("the server ends before all its shards are moved, because --drain-max has "
                     "passed: drain_max_ms=",
                     impl->config.drain_max.count()));
  }
  return drained->handed_over;
}

void Server::Stop(absl::string_view reason) {
  if (std::exchange(impl_->stopped, true)) return;
  Impl* impl = impl_.get();
  impl->control_executor->Post([impl, reason = std::string(reason)] {
    if (impl->session == nullptr) return;
    impl->SayLeaving(reason, /*drains=*/false);
    impl->session->Stop();
    impl->control->OnLost();  // ends the reading of shards that move here
  });
  // This order ensures that no callback uses a destroyed object. No request arrives after the end
  // of the transport server. No callback of a shard runs after the end of the executors. No answer
  // about a file follows after the end of the writer and the restorer. (An executor that has ended
  // drops posted tasks.)
  runtime::WaitableEvent said;
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
  // Ends the calls to other servers. A thread that reads a shard from another server then gets an
  // error.
  if (impl->peers != nullptr) impl->peers->Retain({});
  impl->writer.reset();
  impl->restorer.reset();
  impl->images.reset();
  impl->control.reset();
  impl->lifeline.reset();
  impl->peers.reset();
}

}  // namespace evergrad::ps_server
