// Tests moves of a shard from one server to another (LEDGER line 22). Both servers are complete
// except for their main programs, and use the in-process transport.
#include "stage.h"
#include "tests/support/inproc/inproc_transport.h"

namespace evergrad::ps_server {
namespace {

constexpr ShardEpoch kNext{1, 9};

struct Pair {
  std::unique_ptr<transport::Transport> network = transport::MakeInprocTransport(nullptr);
  Stage from{nullptr, network.get()}, to{nullptr, network.get()};

  v1::Endpoint Endpoint() {
    v1::Endpoint endpoint;
    endpoint.set_address(from.server->address());
    endpoint.set_server("0");
    return endpoint;
  }
  static v1::CoordinatorMessage StopOf(std::uint32_t shard, ShardEpoch epoch = kEpoch) {
    v1::CoordinatorMessage message;
    message.mutable_stop()->set_job_uid(kJob);
    message.mutable_stop()->set_shard(shard);
    *message.mutable_stop()->mutable_epoch() = client::ToProto(epoch);
    message.mutable_stop()->set_plan_fingerprint(kPlan);
    return message;
  }
  v1::ShardStopped Stop(std::uint32_t shard, ShardEpoch epoch = kEpoch) {
    from.Give(StopOf(shard, epoch));
    const v1::TaskMessage message = from.Next();
    REQUIRE(message.has_stopped());
    CHECK(message.stopped().shard() == shard);
    return message.stopped();
  }
  v1::CoordinatorMessage ReceiveOf(const v1::ShardStopped& stopped, std::uint64_t rows = 4) {
    v1::CoordinatorMessage message;
    v1::ReceiveShard& receive = *message.mutable_receive();
    receive.set_job_uid(kJob);
    *receive.mutable_spec() = Stage::AssignOf(stopped.shard(), kEpoch, rows).assign().spec();
    *receive.mutable_epoch() = stopped.epoch();
    *receive.mutable_start() = client::ToProto(kStart);
    *receive.mutable_from() = Endpoint();
    receive.set_bytes(stopped.bytes());
    receive.set_sha256(stopped.sha256());
    receive.set_plan_fingerprint(kPlan);
    return message;
  }
  v1::ShardReceived Receive(const v1::ShardStopped& stopped, std::uint64_t rows = 4) {
    to.Give(ReceiveOf(stopped, rows));
    const v1::TaskMessage message = to.Next();
    REQUIRE(message.has_received());
    return message.received();
  }
  static v1::CoordinatorMessage AssignMoved(std::uint32_t shard, std::uint64_t rows = 4,
                                            ShardEpoch moved_from = kEpoch) {
    v1::CoordinatorMessage message = Stage::AssignOf(shard, kNext, rows);
    *message.mutable_assign()->mutable_moved_from() = client::ToProto(moved_from);
    return message;
  }
};

v1::PullAnswer PullOf(Stage& stage, std::uint32_t shard, ShardEpoch epoch = kEpoch) {
  RequestBuilder request;
  *request.Pull(shard).mutable_epoch() = client::ToProto(epoch);
  const auto shared = stage.Start(request);
  shared->event.Wait();
  return shared->reply->pull();
}

TEST_CASE(
    "a moved shard is the same at its next server: values, states, ledger with open closures, "
    "counters, lsn, start") {
  Pair pair;
  // The file of the shard has several pieces, and the shard has more than one chunk.
  const std::uint64_t rows = 300'000;
  for (const std::uint32_t shard : {0u, 1u}) {
    pair.from.Hold(shard, rows);
    for (std::uint32_t u = 0; u < 3; ++u)
      REQUIRE(pair.from.Push(shard, 7, u, kEpoch, rows) == v1::APPLIED);
  }
  pair.from.Give(Stage::CloseOf(1, {1, 2}, {5}));
  REQUIRE(pair.from.Next().closed().taken());
  const v1::ShardState before = pair.from.Report()[1];

  const v1::ShardStopped stopped = pair.Stop(1);
  REQUIRE_FALSE(stopped.has_error());
  CHECK(stopped.bytes() > 2 * rows * sizeof(float));
  // A stopped shard must accept no push, answer no pull, and accept no Close. The other shard must
  // continue.
  CHECK(pair.from.Push(1, 7, 3, kEpoch, rows) == v1::STALE);
  // For an update that it has, a stopped shard also answers STALE, and not DUPLICATE.
  CHECK(pair.from.Push(1, 7, 2, kEpoch, rows) == v1::STALE);
  CHECK(PullOf(pair.from, 1) == v1::PULL_STALE);
  pair.from.Give(Stage::CloseOf(1, {3}, {}));
  CHECK_FALSE(pair.from.Next().closed().taken());
  const v1::Hello hello = pair.from.Hello();
  for (const v1::HeldShard& held : hello.shards()) {
    if (held.shard() == 1)
      CHECK(client::FromProto(held.done())->ToString() == IntervalSet({1, 2}).ToString());
  }
  CHECK(pair.from.Push(0, 7, 3, kEpoch, rows) == v1::APPLIED);

  REQUIRE_FALSE(pair.Receive(stopped, rows).has_error());
  // The target has received the shard, but has no Assign yet, so it does not own the shard.
  CHECK(pair.to.Hello().shards_size() == 0);
  CHECK(pair.to.Push(1, 7, 3, kEpoch, rows) == v1::STALE);
  CHECK(pair.to.Push(1, 7, 3, kNext, rows) == v1::STALE);
  pair.to.Give(Pair::AssignMoved(1, rows));
  REQUIRE(pair.to.NextAssigned().ok());
  const v1::ShardState after = pair.to.Report()[0];
  CHECK(after.digest() == before.digest());
  CHECK(after.slot_digest() == before.slot_digest());
  CHECK(after.lsn() == before.lsn());
  CHECK(after.vlsn() == before.vlsn());
  CHECK(after.updates_applied() == before.updates_applied());
  CHECK(after.open_closures() == before.open_closures());
  CHECK(after.epoch().n() == kNext.n);
  CHECK(client::FromProto<MapVersion>(after.start()) == kStart);
  const v1::HeldShard held = pair.to.Hello().shards(0);
  CHECK(client::FromProto(held.done())->ToString() == IntervalSet({1, 2}).ToString());
  CHECK(client::FromProto(held.refused())->ToString() == IntervalSet({5}).ToString());
  // At the target, a push is a duplicate if its update was in the moved state. Otherwise it is
  // applied.
  CHECK(pair.to.Push(1, 7, 2, kNext, rows) == v1::DUPLICATE);
  CHECK(pair.to.Push(1, 2, 0, kNext, rows) == v1::DUPLICATE);
  CHECK(pair.to.Push(1, 5, 0, kNext, rows) == v1::REFUSED);
  CHECK(pair.to.Push(1, 7, 3, kNext, rows) == v1::APPLIED);
  pair.to.Give(Stage::CloseOf(1, {3}, {}, kNext));
  CHECK(pair.to.Next().closed().taken());

  CHECK(pair.from.images->bytes() > 0);
  pair.from.Give(Stage::DropOf(1));
  pair.from.Give(Stage::CutOf({1}));
  CHECK(pair.from.NextDurable().error().code() == static_cast<int>(absl::StatusCode::kNotFound));
  CHECK(pair.from.images->bytes() == 0);
}

TEST_CASE(
    "a repeated stop has the same answer, also in the next session; a stop of a shard that is not "
    "held has none") {
  Pair pair;
  pair.from.Hold(0);
  REQUIRE(pair.from.Push(0, 1, 0) == v1::APPLIED);
  const v1::ShardStopped first = pair.Stop(0), again = pair.Stop(0);
  REQUIRE_FALSE(first.has_error());
  CHECK(first.sha256() == again.sha256());
  // The Hello names the life of the coordinator that was the first to stop the shard. The
  // coordinator does not count a shard as held if a former life stopped it (LEDGER line 22).
  CHECK(pair.from.Hello().shards(0).stopped_in() == 1);
  pair.from.On([&] { pair.from.control->OnLost(); });
  pair.from.Register(2);
  CHECK(pair.Stop(0).sha256() == first.sha256());
  CHECK(pair.from.Hello().shards(0).stopped_in() == 1);
  CHECK(pair.Stop(0, kNext).error().code() == static_cast<int>(absl::StatusCode::kNotFound));
  CHECK(pair.Stop(5).error().code() == static_cast<int>(absl::StatusCode::kNotFound));
  // A stopped shard can still be cut, sealed and dropped, because the job may end during the move.
  const v1::ShardFile file = pair.from.Cut(0);
  CHECK(file.lsn() == 1);
}

TEST_CASE(
    "an incomplete shard is refused: another size, hash, plan or rows, a disconnected server, a "
    "state dropped meanwhile") {
  Pair pair;
  pair.from.Hold(0);
  const v1::ShardStopped stopped = pair.Stop(0);
  const auto refused = [&](const std::function<void(v1::ReceiveShard&)>& change) {
    v1::CoordinatorMessage message = pair.ReceiveOf(stopped);
    change(*message.mutable_receive());
    pair.to.Give(message);
    const v1::TaskMessage answer = pair.to.Next();
    REQUIRE(answer.has_received());
    REQUIRE(answer.received().has_error());
    CHECK(pair.to.Hello().shards_size() == 0);
    return static_cast<absl::StatusCode>(answer.received().error().code());
  };
  CHECK(refused([](v1::ReceiveShard& r) { r.set_bytes(r.bytes() - 1); }) != absl::StatusCode::kOk);
  CHECK(refused([](v1::ReceiveShard& r) { r.set_bytes(r.bytes() + 1); }) != absl::StatusCode::kOk);
  CHECK(refused([](v1::ReceiveShard& r) { r.set_bytes(1ull << 60); }) != absl::StatusCode::kOk);
  CHECK(refused([](v1::ReceiveShard& r) { r.mutable_sha256()->at(3) ^= 1; }) ==
        absl::StatusCode::kDataLoss);
  CHECK(refused([](v1::ReceiveShard& r) { r.set_sha256("short"); }) ==
        absl::StatusCode::kInvalidArgument);
  CHECK(refused([](v1::ReceiveShard& r) { r.set_plan_fingerprint("another"); }) ==
        absl::StatusCode::kFailedPrecondition);
  CHECK(refused([](v1::ReceiveShard& r) {
          r.mutable_spec()->mutable_variable()->set_name("other");
        }) == absl::StatusCode::kFailedPrecondition);
  CHECK(refused([](v1::ReceiveShard& r) { r.mutable_epoch()->set_n(4); }) ==
        absl::StatusCode::kNotFound);
  CHECK(refused([](v1::ReceiveShard& r) { r.mutable_from()->set_address("nobody"); }) ==
        absl::StatusCode::kUnavailable);
  // The first Assign names a state that the target has not received. The next one names a state
  // that was received from another epoch.
  pair.to.Give(Pair::AssignMoved(0));
  CHECK(pair.to.NextAssigned().error().code() == static_cast<int>(absl::StatusCode::kNotFound));
  REQUIRE_FALSE(pair.Receive(stopped).has_error());
  pair.to.Give(Pair::AssignMoved(0, 4, {1, 4}));
  CHECK(pair.to.NextAssigned().error().code() == static_cast<int>(absl::StatusCode::kNotFound));
  pair.to.Give(Pair::AssignMoved(0));
  // The Assign with the wrong epoch has removed the received state.
  CHECK(pair.to.NextAssigned().error().code() == static_cast<int>(absl::StatusCode::kNotFound));
  CHECK(pair.to.Hello().shards_size() == 0);
  // A shard that its source has dropped cannot be received any more.
  pair.from.Give(Stage::DropOf(0));
  CHECK(refused([](v1::ReceiveShard&) {}) == absl::StatusCode::kNotFound);
}

TEST_CASE(
    "a received shard is released with the session, the job, or a drop; a move of a shard that is "
    "already held is refused") {
  Pair pair;
  pair.from.Hold(0);
  const v1::ShardStopped stopped = pair.Stop(0);
  const auto gone = [&] {
    pair.to.Give(Pair::AssignMoved(0));
    CHECK(pair.to.NextAssigned().error().code() == static_cast<int>(absl::StatusCode::kNotFound));
  };
  REQUIRE_FALSE(pair.Receive(stopped).has_error());
  pair.to.On([&] { pair.to.control->OnLost(); });
  pair.to.Register();
  gone();
  REQUIRE_FALSE(pair.Receive(stopped).has_error());
  pair.to.Give(Stage::DropOf(0, kNext));  // this order names another epoch and changes nothing
  pair.to.Give(Stage::DropOf(0));
  gone();
  REQUIRE_FALSE(pair.Receive(stopped).has_error());
  v1::CoordinatorMessage ended;
  ended.mutable_job_ended()->set_job_uid(kJob);
  pair.to.Give(ended);
  gone();
  REQUIRE_FALSE(pair.Receive(stopped).has_error());
  pair.to.Give(Pair::AssignMoved(0));
  REQUIRE(pair.to.NextAssigned().ok());
  CHECK(pair.Receive(stopped).error().code() ==
        static_cast<int>(absl::StatusCode::kFailedPrecondition));
  pair.from.Give(ended);
  CHECK(pair.from.images->bytes() == 0);
}

TEST_CASE(
    "the memory of a moved partition of tables counts for its job at the next server once it is "
    "received, and no longer at the former one") {
  Pair pair;
  v1::CoordinatorMessage assign = Stage::AssignOf(1);
  Stage::MakeSlot(assign.mutable_assign()->mutable_spec());
  pair.from.Give(assign);
  REQUIRE(pair.from.NextAssigned().ok());
  constexpr std::int64_t kIds = 20'000;
  std::vector<std::int64_t> ids(kIds);
  for (std::int64_t i = 0; i < kIds; ++i) ids[static_cast<std::size_t>(i)] = i * 3;
  RequestBuilder push;
  push.PushRows(1, 0, 0, std::move(ids), std::vector<float>(2 * kIds, 1));
  const auto pushed = pair.from.Start(push);
  pushed->event.Wait();
  REQUIRE(pushed->reply->push() == v1::APPLIED);
  const auto bytes_of = [](Stage& stage) {
    std::uint64_t bytes = 0;
    stage.On([&] { bytes = stage.control->Progress().bytes(); });
    return bytes;
  };
  CHECK(bytes_of(pair.from) > 4 * sizeof(float) * kIds);
  const v1::ShardStopped stopped = pair.Stop(1);
  REQUIRE_FALSE(stopped.has_error());
  v1::CoordinatorMessage receive = pair.ReceiveOf(stopped);
  Stage::MakeSlot(receive.mutable_receive()->mutable_spec());
  pair.to.Give(receive);
  const v1::TaskMessage received = pair.to.Next();
  INFO(received.received().error().message());
  REQUIRE_FALSE(received.received().has_error());
  const JobUid job(kJob);
  CHECK(pair.to.host->jobs().TableBytes(job) > 4 * sizeof(float) * kIds);
  v1::CoordinatorMessage moved = Pair::AssignMoved(1);
  Stage::MakeSlot(moved.mutable_assign()->mutable_spec());
  pair.to.Give(moved);
  REQUIRE(pair.to.NextAssigned().ok());
  CHECK(bytes_of(pair.to) == pair.to.Report()[0].tables(0).memory_bytes());
  CHECK(bytes_of(pair.to) > 4 * sizeof(float) * kIds);
  pair.from.Give(Stage::DropOf(1));
  CHECK(pair.from.Report().empty());
  CHECK(bytes_of(pair.from) == 0);
}

TEST_CASE(
    "images are bounded: an image that does not fit beside others waits, and one that never fits "
    "is refused") {
  std::unique_ptr<transport::Transport> network = transport::MakeInprocTransport(nullptr);
  Stage stage(nullptr, network.get(), 1u << 20);
  const auto stop = [&](std::uint32_t shard) {
    stage.Give(Pair::StopOf(shard));
    return stage.Next().stopped();
  };
  const std::uint64_t rows = 80'000;  // 640 KB, including the optimizer state
  stage.Hold(0, rows);
  stage.Hold(1, rows);
  stage.Hold(2, 3 * rows);
  REQUIRE_FALSE(stop(0).has_error());
  CHECK(stop(1).error().code() == static_cast<int>(absl::StatusCode::kUnavailable));
  CHECK(stop(2).error().code() == static_cast<int>(absl::StatusCode::kResourceExhausted));
  stage.Give(Stage::DropOf(0));
  REQUIRE_FALSE(stop(1).has_error());
}

TEST_CASE(
    "the last piece of an image is short, pieces beyond the end or too large are invalid, and a "
    "shard that is not stopped has none") {
  Pair pair;
  pair.from.Hold(0);
  const auto piece = [&](std::uint64_t offset, std::uint64_t bytes, ShardEpoch epoch = kEpoch) {
    RequestBuilder request;
    v1::PullSection& pull = request.Pull(0);
    *pull.mutable_epoch() = client::ToProto(epoch);
    pull.mutable_image()->set_offset(offset);
    pull.mutable_image()->set_bytes(bytes);
    const auto shared = pair.from.Start(request);
    shared->event.Wait();
    return std::pair(shared->reply->pull(), shared->reply->response.payloads.at(0).size());
  };
  using Answer = std::pair<v1::PullAnswer, std::size_t>;
  CHECK(piece(0, 10) == Answer(v1::PULL_INVALID, 0));
  const std::uint64_t size = pair.Stop(0).bytes();
  CHECK(piece(0, 10) == Answer(v1::VALUES, 10));
  CHECK(piece(size - 3, 10) == Answer(v1::VALUES, 3));
  CHECK(piece(size, 10) == Answer(v1::PULL_INVALID, 0));
  CHECK(piece(~0ull, ~0ull) == Answer(v1::PULL_INVALID, 0));
  CHECK(piece(0, 0) == Answer(v1::PULL_INVALID, 0));
  CHECK(piece(0, kImagePieceBytesMax + 1) == Answer(v1::PULL_INVALID, 0));
  CHECK(piece(0, 10, kNext) == Answer(v1::PULL_INVALID, 0));
}

TEST_CASE(
    "pushes in flight while a shard is moved: each is applied once, at one of the two servers") {
  Pair pair;
  const std::uint64_t rows = 70'000;
  pair.from.Hold(0, rows);
  constexpr std::uint32_t kUpdates = 40;
  std::vector<std::shared_ptr<SharedReply>> replies;
  const auto push = [&](Stage& stage, std::uint32_t u, ShardEpoch epoch) {
    RequestBuilder request;
    v1::PushSection& section = request.Push(0, 7, u, Floats(rows, 1));
    *section.mutable_epoch() = client::ToProto(epoch);
    return stage.Start(request);
  };
  for (std::uint32_t u = 0; u < kUpdates; ++u) {
    replies.push_back(push(pair.from, u, kEpoch));
    if (u == kUpdates / 2) pair.from.Give(Pair::StopOf(0));
  }
  const v1::TaskMessage message = pair.from.Next();
  REQUIRE(message.has_stopped());
  REQUIRE_FALSE(pair.Receive(message.stopped(), rows).has_error());
  pair.to.Give(Pair::AssignMoved(0, rows));
  REQUIRE(pair.to.NextAssigned().ok());
  std::uint32_t applied = 0, stale = 0;
  for (std::uint32_t u = 0; u < kUpdates; ++u) {
    replies[u]->event.Wait();
    const v1::PushAnswer answer = replies[u]->reply->push();
    applied += answer == v1::APPLIED;
    stale += answer == v1::STALE;
    // A worker repeats the updates that have no final answer. This test repeats all updates.
    const auto again = push(pair.to, u, kNext);
    again->event.Wait();
    CHECK(again->reply->push() == (answer == v1::APPLIED ? v1::DUPLICATE : v1::APPLIED));
  }
  CHECK(applied + stale == kUpdates);
  CHECK(stale > 0);
  const v1::ShardState state = pair.to.Report()[0];
  CHECK(state.updates_applied() == kUpdates);
  CHECK(state.lsn() == kUpdates);
}

}  // namespace
}  // namespace evergrad::ps_server
