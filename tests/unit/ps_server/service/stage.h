// A server without its transport, on real executors and I/O threads. The test plays the
// coordinator.
#pragma once

#include <catch2/catch.hpp>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/client/parameter_client.h"
#include "common/snapshot/shard_file.h"
#include "ps_server/service/control.h"
#include "service_fixture.h"
#include "tests/support/memory_files/memory_file_system.h"

namespace evergrad::ps_server {

using Floats = std::vector<float>;
using namespace std::chrono_literals;  // used only in tests

inline constexpr char kFolder[] = "file:///job";
inline constexpr char kPlan[] = "plan";

// A file system in which every call that opens or creates a file waits while the gate is closed.
class GatedFiles final : public fs::FileSystem {
 public:
  explicit GatedFiles(fs::FileSystem* files) : files_(*files) {}
  absl::StatusOr<std::unique_ptr<fs::WritableFile>> Create(absl::string_view uri) override {
    return Wait(), files_.Create(uri);
  }
  absl::StatusOr<std::unique_ptr<fs::ReadableFile>> Open(absl::string_view uri) override {
    return Wait(), files_.Open(uri);
  }
  absl::StatusOr<std::vector<fs::ListedFile>> List(absl::string_view uri) override {
    return files_.List(uri);
  }
  absl::Status Remove(absl::string_view uri) override { return files_.Remove(uri); }
  absl::StatusOr<bool> Exists(absl::string_view uri) override { return files_.Exists(uri); }
  absl::Status MakeFolders(absl::string_view uri) override { return files_.MakeFolders(uri); }

  void Close() {
    MutexLock lock(&mu_);
    closed_ = true;
  }
  void Release() {
    MutexLock lock(&mu_);
    closed_ = false;
    changed_.NotifyAll();
  }
  void AwaitSomebody(int threads = 1) {
    MutexLock lock(&mu_);
    while (waiting_ < threads) changed_.Wait(&mu_);
  }

 private:
  void Wait() {
    MutexLock lock(&mu_);
    ++waiting_;
    changed_.NotifyAll();
    while (closed_) changed_.Wait(&mu_);
    --waiting_;
  }
  fs::FileSystem& files_;
  Mutex mu_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
};

struct SharedReply {
  std::shared_ptr<Reply> reply = std::make_shared<Reply>();
  runtime::WaitableEvent event;
  int answers = 0;
};
class EventResponder final : public transport::DataResponder {
 public:
  explicit EventResponder(std::shared_ptr<SharedReply> shared)
      : shared_(std::move(shared)), inner_(shared_->reply, &shared_->answers) {}
  void Answer(transport::Frame frame) override {
    inner_.Answer(std::move(frame));
    shared_->event.Set();
  }
  void Fail(absl::Status status) override {
    inner_.Fail(std::move(status));
    shared_->event.Set();
  }

 private:
  std::shared_ptr<SharedReply> shared_;
  RecordingResponder inner_;
};

// A server without its transport.
struct Stage {
  RealClock clock;
  metrics::Registry registry;
  fault::Failpoints failpoints;
  fs::MemoryFileSystem files{{&failpoints}};
  GatedFiles gated;
  log::Logger logger{{.level = log::Level::kInfo, .file = "/dev/null"}};
  std::vector<std::unique_ptr<runtime::ThreadExecutor>> executors;
  std::unique_ptr<runtime::ThreadExecutor> executor =
      std::make_unique<runtime::ThreadExecutor>(runtime::ThreadExecutor::Options{"control"});
  std::unique_ptr<ShardHost> host;
  std::unique_ptr<SnapshotWriter> writer;
  std::unique_ptr<Restorer> restorer;
  std::unique_ptr<Images> images;
  std::unique_ptr<transport::Server> server;       // if `network` is given: serves other servers
  std::unique_ptr<client::ParameterClient> peers;  // if `network` is given: calls other servers
  std::unique_ptr<Control> control;

  Mutex mu;
  CondVar changed;
  std::deque<v1::TaskMessage> sent ABSL_GUARDED_BY(mu);

  // If `network` is given, shards can be moved to this server and from it. The server's address is
  // then server->address().
  explicit Stage(fs::FileSystem* real = nullptr, transport::Transport* network = nullptr,
                 std::uint64_t images_max = 1ull << 30)
      : gated(real != nullptr ? real : &files) {
    ShardHost::Options host_options;
    for (int i = 0; i < 2; ++i) {
      executors.push_back(std::make_unique<runtime::ThreadExecutor>(
          runtime::ThreadExecutor::Options{absl::StrCat("shards-", i)}));
      host_options.executors.push_back(executors.back().get());
    }
    host_options.registry = &registry;
    host_options.failpoints = &failpoints;
    Images::Options image;
    image.registry = &registry;
    image.failpoints = &failpoints;
    image.bytes_max = images_max;
    images = std::make_unique<Images>(std::move(image));
    host_options.images = images.get();
    host = std::make_unique<ShardHost>(std::move(host_options));
    SnapshotWriter::Options write;
    write.files = &gated;
    write.registry = &registry;
    write.clock = &clock;
    write.failpoints = &failpoints;
    write.pool = host->pool();
    write.retry_first = write.retry_max = 1ms;
    writer = std::make_unique<SnapshotWriter>(std::move(write));
    Restorer::Options restore;
    restore.files = &gated;
    restore.registry = &registry;
    restore.clock = &clock;
    restore.failpoints = &failpoints;
    restore.pool = host->pool();
    restorer = std::make_unique<Restorer>(std::move(restore));
    Control::Options options;
    options.executor = executor.get();
    options.host = host.get();
    options.logger = &logger;
    options.clock = &clock;
    options.writer = writer.get();
    options.restorer = restorer.get();
    options.images = images.get();
    options.failpoints = &failpoints;
    if (network != nullptr) {
      transport::Handlers handlers;
      handlers.data = [this](const transport::PeerInfo&, transport::ReceivedFrame frame,
                             std::unique_ptr<transport::DataResponder> responder) {
        host->Handle(std::move(frame), std::move(responder));
      };
      auto listening = network->Listen({}, std::move(handlers));
      REQUIRE(listening.ok());
      server = *std::move(listening);
      peers = std::make_unique<client::ParameterClient>(network, transport::ChannelOptions(),
                                                        "ps_server/test");
      options.peers = peers.get();
    }
    options.send = [this](v1::TaskMessage message) {
      MutexLock lock(&mu);
      sent.push_back(std::move(message));
      changed.NotifyAll();
      return true;
    };
    control = std::make_unique<Control>(std::move(options));
    Register();
  }
  ~Stage() {
    gated.Release();
    Stop();
  }
  void Stop() {  // does what Server::Stop does
    if (control != nullptr) executor->Post([this] { control->OnLost(); });
    if (server != nullptr) server->Shutdown();
    for (const auto& one : executors) one->Shutdown();
    executor->Shutdown();
    if (peers != nullptr) peers->Retain({});
    writer.reset();
    restorer.reset();
    images.reset();
    control.reset();
    peers.reset();
  }

  // Runs `task` on the control executor and returns when the task has ended.
  void On(const std::function<void()>& task) {
    runtime::WaitableEvent done;
    executor->Post([&] {
      task();
      done.Set();
    });
    done.Wait();
  }
  void Register(std::uint64_t term = 1) {
    On([&] {
      v1::Registered registered;
      registered.set_term(term);
      control->OnRegistered(registered);
    });
  }
  void Give(const v1::CoordinatorMessage& message) {
    On([&] { control->OnMessage(message); });
  }
  v1::Hello Hello() {
    v1::Hello hello;
    On([&] { control->FillHello(&hello); });
    return hello;
  }
  v1::TaskMessage Next() {
    MutexLock lock(&mu);
    while (sent.empty()) changed.Wait(&mu);
    v1::TaskMessage message = std::move(sent.front());
    sent.pop_front();
    return message;
  }
  v1::Assigned NextAssigned() {
    const v1::TaskMessage message = Next();
    CHECK(message.has_assigned());
    return message.assigned();
  }
  v1::ShardDurable NextDurable() {
    const v1::TaskMessage message = Next();
    CHECK(message.has_shard_durable());
    return message.shard_durable();
  }
  std::size_t Unread() {
    MutexLock lock(&mu);
    return sent.size();
  }
  // Waits until every executor and I/O thread has done the work of earlier orders. For this it
  // passes one order through each of them. All gates must be open.
  void Settle() {
    Give(CutOf({63}));  // shard 63 is not held, so the answer comes at once
    CHECK(NextDurable().shard() == 63);
    v1::CoordinatorMessage message;
    message.mutable_assign()->CopyFrom(AssignOf(62).assign());
    message.mutable_assign()->mutable_snapshot()->CopyFrom(Source({}));
    message.mutable_assign()->mutable_snapshot()->set_uri("file:///job/none");
    Give(message);  // handled after all earlier orders of the restorer
    CHECK(NextAssigned().error().code() == static_cast<int>(absl::StatusCode::kNotFound));
  }

  static v1::CoordinatorMessage AssignOf(std::uint32_t shard, ShardEpoch epoch = kEpoch,
                                         std::uint64_t rows = 4, MapVersion start = kStart) {
    v1::CoordinatorMessage message;
    v1::Assign& assign = *message.mutable_assign();
    assign.set_job_uid(kJob);
    v1::ShardSpec* spec = assign.mutable_spec();
    spec->set_shard(shard);
    spec->set_row_end(rows);
    spec->mutable_variable()->set_name("count");
    spec->mutable_variable()->set_index(3);
    spec->mutable_variable()->add_shape(rows);
    spec->mutable_variable()->add_shape(1);
    spec->mutable_variable()->set_dtype(v1::DTYPE_FLOAT32);
    spec->mutable_variable()->mutable_initializer()->set_type("zeros");
    spec->mutable_variable()->mutable_optimizer()->set_type("counting");
    *assign.mutable_epoch() = client::ToProto(epoch);
    *assign.mutable_start() = client::ToProto(start);
    *assign.mutable_version() = client::ToProto(start);
    assign.set_shards_total(64);
    return message;
  }
  // Makes the shard a slot instead of a part of a dense variable. The slot has one table with two
  // columns and the optimizer `counting`.
  static void MakeSlot(v1::ShardSpec* spec) {
    spec->clear_variable();
    spec->clear_row_end();
    spec->mutable_slot()->set_slots(1);
    v1::TableSpec* table = spec->mutable_slot()->add_tables();
    table->set_name("user");
    table->set_dtype(v1::DTYPE_FLOAT32);
    table->set_dimension(2);
    table->mutable_initializer()->set_type("zeros");
    table->mutable_optimizer()->set_type("counting");
  }
  static v1::SnapshotSource Source(const v1::ShardFile& file) {
    v1::SnapshotSource source;
    source.set_uri(fs::JoinUri(kFolder, file.file()));
    source.set_bytes(file.bytes());
    source.set_sha256(file.sha256().empty() ? std::string(32, 'x') : file.sha256());
    source.set_job_uid(kJob);
    source.set_plan_fingerprint(kPlan);
    return source;
  }
  static v1::CoordinatorMessage RestoreOf(const v1::ShardFile& file, ShardEpoch epoch,
                                          std::uint64_t rows = 4) {
    v1::CoordinatorMessage message = AssignOf(file.shard(), epoch, rows, {1, epoch.n});
    *message.mutable_assign()->mutable_snapshot() = Source(file);
    return message;
  }
  static v1::CoordinatorMessage CutOf(const std::vector<std::uint32_t>& shards,
                                      ShardEpoch epoch = kEpoch) {
    v1::CoordinatorMessage message;
    message.mutable_cut()->set_job_uid(kJob);
    message.mutable_cut()->set_folder(kFolder);
    message.mutable_cut()->set_plan_fingerprint(kPlan);
    for (const std::uint32_t shard : shards) {
      v1::CutShard* one = message.mutable_cut()->add_shards();
      one->set_shard(shard);
      *one->mutable_epoch() = client::ToProto(epoch);
    }
    return message;
  }
  static v1::CoordinatorMessage DropOf(std::uint32_t shard, ShardEpoch epoch = kEpoch) {
    v1::CoordinatorMessage message;
    message.mutable_drop()->set_job_uid(kJob);
    message.mutable_drop()->set_shard(shard);
    *message.mutable_drop()->mutable_epoch() = client::ToProto(epoch);
    return message;
  }
  static v1::CoordinatorMessage CloseOf(std::uint32_t shard, const IntervalSet& done,
                                        const IntervalSet& refused, ShardEpoch epoch = kEpoch) {
    v1::CoordinatorMessage message;
    v1::Close& close = *message.mutable_close();
    close.set_job_uid(kJob);
    close.set_shard(shard);
    *close.mutable_epoch() = client::ToProto(epoch);
    *close.mutable_version() = client::ToProto(MapVersion{9, 9});
    *close.mutable_done() = client::ToProto(done);
    *close.mutable_refused() = client::ToProto(refused);
    return message;
  }
  void Hold(std::uint32_t shard, std::uint64_t rows = 4) {
    Give(AssignOf(shard, kEpoch, rows));
    REQUIRE(NextAssigned().ok());
  }
  v1::ShardFile Cut(std::uint32_t shard, ShardEpoch epoch = kEpoch) {
    Give(CutOf({shard}, epoch));
    const v1::ShardDurable durable = NextDurable();
    INFO(durable.error().message());
    REQUIRE_FALSE(durable.has_error());
    return durable.file();
  }
  std::shared_ptr<SharedReply> Start(const RequestBuilder& request) {
    auto shared = std::make_shared<SharedReply>();
    host->Handle({request.Frame(), nullptr}, std::make_unique<EventResponder>(shared));
    return shared;
  }
  v1::PushAnswer Push(std::uint32_t shard, std::uint64_t closure, std::uint32_t update,
                      ShardEpoch epoch = kEpoch, std::uint64_t rows = 4, Attempt attempt = {1, 1}) {
    RequestBuilder request;
    v1::PushSection& push = request.Push(shard, closure, update, Floats(rows, 1));
    *push.mutable_epoch() = client::ToProto(epoch);
    *push.mutable_attempt() = client::ToProto(attempt);
    const auto shared = Start(request);
    shared->event.Wait();
    return shared->reply->push();
  }
  std::vector<v1::ShardState> Report() {
    std::vector<v1::ShardState> states;
    runtime::WaitableEvent done;
    host->Report(JobUid(0), true, [&](std::vector<v1::ShardState> s) {
      states = std::move(s);
      done.Set();
    });
    done.Wait();
    return states;
  }
  std::uint64_t Cuts(const std::string& result) {
    return registry
        .GetCounter("evergrad_ps_server_snapshots_total",
                    "Attempts to save a shard to a snapshot file, by outcome", {{"result", result}})
        .value();
  }
  std::string Log() {
    std::string text;
    for (const log::Line& line : logger.Read(0, 0, "", 1000))
      text += absl::StrCat(log::LevelName(line.level), " ", line.text, "\n");
    return text;
  }
};

}  // namespace evergrad::ps_server
