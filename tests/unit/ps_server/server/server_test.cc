// Tests a whole server over the in-process transport. The test acts as the coordinator. As the
// server's client it uses the ParameterClient of a worker.
#include <catch2/catch.hpp>

#include <cstring>
#include <deque>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/client/parameter_client.h"
#include "common/client/protocol.h"
#include "common/random/philox.h"
#include "common/runtime/executor.h"
#include "ps_server/server.h"
#include "ps_server/service/lifeline.h"
#include "tests/support/inproc/inproc_transport.h"
#include "tests/support/memory_files/memory_file_system.h"
#include "tests/support/skip.h"

namespace evergrad::ps_server {
namespace {

using namespace std::chrono_literals;
using Floats = std::vector<float>;

constexpr std::uint64_t kJob = 77;
constexpr ShardEpoch kEpoch{1, 5};
constexpr MapVersion kStart{1, 2};

// A fake coordinator that accepts sessions, answers each Hello, and keeps all messages that it
// receives.
class Coordinator {
 public:
  // `answer(n)` returns the answer to Hello number n, counted from 0.
  Coordinator(transport::Transport* transport, const std::string& name,
              std::function<v1::CoordinatorMessage(int)> answer = nullptr)
      : answer_(answer ? std::move(answer) : [](int) { return Registered(1); }) {
    transport::ServerOptions options;
    options.listen = name;
    transport::Handlers handlers;
    handlers.stream = [this](const transport::PeerInfo&, absl::string_view method,
                             std::shared_ptr<transport::MessageStream> stream) {
      std::optional<transport::MessageStreamEvents> events;
      if (method != client::kSessionMethod) return events;
      MutexLock lock(&mu_);
      stream_ = stream;
      events.emplace();
      events->on_message = [this, stream](std::string bytes) { OnBytes(*stream, bytes); };
      events->on_end = [](absl::Status) {};
      return events;
    };
    auto server = transport->Listen(options, std::move(handlers));
    REQUIRE(server.ok());
    server_ = *std::move(server);
  }
  ~Coordinator() { server_->Shutdown(); }

  static v1::CoordinatorMessage Registered(std::uint64_t term) {
    v1::CoordinatorMessage message;
    v1::Registered* registered = message.mutable_registered();
    registered->set_term(term);
    registered->set_life_id(term);
    registered->mutable_registration()->set_term(term);
    registered->mutable_registration()->set_n(1);
    registered->set_identity("3");
    registered->set_lease_ms(30000);
    registered->set_heartbeat_ms(10);
    return message;
  }

  std::string address() const { return server_->address(); }
  void Send(const v1::CoordinatorMessage& message) {
    std::shared_ptr<transport::MessageStream> stream;
    {
      MutexLock lock(&mu_);
      stream = stream_;
    }
    SendOn(*stream, message);
  }
  void CutSession() {
    std::shared_ptr<transport::MessageStream> stream;
    {
      MutexLock lock(&mu_);
      stream = std::move(stream_);
    }
    stream->Close();
  }
  // Returns the next message of this kind, and drops the messages of other kinds before it.
  v1::TaskMessage Next(v1::TaskMessage::MessageCase kind) {
    MutexLock lock(&mu_);
    for (;;) {
      for (auto it = received_.begin(); it != received_.end(); ++it) {
        if (it->message_case() != kind) continue;
        v1::TaskMessage message = std::move(*it);
        received_.erase(it);
        return message;
      }
      if (!changed_.WaitFor(&mu_, 20s)) {
        lost_ = true;
        return {};
      }
    }
  }
  bool waited_in_vain() {
    MutexLock lock(&mu_);
    return lost_;
  }

 private:
  static void SendOn(transport::MessageStream& stream, const v1::CoordinatorMessage& message) {
    v1::CoordinatorBatch batch;
    *batch.add_messages() = message;
    (void)stream.Send(batch.SerializeAsString());
  }
  void OnBytes(transport::MessageStream& stream, const std::string& bytes) {
    v1::TaskBatch batch;
    if (!batch.ParseFromString(bytes)) return;
    for (const v1::TaskMessage& message : batch.messages()) {
      // The answer is sent before the test can see the Hello. Messages that the test sends after it
      // has seen the Hello therefore arrive after Registered.
      if (message.has_hello()) SendOn(stream, answer_(hellos_++));
      MutexLock lock(&mu_);
      if (!message.has_heartbeat() || received_.size() < 1000) received_.push_back(message);
      changed_.NotifyAll();
    }
  }

  std::function<v1::CoordinatorMessage(int)> answer_;
  Mutex mu_;
  CondVar changed_;
  std::shared_ptr<transport::MessageStream> stream_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::TaskMessage> received_ ABSL_GUARDED_BY(mu_);
  int hellos_ = 0;  // used on the transport's thread only
  bool lost_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<transport::Server> server_;
};

v1::CoordinatorMessage Assign(std::uint32_t shard, std::uint64_t rows = 4) {
  v1::CoordinatorMessage message;
  v1::Assign* assign = message.mutable_assign();
  assign->set_job_uid(kJob);
  v1::ShardSpec* spec = assign->mutable_spec();
  spec->set_shard(shard);
  spec->set_row_end(rows);
  spec->mutable_variable()->set_name("count");
  spec->mutable_variable()->add_shape(rows);
  spec->mutable_variable()->add_shape(1);
  spec->mutable_variable()->set_dtype(v1::DTYPE_FLOAT32);
  spec->mutable_variable()->mutable_initializer()->set_type("zeros");
  spec->mutable_variable()->mutable_optimizer()->set_type("counting");
  *assign->mutable_epoch() = client::ToProto(kEpoch);
  *assign->mutable_start() = client::ToProto(kStart);
  *assign->mutable_version() = client::ToProto(kStart);
  assign->set_shards_total(8);
  return message;
}

struct ServerFixture {
  RealClock clock;
  log::Logger logger{{.level = log::Level::kInfo, .file = "/dev/null"}};
  metrics::Registry registry;
  fault::Failpoints failpoints;
  fs::MemoryFileSystem files{{&failpoints}};
  health::Health health{&clock};
  std::unique_ptr<transport::Transport> transport =
      transport::MakeInprocTransport(nullptr, &health);
  std::unique_ptr<Server> server;
  std::unique_ptr<client::ParameterClient> worker = std::make_unique<client::ParameterClient>(
      transport.get(), transport::ChannelOptions{}, "worker/0");
  Mutex mu;
  std::string refused_kind ABSL_GUARDED_BY(mu);
  runtime::WaitableEvent refused;
  std::string drain_reason;  // set before `told_to_leave`
  runtime::WaitableEvent told_to_leave;

  ~ServerFixture() {
    worker.reset();
    server.reset();
  }
  std::uint64_t process_uid = 4711;
  Config config;
  void Listen() {
    config.index = "3";
    config.executors = 2;
    transport::ServerOptions options;
    options.listen = "127.0.0.1:0";
    auto listening = Server::Listen(
        {transport.get(), &logger, &registry, &clock, &failpoints, process_uid, &files, &health},
        config, options);
    REQUIRE(listening.ok());
    server = *std::move(listening);
  }
  void Join(const std::string& coordinator) {
    Server::Identity identity;
    identity.coordinator_address = coordinator;
    identity.advertised_address = server->address();
    identity.pid = 5;
    client::SessionClient::Options session;
    session.backoff_min = 1ms;
    session.backoff_max = 5ms;
    server->Join(
        identity, session,
        [this](const std::string& kind) {
          {
            MutexLock lock(&mu);
            refused_kind = kind;
          }
          refused.Set();
        },
        [this](const std::string& reason) {
          drain_reason = reason;
          told_to_leave.Set();
        });
  }

  // Sends one PushPull to the shards 0 to n-1, as a worker does, and waits for its answer.
  absl::StatusOr<client::ParameterClient::Answer> PushPull(std::uint32_t shards,
                                                           std::uint64_t closure,
                                                           std::uint32_t update,
                                                           std::uint64_t rows = 4) {
    v1::RequestHeader header;
    header.set_job_uid(kJob);
    std::vector<tensor::SharedBytes> payloads;
    for (std::uint32_t shard = 0; shard < shards; ++shard) {
      v1::PushSection* push = header.add_pushes();
      push->set_shard(shard);
      *push->mutable_epoch() = client::ToProto(kEpoch);
      push->set_closure(closure);
      push->set_update(update);
      *push->mutable_attempt() = client::ToProto(Attempt{1, 1});
      push->set_kind(v1::GRADIENT);
      push->set_dtype(v1::DTYPE_FLOAT32);
      push->set_rows(rows);
      auto ones = std::make_shared<Floats>(rows, 1.0f);
      payloads.push_back({ones, std::as_bytes(std::span<const float>(*ones))});
      v1::PullSection* pull = header.add_pulls();
      pull->set_shard(shard);
      *pull->mutable_epoch() = client::ToProto(kEpoch);
    }
    v1::Endpoint endpoint;
    endpoint.set_address(server->address());
    runtime::WaitableEvent done;
    absl::StatusOr<client::ParameterClient::Answer> result = absl::UnknownError("no answer");
    worker->Send(endpoint, std::move(header), payloads, shards * rows * 4, 20s,
                 [&](absl::StatusOr<client::ParameterClient::Answer> answer) {
                   result = std::move(answer);
                   done.Set();
                 });
    done.Wait();
    return result;
  }
};

Floats ValuesOf(const client::ParameterClient::Answer& answer, std::size_t i) {
  Floats values(answer.payloads[i].size() / sizeof(float));
  std::memcpy(values.data(), answer.payloads[i].data(), answer.payloads[i].size());
  return values;
}

TEST_CASE(
    "a server is assigned a shard, serves a push, closes, reports and leaves in one session") {
  ServerFixture f;
  f.Listen();
  Coordinator coordinator(f.transport.get(), "coordinator:1");
  f.Join(coordinator.address());
  const v1::Hello hello = coordinator.Next(v1::TaskMessage::kHello).hello();
  CHECK(hello.role() == v1::ROLE_PS_SERVER);
  CHECK(hello.identity() == "3");
  CHECK(hello.process_uid() == 4711);
  CHECK(hello.endpoint().address() == f.server->address());
  CHECK(hello.shards_size() == 0);

  for (std::uint32_t shard = 0; shard < 3; ++shard) coordinator.Send(Assign(shard));
  for (int i = 0; i < 3; ++i) CHECK(coordinator.Next(v1::TaskMessage::kAssigned).assigned().ok());

  for (std::uint32_t update = 0; update < 4; ++update) {
    const auto answer = f.PushPull(3, 0, update);
    REQUIRE(answer.ok());
    for (int i = 0; i < 3; ++i) {
      CHECK(answer->header->pushes(i).answer() == v1::APPLIED);
      CHECK(ValuesOf(*answer, static_cast<std::size_t>(i)) ==
            Floats(4, static_cast<float>(update + 1)));
    }
  }
  v1::CoordinatorMessage close;
  close.mutable_close()->set_job_uid(kJob);
  close.mutable_close()->set_shard(1);
  *close.mutable_close()->mutable_epoch() = client::ToProto(kEpoch);
  *close.mutable_close()->mutable_version() = client::ToProto(kStart);
  *close.mutable_close()->mutable_done() = client::ToProto(IntervalSet{0});
  close.mutable_close()->set_whole(true);
  coordinator.Send(close);
  CHECK(coordinator.Next(v1::TaskMessage::kClosed).closed().taken());
  const auto late = f.PushPull(2, 0, 9);
  REQUIRE(late.ok());
  CHECK(late->header->pushes(0).answer() == v1::APPLIED);
  CHECK(late->header->pushes(1).answer() == v1::DUPLICATE);

  v1::CoordinatorMessage report;
  report.mutable_report_shards()->set_request_id(1);
  report.mutable_report_shards()->set_job_uid(kJob);
  report.mutable_report_shards()->set_digests(true);
  coordinator.Send(report);
  const v1::ShardReport shards = coordinator.Next(v1::TaskMessage::kShardReport).shard_report();
  REQUIRE(shards.shards_size() == 3);
  CHECK(shards.shards(0).updates_applied() == 5);
  CHECK(shards.shards(1).updates_applied() == 4);
  CHECK(shards.shards(1).duplicates_refused() == 1);
  CHECK(shards.shards(1).lsn() == 5);
  CHECK(shards.shards(1).open_closures() == 0);

  v1::ServerProgress progress;
  while (progress.updates_applied() != 13 && !coordinator.waited_in_vain())
    progress = coordinator.Next(v1::TaskMessage::kHeartbeat).heartbeat().server();
  CHECK(progress.shards() == 3);
  CHECK(progress.bytes() == 3 * 32);
  CHECK(progress.duplicates_refused() == 1);
  CHECK(progress.bytes_received() > 0);

  f.server->Stop("SIGTERM");
  CHECK(coordinator.Next(v1::TaskMessage::kLeaving).leaving().reason() == "SIGTERM");
  CHECK_FALSE(f.PushPull(1, 1, 0).ok());
  CHECK_FALSE(coordinator.waited_in_vain());
}

TEST_CASE("a disconnected server keeps serving, and tells the next session which shards it holds") {
  ServerFixture f;
  f.Listen();
  auto coordinator = std::make_unique<Coordinator>(f.transport.get(), "coordinator:1");
  const std::string address = coordinator->address();
  f.Join(address);
  coordinator->Next(v1::TaskMessage::kHello);
  coordinator->Send(Assign(0));
  CHECK(coordinator->Next(v1::TaskMessage::kAssigned).assigned().ok());
  coordinator->CutSession();
  v1::Hello hello = coordinator->Next(v1::TaskMessage::kHello).hello();
  REQUIRE(hello.shards_size() == 1);
  CHECK(hello.highest_term() == 1);
  coordinator.reset();  // the coordinator's process is gone
  const auto answer = f.PushPull(1, 0, 0);
  REQUIRE(answer.ok());
  CHECK(answer->header->pushes(0).answer() == v1::APPLIED);
  Coordinator next(f.transport.get(), address, [](int) { return Coordinator::Registered(2); });
  hello = next.Next(v1::TaskMessage::kHello).hello();
  REQUIRE(hello.shards_size() == 1);
  CHECK(hello.process_uid() == 4711);
  CHECK(client::FromProto<ShardEpoch>(hello.shards(0).epoch()) == kEpoch);
  CHECK(client::FromProto<MapVersion>(hello.shards(0).start()) == kStart);
  v1::CoordinatorMessage drop;
  drop.mutable_drop()->set_job_uid(kJob);
  *drop.mutable_drop()->mutable_epoch() = client::ToProto(kEpoch);
  next.Send(drop);
  v1::CoordinatorMessage report;
  report.mutable_report_shards()->set_request_id(1);
  next.Send(report);
  CHECK(next.Next(v1::TaskMessage::kShardReport).shard_report().shards_size() == 0);
  CHECK(f.PushPull(1, 0, 1)->header->pushes(0).answer() == v1::STALE);
  CHECK_FALSE(next.waited_in_vain());
}

TEST_CASE(
    "S12: a server whose identity is in use waits, names the holder, and serves after the holder "
    "has ended") {
  ServerFixture f;
  f.Listen();
  Coordinator coordinator(f.transport.get(), "coordinator:1", [](int hello) {
    if (hello >= 2) return Coordinator::Registered(1);
    v1::CoordinatorMessage message;
    message.mutable_rejected()->set_kind("identity_taken");
    message.mutable_rejected()->set_message("ps_server/3 is pid 123 on host a");
    message.mutable_rejected()->set_retry_after_ms(1);
    return message;
  });
  f.Join(coordinator.address());
  for (int i = 0; i < 3; ++i) coordinator.Next(v1::TaskMessage::kHello);
  coordinator.Send(Assign(0));
  CHECK(coordinator.Next(v1::TaskMessage::kAssigned).assigned().ok());
  CHECK_FALSE(f.refused.IsSet());
  std::string log;
  for (const log::Line& line : f.logger.Read(0, 0, "", 100))
    log += line.task + ": " + line.text + "\n";
  CHECK_THAT(log,
             Catch::Matchers::Contains("ps_server/3: waiting for the coordinator") &&
                 Catch::Matchers::Contains("identity_taken: ps_server/3 is pid 123 on host a"));
}

TEST_CASE(
    "a server restarted on its host proves that its former process has ended, and does not wait") {
  ServerFixture f;
  f.process_uid = random::EntropyFromOs();
  f.Listen();
  const std::uint64_t former = f.process_uid ^ 0x5555;
  auto held = std::make_unique<Lifeline>(former);
  const std::string place = held->place();
  if (place.empty()) {
    test::Skip("no abstract sockets here");
    return;
  }
  Coordinator coordinator(f.transport.get(), "coordinator:1", [&](int hello) {
    if (hello >= 3) return Coordinator::Registered(1);
    if (hello == 2) held.reset();  // the former process ends before this refusal is sent
    v1::CoordinatorMessage message;
    message.mutable_rejected()->set_kind("identity_taken");
    message.mutable_rejected()->set_holder_process(former);
    message.mutable_rejected()->set_holder_lifeline(place);
    return message;
  });
  f.Join(coordinator.address());
  std::vector<std::uint64_t> proved;
  for (int i = 0; i < 4; ++i) {
    const v1::Hello hello = coordinator.Next(v1::TaskMessage::kHello).hello();
    CHECK(hello.lifeline() == place);
    proved.push_back(hello.ended_process());
  }
  CHECK(proved == std::vector<std::uint64_t>{0, 0, 0, former});
}

TEST_CASE("a permanent refusal ends the server and names its kind") {
  ServerFixture f;
  f.Listen();
  Coordinator coordinator(f.transport.get(), "coordinator:1", [](int) {
    v1::CoordinatorMessage message;
    message.mutable_rejected()->set_kind("version");
    message.mutable_rejected()->set_exit(true);
    return message;
  });
  f.Join(coordinator.address());
  CHECK(f.refused.WaitFor(20s));
  MutexLock lock(&f.mu);
  CHECK(f.refused_kind == "version");
}

TEST_CASE("a server starts before the coordinator, and stops without one") {
  ServerFixture f;
  f.Listen();
  f.Join("coordinator:1");
  Coordinator coordinator(f.transport.get(), "coordinator:1");
  CHECK(coordinator.Next(v1::TaskMessage::kHello).has_hello());
  ServerFixture alone;
  alone.Listen();
  alone.Join("nobody:1");
  alone.server->Stop("SIGTERM");
  ServerFixture never_joined;
  never_joined.Listen();
}

TEST_CASE(
    "large values are transferred whole, in chunks on one side and in one piece on the other") {
  ServerFixture f;
  f.Listen();
  Coordinator coordinator(f.transport.get(), "coordinator:1");
  f.Join(coordinator.address());
  coordinator.Next(v1::TaskMessage::kHello);
  coordinator.Send(Assign(0, 1000003));
  coordinator.Send(Assign(1, 1000003));
  for (int i = 0; i < 2; ++i) CHECK(coordinator.Next(v1::TaskMessage::kAssigned).assigned().ok());
  for (std::uint32_t update = 0; update < 3; ++update) {
    const auto answer = f.PushPull(2, 0, update, 1000003);
    REQUIRE(answer.ok());
    for (std::size_t i = 0; i < 2; ++i)
      CHECK(ValuesOf(*answer, i) == Floats(1000003, static_cast<float>(update + 1)));
  }
}

TEST_CASE("a scrape shows every limit with its fill level, and the applied updates") {
  ServerFixture f;
  f.Listen();
  Coordinator coordinator(f.transport.get(), "coordinator:1");
  f.Join(coordinator.address());
  coordinator.Next(v1::TaskMessage::kHello);
  coordinator.Send(Assign(0));
  coordinator.Next(v1::TaskMessage::kAssigned);
  REQUIRE(f.PushPull(1, 0, 0).ok());
  std::string text = f.registry.PrometheusText();
  for (const char* name : {"budget_bytes", "small_reserve_bytes", "peer_small_bytes", "frame_bytes",
                           "pool_bytes", "snapshot_bytes", "streams", "lane_bytes"}) {
    INFO(name);
    for (const char* part : {"current", "limit", "refused_total"})
      CHECK_THAT(text,
                 Catch::Matchers::Contains(absl::StrCat("evergrad_ps_server_", name, "_", part)));
  }
  CHECK_THAT(text,
             Catch::Matchers::Contains("evergrad_ps_server_updates_total{answer=\"applied\"} 1\n"));
  CHECK_THAT(text, Catch::Matchers::Contains("evergrad_ps_server_applied_bytes_total 16\n"));
  f.server.reset();
  text = f.registry.PrometheusText();  // the metrics may be read after the server has ended
  CHECK_THAT(text, Catch::Matchers::Contains("evergrad_ps_server_streams_current 0\n"));
}

v1::CoordinatorMessage Cut(std::vector<std::uint32_t> shards) {
  v1::CoordinatorMessage message;
  message.mutable_cut()->set_job_uid(kJob);
  message.mutable_cut()->set_folder("file:///runs/job");
  message.mutable_cut()->set_plan_fingerprint("plan");
  for (const std::uint32_t shard : shards) {
    v1::CutShard* one = message.mutable_cut()->add_shards();
    one->set_shard(shard);
    *one->mutable_epoch() = client::ToProto(kEpoch);
  }
  return message;
}

TEST_CASE(
    "a server restores a snapshot of another server, and has the daemon's failpoints and metrics") {
  ServerFixture f;
  REQUIRE(f.failpoints.Arm("snapshot.write=1*error", 1).ok());
  f.Listen();
  v1::ShardFile file;
  {
    Coordinator coordinator(f.transport.get(), "coordinator:1");
    f.Join(coordinator.address());
    coordinator.Next(v1::TaskMessage::kHello);
    coordinator.Send(Assign(0));
    CHECK(coordinator.Next(v1::TaskMessage::kAssigned).assigned().ok());
    for (std::uint32_t update = 0; update < 3; ++update) REQUIRE(f.PushPull(1, 0, update).ok());
    coordinator.Send(Cut({0}));
    CHECK(coordinator.Next(v1::TaskMessage::kShardDurable).shard_durable().tried_again());
    const v1::ShardDurable durable =
        coordinator.Next(v1::TaskMessage::kShardDurable).shard_durable();
    REQUIRE_FALSE(durable.has_error());
    file = durable.file();
    CHECK(file.lsn() == 3);
    const std::string text = f.registry.PrometheusText();
    CHECK_THAT(text, Catch::Matchers::Contains(
                         "evergrad_ps_server_snapshots_total{result=\"dropped\"} 1\n"));
    CHECK_THAT(text, Catch::Matchers::Contains(
                         "evergrad_ps_server_snapshots_total{result=\"durable\"} 1\n"));
    coordinator.Send(Cut({0}));  // the order is in flight when the server ends
    f.server.reset();
  }
  REQUIRE(f.failpoints.Arm("snapshot.restore=1*error", 1).ok());
  f.Listen();
  Coordinator coordinator(f.transport.get(), "coordinator:2");
  f.Join(coordinator.address());
  CHECK(coordinator.Next(v1::TaskMessage::kHello).hello().shards_size() == 0);
  v1::CoordinatorMessage assign = Assign(0);
  v1::SnapshotSource* source = assign.mutable_assign()->mutable_snapshot();
  source->set_uri(fs::JoinUri("file:///runs/job", file.file()));
  source->set_bytes(file.bytes());
  source->set_sha256(file.sha256());
  source->set_job_uid(kJob);
  source->set_plan_fingerprint("plan");
  coordinator.Send(assign);
  const v1::Assigned failed = coordinator.Next(v1::TaskMessage::kAssigned).assigned();
  CHECK_THAT(failed.error().message(), Catch::Matchers::Contains("snapshot.restore") &&
                                           Catch::Matchers::Contains(file.file()));
  coordinator.Send(assign);
  CHECK(coordinator.Next(v1::TaskMessage::kAssigned).assigned().ok());
  const auto answer = f.PushPull(1, 0, 2);
  REQUIRE(answer.ok());
  CHECK(answer->header->pushes(0).answer() == v1::DUPLICATE);
  CHECK(ValuesOf(*answer, 0) == Floats(4, 3));
  CHECK_THAT(
      f.registry.PrometheusText(),
      Catch::Matchers::Contains("evergrad_ps_server_restores_total{result=\"restored\"} 1\n"));
  coordinator.Send(assign);  // if an order is repeated while the shard is held, no file is read
  CHECK(coordinator.Next(v1::TaskMessage::kAssigned).assigned().ok());
  CHECK_THAT(
      f.registry.PrometheusText(),
      Catch::Matchers::Contains("evergrad_ps_server_restores_total{result=\"restored\"} 1\n"));
}

TEST_CASE(
    "a shard larger than snapshot_bytes_max has no snapshot, and the answer names the setting") {
  ServerFixture f;
  f.config.snapshot_bytes_max = 1000;
  f.Listen();
  Coordinator coordinator(f.transport.get(), "coordinator:1");
  f.Join(coordinator.address());
  coordinator.Next(v1::TaskMessage::kHello);
  coordinator.Send(Assign(0, 1000));
  coordinator.Send(Assign(1, 4));
  for (int i = 0; i < 2; ++i) CHECK(coordinator.Next(v1::TaskMessage::kAssigned).assigned().ok());
  coordinator.Send(Cut({0, 1}));
  const v1::ShardDurable refused = coordinator.Next(v1::TaskMessage::kShardDurable).shard_durable();
  CHECK(refused.shard() == 0);
  CHECK(refused.error().kind() == "user");
  CHECK_FALSE(refused.error().retryable());
  CHECK_THAT(refused.error().message(),
             Catch::Matchers::Contains(
                 "larger than --snapshot-bytes-max: variable=count shard=0 bytes=") &&
                 Catch::Matchers::Contains(" max=1000"));
  CHECK(coordinator.Next(v1::TaskMessage::kShardDurable).shard_durable().file().shard() == 1);
  CHECK_THAT(f.registry.PrometheusText(),
             Catch::Matchers::Contains("evergrad_ps_server_snapshot_bytes_limit 1000\n") &&
                 Catch::Matchers::Contains("evergrad_ps_server_snapshot_bytes_refused_total 1\n"));

  daemon::OptionTable table("evergrad-ps-server", "");
  Config config;
  AddOptions(&table, &config);
  const char* argv[] = {"evergrad-ps-server", "--snapshot-bytes-max", "2MiB"};
  REQUIRE(table.Parse(3, argv).ok());
  CHECK(config.snapshot_bytes_max == 2u << 20);
}

TEST_CASE("the server's port answers the health check and nothing else") {
  ServerFixture f;
  f.Listen();
  auto channel = f.transport->Dial({f.server->address(), ""}, {});
  REQUIRE(channel.ok());
  const auto health = transport::UnaryAndWait(**channel, "/grpc.health.v1.Health/Check", "", 20s);
  REQUIRE(health.ok());
  CHECK(*health == std::string("\x08\x01"));
  CHECK(transport::UnaryAndWait(**channel, "/evergrad.v1.Control/ListJobs", "", 20s)
            .status()
            .code() == absl::StatusCode::kUnimplemented);
}

TEST_CASE("a server is ready once it has registered and has its shards, also while it is alone") {
  ServerFixture f;
  f.Listen();
  const auto ready = [&] { return f.health.Ask(health::Question::kReady).text; };
  CHECK_THAT(ready(), Catch::Equals("not ready: registration: this server has not dialed the "
                                    "coordinator yet\n"));
  {
    Coordinator coordinator(f.transport.get(), "coordinator:1");
    f.Join(coordinator.address());
    coordinator.Next(v1::TaskMessage::kHello);
    coordinator.Send(Assign(0));
    CHECK(coordinator.Next(v1::TaskMessage::kAssigned).assigned().ok());
    CHECK(ready() == "ok\n");
    coordinator.CutSession();
    // By now the server knows that its session has ended.
    coordinator.Next(v1::TaskMessage::kHello);
  }
  CHECK(ready() == "ok\n");
  CHECK(f.health.Ask(health::Question::kLive).ok);
}

TEST_CASE("a server without a coordinator is live, and names the coordinator as the reason") {
  ServerFixture f;
  f.Listen();
  f.Join("coordinator:9");
  std::string text;
  for (int i = 0; i < 4000; ++i) {
    text = f.health.Ask(health::Question::kReady).text;
    if (text.find("waiting for the coordinator") != std::string::npos) break;
    runtime::WaitableEvent().WaitFor(5ms);
  }
  CHECK_THAT(text, Catch::Matchers::StartsWith(
                       "not ready: registration: waiting for the coordinator: reason="));
  CHECK(f.health.Ask(health::Question::kLive).ok);
}

// ---------------------------------------------------------------- settings

TEST_CASE("the identity is --index, or else the ordinal of the host name, or else 0") {
  Config config;
  REQUIRE(Resolve("ps-4", 2, 1000, &config).ok());
  CHECK(config.index == "4");
  CHECK(config.executors == 2);
  for (const unsigned cores : {0u, 1u, 64u, 1000u}) {
    Config one;
    REQUIRE(Resolve("ps-4", cores, 1000, &one).ok());
    CHECK(one.executors == std::clamp(cores, 1u, 256u));
  }
  config.index = "9";
  REQUIRE(Resolve("ps-4", 2, 1000, &config).ok());
  CHECK(config.index == "9");
  for (const char* bad : {"x", "-1", "01", "4294967296", "1.0", " 1"}) {
    INFO(bad);
    config.index = bad;
    CHECK(Resolve("ps-4", 2, 1000, &config).code() == absl::StatusCode::kInvalidArgument);
  }
  config = Config{};
  config.peer_small_bytes_max = config.small_reserve_bytes_max + 1;
  CHECK_FALSE(Resolve("ps-4", 2, 1000, &config).ok());
  config = Config{};
  config.lane_bytes_max = 100000;
  CHECK(Resolve("ps-4", 2, 1000, &config)
            .message()
            .find("--lane-bytes-max is too small for one worker") == 0);
  config.lane_bytes_max = 0;
  CHECK(Resolve("ps-4", 2, 1000, &config).ok());
}

// Calls Server::Drain on a thread, as main() does.
struct Draining {
  bool handed_over = false;
  runtime::WaitableEvent over;
  runtime::Thread thread;
  explicit Draining(Server* server, const std::string& reason = "SIGTERM")
      : thread("drain", [this, server, reason] {
          handed_over = server->Drain(reason);
          over.Set();
        }) {}
};

v1::CoordinatorMessage Drained(const std::string& cannot = "") {
  v1::CoordinatorMessage message;
  message.mutable_drained()->set_cannot(cannot);
  return message;
}

TEST_CASE(
    "a server with a notice reports it in each session, keeps serving, and exits when told that it "
    "is drained") {
  ServerFixture f;
  f.Listen();
  Coordinator coordinator(f.transport.get(), "coordinator:1");
  f.Join(coordinator.address());
  CHECK(coordinator.Next(v1::TaskMessage::kHello).hello().leaving().empty());
  coordinator.Send(Assign(0));
  REQUIRE(coordinator.Next(v1::TaskMessage::kAssigned).assigned().ok());
  Draining draining(f.server.get());
  const v1::Leaving leaving = coordinator.Next(v1::TaskMessage::kLeaving).leaving();
  CHECK(leaving.reason() == "SIGTERM");
  CHECK(leaving.drains());
  CHECK(f.PushPull(1, 0, 0).ok());
  coordinator.CutSession();
  const v1::Hello again = coordinator.Next(v1::TaskMessage::kHello).hello();
  CHECK(again.leaving() == "SIGTERM");
  CHECK(again.shards_size() == 1);
  CHECK_FALSE(draining.over.IsSet());
  coordinator.Send(Drained());
  draining.over.Wait();
  CHECK(draining.handed_over);
  f.server->Stop("SIGTERM");
  CHECK_FALSE(coordinator.Next(v1::TaskMessage::kLeaving).leaving().drains());
  CHECK_FALSE(coordinator.waited_in_vain());
}

TEST_CASE(
    "a drain ends without a hand-over when none is possible, when the coordinator stops, and after "
    "drain_max") {
  for (const std::string how : {"cannot", "stopping", "silence"}) {
    INFO(how);
    ServerFixture f;
    if (how == "silence") f.config.drain_max = 50ms;
    f.Listen();
    Coordinator coordinator(f.transport.get(), "coordinator:1");
    f.Join(coordinator.address());
    coordinator.Next(v1::TaskMessage::kHello);
    coordinator.Send(Assign(0));
    REQUIRE(coordinator.Next(v1::TaskMessage::kAssigned).assigned().ok());
    Draining draining(f.server.get());
    coordinator.Next(v1::TaskMessage::kLeaving);
    if (how == "cannot") coordinator.Send(Drained("no other server is connected"));
    if (how == "stopping") {
      v1::CoordinatorMessage message;
      message.mutable_stopping();
      coordinator.Send(message);
    }
    draining.over.Wait();
    CHECK_FALSE(draining.handed_over);
    CHECK_FALSE(coordinator.waited_in_vain());
  }
}

TEST_CASE(
    "a server with a notice exits at once if it holds nothing and has no session, or if the "
    "coordinator stops") {
  ServerFixture f;
  f.config.drain_max = 600s;
  f.Listen();
  f.Join("nobody:1");
  Draining nothing(f.server.get());
  nothing.over.Wait();
  CHECK(nothing.handed_over);

  ServerFixture g;
  g.config.drain_max = 600s;
  g.Listen();
  auto coordinator = std::make_unique<Coordinator>(g.transport.get(), "coordinator:1");
  g.Join(coordinator->address());
  coordinator->Next(v1::TaskMessage::kHello);
  coordinator->Send(Assign(0));
  REQUIRE(coordinator->Next(v1::TaskMessage::kAssigned).assigned().ok());
  v1::CoordinatorMessage stopping;
  stopping.mutable_stopping();
  coordinator->Send(stopping);
  coordinator.reset();  // the coordinator is gone before the server gets its notice
  const MonoTime begin = g.clock.Now();
  Draining draining(g.server.get());
  draining.over.Wait();
  CHECK_FALSE(draining.handed_over);
  CHECK(g.clock.Now() - begin < 300s);
}

TEST_CASE("an operator's drain request reaches the owner of the server") {
  ServerFixture f;
  f.Listen();
  Coordinator coordinator(f.transport.get(), "coordinator:1");
  f.Join(coordinator.address());
  coordinator.Next(v1::TaskMessage::kHello);
  v1::CoordinatorMessage drain;
  drain.mutable_drain()->set_reason("psctl task drain");
  coordinator.Send(drain);
  f.told_to_leave.Wait();
  CHECK(f.drain_reason == "psctl task drain");
}

}  // namespace
}  // namespace evergrad::ps_server
