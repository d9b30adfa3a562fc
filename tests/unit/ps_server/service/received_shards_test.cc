// Tests orders to receive a shard that is moved to this server: orders that are refused, orders
// that fail, and orders that end. moves_test.cc tests complete moves.
#include "ps_server/service/received_shards.h"

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <optional>

#include "stage.h"
#include "tests/support/inproc/inproc_transport.h"

namespace evergrad::ps_server {
namespace {

constexpr ShardKey kKey{JobUid(kJob), ShardId(3)};

struct Fixture {
  RealClock clock;
  metrics::Registry registry;
  fs::MemoryFileSystem files;
  JobTable jobs;
  std::unique_ptr<transport::Transport> network = transport::MakeInprocTransport(nullptr);
  client::ParameterClient peers{network.get(), transport::ChannelOptions(), "ps_server/test"};
  runtime::ThreadExecutor executor{runtime::ThreadExecutor::Options{"control"}};
  std::unique_ptr<Restorer> restorer;
  runtime::WaitableEvent answered;
  std::optional<absl::Status> answer;
  std::optional<ReceivedShards> received;

  explicit Fixture(std::size_t orders_max = 8, bool has_peers = true) {
    Restorer::Options restore;
    restore.files = &files;
    restore.registry = &registry;
    restore.clock = &clock;
    restore.orders_max = orders_max;
    restorer = std::make_unique<Restorer>(std::move(restore));
    ReceivedShards::Options options;
    options.executor = &executor;
    options.restorer = restorer.get();
    options.peers = has_peers ? &peers : nullptr;
    options.clock = &clock;
    options.jobs = &jobs;
    options.received = [this](const ShardKey&, ShardEpoch, const absl::Status& status) {
      answer = status;
      answered.Set();
    };
    received.emplace(std::move(options));
  }
  ~Fixture() { End(); }
  // Ends the parts in the order in which a server ends them. No callback runs after this call.
  void End() {
    restorer.reset();
    executor.Shutdown();
  }
  // Runs all calls in one task of the control executor, so that the restorer's answer cannot come
  // between two calls.
  void Run(const std::function<void()>& calls) {
    runtime::WaitableEvent ran;
    executor.Post([&] {
      calls();
      ran.Set();
    });
    ran.Wait();
  }
  // Returns an order to receive a shard from a server that does not exist.
  static v1::ReceiveShard OrderOf() {
    v1::ReceiveShard receive;
    receive.set_job_uid(kJob);
    *receive.mutable_spec() = Stage::AssignOf(3).assign().spec();
    *receive.mutable_epoch() = client::ToProto(kEpoch);
    *receive.mutable_start() = client::ToProto(kStart);
    receive.mutable_from()->set_address("nowhere");
    receive.mutable_from()->set_server("0");
    receive.set_bytes(4096);  // enough for a file, so the first piece is requested
    receive.set_sha256(std::string(32, 'x'));
    return receive;
  }
};

TEST_CASE("a move is refused without peers, and if it is malformed") {
  Fixture alone(8, false), f;
  absl::Status without, short_digest, nameless;
  alone.Run([&] { without = alone.received->Begin(Fixture::OrderOf()); });
  f.Run([&] {
    v1::ReceiveShard receive = Fixture::OrderOf();
    receive.set_sha256("short");
    short_digest = f.received->Begin(receive);
    receive = Fixture::OrderOf();
    receive.mutable_spec()->mutable_variable()->clear_name();
    nameless = f.received->Begin(receive);
  });
  f.End();
  CHECK(without.code() == absl::StatusCode::kUnimplemented);
  CHECK(short_digest.code() == absl::StatusCode::kInvalidArgument);
  CHECK(nameless.code() == absl::StatusCode::kInvalidArgument);
  CHECK_FALSE(f.answer.has_value());
}

TEST_CASE("a move that the restorer refuses leaves nothing behind") {
  Fixture f(0);
  absl::Status begun;
  std::unique_ptr<Shard> taken;
  f.Run([&] {
    begun = f.received->Begin(Fixture::OrderOf());
    taken = f.received->Take(kKey, kEpoch);
    f.received->ForgetAll();
  });
  CHECK(begun.code() == absl::StatusCode::kResourceExhausted);
  CHECK(taken == nullptr);
}

TEST_CASE("a server that cannot be reached is answered, and there is no shard to take") {
  Fixture f;
  absl::Status begun;
  f.Run([&] { begun = f.received->Begin(Fixture::OrderOf()); });
  REQUIRE(begun.ok());
  f.answered.Wait();
  f.End();
  CHECK(f.answer->code() == absl::StatusCode::kUnavailable);
  CHECK(f.received->Take(kKey, kEpoch) == nullptr);
}

TEST_CASE("a read that was cancelled is not answered") {
  const int way = GENERATE(0, 1, 2, 3);
  Fixture f;
  absl::Status begun;
  std::unique_ptr<Shard> taken;
  f.Run([&] {
    begun = f.received->Begin(Fixture::OrderOf());
    f.received->Forget(kKey, {1, 99});        // not this epoch
    f.received->ForgetJob(JobUid(kJob + 1));  // not this job
    taken = f.received->Take(kKey, kEpoch);   // null, because the shard is still being read
    if (way == 0) f.received->Forget(kKey);
    if (way == 1) f.received->Forget(kKey, kEpoch);
    if (way == 2) f.received->ForgetJob(JobUid(kJob));
    if (way == 3) f.received->ForgetAll();
  });
  f.End();
  CHECK(begun.ok());
  CHECK(taken == nullptr);
  CHECK_FALSE(f.answer.has_value());
}

}  // namespace
}  // namespace evergrad::ps_server
