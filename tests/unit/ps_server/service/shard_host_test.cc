// Tests the data service on manual executors: an answer for each section, refusals that change
// nothing (scenario S6), values that are sent by reference, the order within a request, and
// fairness between shards.
#include <algorithm>
#include <random>
#include <thread>

#include "service_fixture.h"

namespace evergrad::ps_server {
namespace {

using Floats = std::vector<float>;

std::string StateText(HostFixture& f) {
  std::string text;
  for (const v1::ShardState& state : f.Report()) {
    v1::ShardState comparable = state;
    comparable.clear_duplicates_refused();
    text += comparable.SerializeAsString();
  }
  return text;
}

TEST_CASE("one request is split over its shards and answered once, in its own order") {
  HostFixture f(3);
  for (std::uint32_t shard = 0; shard < 7; ++shard) f.Hold(CountingShard(shard));
  RequestBuilder request;
  for (const std::uint32_t shard : {5u, 0u, 3u, 6u})
    request.Push(shard, 0, 0, Floats(4, static_cast<float>(shard + 1)));
  for (const std::uint32_t shard : {6u, 1u, 5u}) request.Pull(shard);
  const auto reply = f.Send(request);
  REQUIRE(reply->answered);
  REQUIRE(reply->response.header->pushes_size() == 4);
  for (int i = 0; i < 4; ++i) {
    CHECK(reply->push(i) == v1::APPLIED);
    CHECK(reply->response.header->pushes(i).shard() == request.header.pushes(i).shard());
  }
  REQUIRE(reply->response.header->pulls_size() == 3);
  // The push to the shard is applied before the pull of the same request.
  CHECK(reply->values(0) == Floats(4, 7));
  CHECK(reply->values(1) == Floats(4, 0));
  CHECK(reply->values(2) == Floats(4, 6));
  CHECK(reply->response.header->pulls(0).vlsn() == 1);
  CHECK(client::FromProto<MapVersion>(reply->response.header->pulls(0).start()) == kStart);
}

TEST_CASE("a repeated request is a duplicate and still returns current values") {
  HostFixture f;
  f.Hold(CountingShard(1));
  RequestBuilder request;
  request.Push(1, 3, 2, Floats(4, 1));
  request.Pull(1);
  CHECK(f.Send(request)->push() == v1::APPLIED);
  const auto again = f.Send(request);
  CHECK(again->push() == v1::DUPLICATE);
  CHECK(again->values() == Floats(4, 1));
  CHECK(f.host->updates_applied() == 1);
  CHECK(f.host->duplicates() == 1);
}

TEST_CASE("an unchanged shard costs no payload") {
  HostFixture f;
  f.Hold(CountingShard(0));
  RequestBuilder first;
  first.Pull(0);
  const auto held = f.Send(first);
  RequestBuilder second;
  v1::PullSection& pull = second.Pull(0);
  pull.set_has(true);
  *pull.mutable_have_start() = held->response.header->pulls(0).start();
  pull.set_have_vlsn(held->response.header->pulls(0).vlsn());
  const auto unchanged = f.Send(second);
  CHECK(unchanged->pull() == v1::UNCHANGED);
  CHECK(unchanged->values().empty());
  pull.mutable_have_start()->set_n(99);
  CHECK(f.Send(second)->pull() == v1::VALUES);
}

TEST_CASE("pulled values are references to the shard's memory, and survive later updates") {
  HostFixture f;
  f.Hold(CountingShard(0, 200000));  // values of four chunks
  RequestBuilder pull;
  pull.Pull(0);
  const auto first = f.Send(pull), second = f.Send(pull);
  std::size_t shared = 0;
  for (const auto& a : first->pieces) {
    for (const auto& b : second->pieces)
      shared += a.owner != nullptr && a.bytes.data() == b.bytes.data();
  }
  CHECK(shared == 4);
  RequestBuilder push;
  push.Push(0, 0, 0, Floats(200000, 1));
  CHECK(f.Send(push)->push() == v1::APPLIED);
  const auto old = Gathered(first->pieces);
  CHECK(*reinterpret_cast<const float*>(old.data() + old.size() - 4) == 0);
  CHECK(f.Send(pull)->values() == Floats(200000, 1));
}

TEST_CASE(
    "S6: a malformed section is refused with a reason, its neighbours are served, and its shard "
    "has not changed") {
  HostFixture f;
  f.Hold(CountingShard(0));
  f.Hold(CountingShard(1));
  RequestBuilder seed;
  seed.Push(0, 0, 0, Floats(4, 1));
  CHECK(f.Send(seed)->push() == v1::APPLIED);

  struct Case {
    const char* name;
    std::function<void(RequestBuilder&)>
        spoil;  // changes the request, whose pushes[0] is for shard 0
    v1::PushAnswer want;
    const char* words;
  };
  const auto section = [](RequestBuilder& r) { return r.header.mutable_pushes(0); };
  const std::vector<Case> cases = {
      {"wrong shape",
       [&](RequestBuilder& r) { r.payloads[0].bytes = r.payloads[0].bytes.first(12); }, v1::INVALID,
       "gradient bytes mismatch: variable=count shard=0 want=16 got=12"},
      {"wrong rows", [&](RequestBuilder& r) { section(r)->set_rows(5); }, v1::INVALID,
       "gradient rows mismatch: variable=count shard=0 want=4 got=5"},
      {"wrong dtype", [&](RequestBuilder& r) { section(r)->set_dtype(v1::DTYPE_INT64); },
       v1::INVALID, "gradient dtype mismatch: variable=count shard=0 want=float32 got=another"},
      {"dtype from the future",
       [&](RequestBuilder& r) { section(r)->set_dtype(static_cast<v1::DType>(4711)); }, v1::INVALID,
       "got=4711"},
      {"no dtype", [&](RequestBuilder& r) { section(r)->clear_dtype(); }, v1::INVALID,
       "gradient dtype mismatch"},
      {"codec", [&](RequestBuilder& r) { section(r)->set_codec(static_cast<v1::Codec>(3)); },
       v1::INVALID, "codec is not built, expected CODEC_NONE, got=3"},
      {"kind not given", [&](RequestBuilder& r) { section(r)->clear_kind(); }, v1::INVALID,
       "update kind is not built"},
      {"kind not built", [&](RequestBuilder& r) { section(r)->set_kind(v1::ASSIGN); }, v1::INVALID,
       "update kind is not built, expected GRADIENT, MOVING_AVERAGE or SKIP, got=3"},
      {"kind of a moving average",
       [&](RequestBuilder& r) { section(r)->set_kind(v1::MOVING_AVERAGE); }, v1::INVALID,
       "update kind mismatch: variable=count shard=0 want=GRADIENT got=MOVING_AVERAGE"},
      {"ids of a table", [&](RequestBuilder& r) { section(r)->mutable_ids(); }, v1::INVALID,
       "a dense shard takes no id list"},
      {"update number", [&](RequestBuilder& r) { section(r)->set_update(4096); }, v1::INVALID,
       "the update number is out of range: variable=count shard=0 update=4096 max=4095"},
      {"closure number", [&](RequestBuilder& r) { section(r)->set_closure(~0ull); }, v1::INVALID,
       "the closure number is out of range"},
      {"skip with a payload", [&](RequestBuilder& r) { section(r)->set_kind(v1::SKIP); },
       v1::INVALID, "a skipped update must have no payload"},
      {"unknown shard", [&](RequestBuilder& r) { section(r)->set_shard(8); }, v1::INVALID,
       "unknown shard: shard=8 shards=8"},
      {"shard held elsewhere", [&](RequestBuilder& r) { section(r)->set_shard(7); }, v1::STALE, ""},
      {"stale epoch", [&](RequestBuilder& r) { section(r)->mutable_epoch()->set_n(4); }, v1::STALE,
       ""},
      {"epoch of another term",
       [&](RequestBuilder& r) { section(r)->mutable_epoch()->set_term(2); }, v1::STALE, ""},
  };
  std::uint64_t update = 0;
  for (const Case& c : cases) {
    INFO(c.name);
    RequestBuilder request;
    request.Push(0, 1, 0, Floats(4, 1));
    request.Push(1, 1, static_cast<std::uint32_t>(update++), Floats(4, 1));
    c.spoil(request);
    const std::string before = [&] {
      const auto states = f.Report();
      return states[0].SerializeAsString();
    }();
    const auto reply = f.Send(request);
    REQUIRE(reply->answered);
    CHECK(reply->push(0) == c.want);
    CHECK_THAT(reply->response.header->pushes(0).message(), Catch::Matchers::Contains(c.words));
    if (c.want == v1::STALE)
      CHECK(client::FromProto<MapVersion>(reply->response.header->pushes(0).version()) ==
            MapVersion{1, 9});
    CHECK(reply->push(1) == v1::APPLIED);
    CHECK(f.Report()[0].SerializeAsString() == before);
  }
}

TEST_CASE("S6: a job that is not held is stale, with no version known") {
  HostFixture f;
  f.Hold(CountingShard(0));
  RequestBuilder request;
  request.header.set_job_uid(4);
  request.Push(0, 0, 0, Floats(4, 1));
  request.Pull(0);
  const auto reply = f.Send(request);
  CHECK(reply->push() == v1::STALE);
  CHECK(reply->pull() == v1::PULL_STALE);
  CHECK(client::FromProto<MapVersion>(reply->response.header->pushes(0).version()) ==
        MapVersion{0, 0});
}

TEST_CASE(
    "S6: pulls of a stale epoch, of an unknown shard and with ids are refused by their type") {
  HostFixture f;
  f.Hold(CountingShard(0));
  RequestBuilder request;
  request.Pull(0).mutable_epoch()->set_n(6);
  request.Pull(8);
  request.Pull(0).mutable_ids();
  request.Pull(0);
  const auto reply = f.Send(request);
  CHECK(reply->pull(0) == v1::PULL_STALE);
  CHECK(client::FromProto<MapVersion>(reply->response.header->pulls(0).version()) ==
        MapVersion{1, 9});
  CHECK(reply->pull(1) == v1::PULL_INVALID);
  CHECK(reply->pull(2) == v1::PULL_INVALID);
  CHECK(reply->response.header->pulls(2).message() ==
        "a dense shard takes no id list: variable=count shard=0");
  CHECK(reply->pull(3) == v1::VALUES);
}

TEST_CASE("S6: garbage is answered with an error for the frame, and nothing has changed") {
  HostFixture f;
  f.Hold(CountingShard(0));
  RequestBuilder request;
  request.Push(0, 0, 0, Floats(4, 1));
  request.Pull(0);
  const std::string before = StateText(f);
  const tensor::AlignedBuffer good = request.Frame();
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    const std::size_t size = round % 3 == 0 ? random() % 200 : good.size();
    tensor::AlignedBuffer bytes(size);
    if (size == good.size()) std::memcpy(bytes.data(), good.data(), size);
    for (std::size_t i = 0; i < (size == good.size() ? 4 : size); ++i)
      bytes.data()[i] = std::byte(random());
    const auto reply = f.Start(std::move(bytes));
    f.RunAll();
    REQUIRE(reply->answered);
    // By chance the random length is the right one.
    if (!reply->response.header->has_error()) continue;
    ++refused;
    CHECK(reply->response.header->error().code() ==
          static_cast<int>(absl::StatusCode::kInvalidArgument));
    CHECK_FALSE(reply->response.header->error().retryable());
    CHECK(reply->response.header->pushes_size() == 0);
    if (refused < 50) CHECK(StateText(f) == before);
  }
  CHECK(refused > 250);
  CHECK(StateText(f) == before);
}

TEST_CASE(
    "values that do not fit into the reserved answer are refused, whatever the request claims to "
    "have reserved") {
  HostFixture f(2, 1 << 20);
  f.Hold(CountingShard(0, 100000));  // 400 kB of values
  RequestBuilder request;
  request.header.set_response_bytes_max(500000);
  request.Pull(0);
  request.Pull(0);
  auto reply = f.Send(request);
  CHECK(reply->pull(0) == v1::VALUES);
  CHECK(reply->pull(1) == v1::PULL_INVALID);
  CHECK_THAT(reply->response.header->pulls(1).message(),
             Catch::Matchers::Contains(
                 "the values exceed the reservation of the request: shard=0 bytes=400000"));
  // The request claims to have memory for any answer. The server's own limit must refuse these
  // 3,000 pulls, whose values have 1.2 GB.
  RequestBuilder greedy;
  greedy.header.set_response_bytes_max(~0ull);
  for (int i = 0; i < 3000; ++i) greedy.Pull(0);
  reply = f.Send(greedy);
  REQUIRE(reply->answered);
  CHECK(reply->pull(1) == v1::VALUES);
  CHECK(reply->pull(2) == v1::PULL_INVALID);
  CHECK(reply->pull(2999) == v1::PULL_INVALID);
}

TEST_CASE("the request's bytes and their place in the budget are released before the answer") {
  HostFixture f;
  f.Hold(CountingShard(0));
  RequestBuilder request;
  request.Push(0, 0, 0, Floats(4, 1));
  int released = 0;
  const auto reply = f.Start(request.Frame(), std::make_unique<CountedReservation>(&released));
  CHECK(released == 0);
  f.RunAll();
  CHECK(reply->answered);
  CHECK(released == 1);
}

TEST_CASE("a request without sections is answered at once") {
  HostFixture f;
  const auto reply = f.Start(RequestBuilder().Frame());
  CHECK(reply->answered);
  CHECK_FALSE(reply->response.header->has_error());
}

TEST_CASE("requests with large headers are parsed off the caller's thread") {
  HostFixture f;
  f.Hold(CountingShard(0));
  RequestBuilder request;
  for (int i = 0; i < 1000; ++i) request.Pull(0);
  const auto reply = f.Start(request.Frame());
  CHECK_FALSE(reply->answered);
  f.RunAll();
  REQUIRE(reply->answered);
  CHECK(reply->response.header->pulls_size() == 1000);
}

TEST_CASE(
    "a small pull does not wait behind a series of large pushes, and each shard keeps its order") {
  HostFixture f(1);
  const std::uint64_t large = (1 << 20) / 4;
  f.Hold(CountingShard(0, large));
  f.Hold(CountingShard(1));
  std::vector<std::shared_ptr<Reply>> pushes;
  for (std::uint32_t u = 0; u < 8; ++u) {
    RequestBuilder push;
    push.Push(0, 0, u, Floats(large, 1));
    push.Pull(0);
    pushes.push_back(f.Start(push.Frame()));
  }
  RequestBuilder small;
  small.Pull(1);
  const auto reply = f.Start(small.Frame());
  f.RunAll();
  CHECK(reply->order < 3);
  for (std::size_t u = 0; u < 8; ++u) CHECK(pushes[u]->answered);
  // Each pull must see the push of its own request and the pushes before it.
  for (std::size_t u = 0; u < 8; ++u) CHECK(pushes[u]->values()[0] == static_cast<float>(u + 1));
}

TEST_CASE(
    "the largest apply yields: a small pull of another shard is answered before it ends, a pull of "
    "its own sees all or nothing") {
  HostFixture f(1);
  const std::uint64_t large = (64ull << 20) / sizeof(float);
  f.Hold(CountingShard(0, large));
  f.Hold(CountingShard(1));
  RequestBuilder pull, push, small;
  pull.Pull(0);
  push.Push(0, 0, 0, Floats(large, 1));
  small.Pull(1);
  // The answer to this pull refers to every chunk, so the next apply must write to other memory.
  const auto before = f.Send(pull);
  const auto pushed = f.Start(push.Frame()), after = f.Start(pull.Frame());
  const auto pulled = f.Start(small.Frame());  // this pull comes during the apply
  f.RunAll();
  REQUIRE(before->answered);
  REQUIRE(pulled->answered);
  REQUIRE(pushed->answered);
  REQUIRE(after->answered);
  CHECK(pushed->push() == v1::APPLIED);
  const auto all = [](const Reply& reply, float want) {
    const auto bytes = reply.response.payloads.at(0);
    const auto* floats = reinterpret_cast<const float*>(bytes.data());
    return bytes.size() == (64u << 20) && std::all_of(floats, floats + bytes.size() / sizeof(float),
                                                      [want](float v) { return v == want; });
  };
  CHECK(all(*before, 0));
  CHECK(all(*after, 1));
  CHECK(pulled->order < pushed->order);
  CHECK(pushed->order < after->order);
}

TEST_CASE(
    "in the middle of an apply: Close is taken, Seal and reports wait for its end, Drop answers it "
    "with STALE") {
  const std::uint64_t large = (4 << 20) / sizeof(float);  // the apply takes four turns
  RequestBuilder push, next;
  push.Push(0, 0, 0, Floats(large, 1));
  next.Push(0, 1, 0, Floats(large, 1));
  HostFixture f(1);
  f.Hold(CountingShard(0, large));
  ShardExecutor& shards = f.host->shard_executor(ShardId(0));
  const ShardKey key{JobUid(kJob), ShardId(0)};

  std::vector<std::string> order;
  std::vector<v1::ShardState> states;
  // Start runs the first turn of the apply before any task that is posted afterwards.
  const auto reply = f.Start(push.Frame());
  const auto late = f.Start(next.Frame());
  shards.Close(key, kEpoch, {1, 9}, IntervalSet::Range(0, 1), {},
               [&](bool taken) { order.push_back(taken ? "closed" : "ignored"); });
  shards.Seal(key, kEpoch,
              [&] { order.push_back(reply->answered ? "sealed" : "sealed too early"); });
  shards.Report(JobUid(0), true, [&](std::vector<v1::ShardState> s) {
    order.push_back(reply->answered ? "reported" : "reported too early");
    states = std::move(s);
  });
  f.RunAll();
  CHECK(order == std::vector<std::string>{"closed", "sealed", "reported"});
  REQUIRE(reply->answered);
  CHECK(reply->push() == v1::APPLIED);
  REQUIRE(late->answered);
  CHECK(late->push() == v1::REFUSED);
  HostFixture whole(1);
  whole.Hold(CountingShard(0, large));
  whole.Send(push);
  REQUIRE(states.size() == 1);
  CHECK(states[0].digest() == whole.Report()[0].digest());
  CHECK(states[0].slot_digest() == whole.Report()[0].slot_digest());
  CHECK(states[0].updates_applied() == 1);
  CHECK(states[0].open_closures() == 0);

  const auto dropped = whole.Start(next.Frame());
  whole.host->shard_executor(ShardId(0)).Drop(key, kEpoch);
  int reports = 0;
  whole.host->shard_executor(ShardId(0))
      .Report(JobUid(0), true,
              [&](std::vector<v1::ShardState> s) { reports += s.empty() ? 1 : 100; });
  whole.RunAll();
  REQUIRE(dropped->answered);
  CHECK(dropped->push() == v1::STALE);
  CHECK(reports == 1);
}

TEST_CASE("a shard that is dropped while it is next in its executor's queue is not served") {
  HostFixture f(1);
  for (std::uint32_t shard = 0; shard < 3; ++shard) f.Hold(CountingShard(shard));
  const auto pull = [&f](std::initializer_list<std::uint32_t> shards) {
    RequestBuilder request;
    for (const std::uint32_t shard : shards) request.Pull(shard);
    return f.Send(request);
  };
  CHECK(pull({0})->pull() == v1::VALUES);  // the next turn would be that of shard 1
  f.host->shard_executor(ShardId(0)).Drop({JobUid(kJob), ShardId(1)}, kEpoch);
  const auto without = pull({1, 2});
  CHECK(without->pull(0) == v1::PULL_STALE);
  CHECK(without->pull(1) == v1::VALUES);
  CHECK(pull({0})->pull() == v1::VALUES);  // the next turn would be that of shard 2
  f.Hold(CountingShard(1));
  RequestBuilder push;
  push.Push(1, 0, 0, Floats(4, 1));
  CHECK(f.Send(push)->push() == v1::APPLIED);
  const auto all = pull({2, 0, 1, 2});
  CHECK(all->values(0) == Floats(4, 0));
  CHECK(all->values(2) == Floats(4, 1));
  f.host->DropJob(JobUid(kJob));
  CHECK(pull({0})->pull() == v1::PULL_STALE);
}

TEST_CASE(
    "reports with digests that overlap share their sums, each is complete, and a report without "
    "digests is not delayed") {
  HostFixture f(1);
  constexpr std::uint32_t kShards = 16;
  // The digest of each of these shards takes one turn of the executor.
  for (std::uint32_t shard = 0; shard < kShards; ++shard) f.Hold(CountingShard(shard, 262144));
  f.Hold(CountingShard(0, 4, kJob + 1));
  const std::vector<v1::ShardState> want = f.Report();
  REQUIRE(want.size() == kShards + 1);
  const auto cost = [&](int reports) {
    std::vector<std::size_t> order;
    for (int i = 0; i < reports; ++i) {
      f.host->Report(JobUid(kJob), true, [&](std::vector<v1::ShardState> states) {
        order.push_back(states.size());
        for (std::size_t p = 0; p < states.size(); ++p)
          CHECK(states[p].digest() == want[p].digest());
      });
    }
    f.host->Report(JobUid(0), false,
                   [&](std::vector<v1::ShardState> states) { order.push_back(states.size()); });
    const int tasks = f.executors[0]->RunReady();
    CHECK(order.size() == static_cast<std::size_t>(reports) + 1);
    CHECK(order.front() == kShards + 1);
    CHECK(std::count(order.begin(), order.end(), kShards) == reports);
    return tasks;
  };
  const int one = cost(1);
  CHECK(one >= static_cast<int>(kShards));
  CHECK(cost(20) <= one + 2 * 20);
  // A report about another job computes its own digests.
  std::size_t other = 0, all = 0;
  f.host->Report(JobUid(kJob + 1), true,
                 [&](std::vector<v1::ShardState> states) { other = states.size(); });
  f.host->Report(JobUid(0), true, [&](std::vector<v1::ShardState> states) { all = states.size(); });
  f.RunAll();
  CHECK(other == 1);
  CHECK(all == kShards + 1);
  // A report must not wait for a shard that is dropped before its digest is computed.
  std::size_t left = 0;
  f.host->Report(JobUid(kJob), true,
                 [&](std::vector<v1::ShardState> states) { left = states.size(); });
  f.host->DropJob(JobUid(kJob));
  f.RunAll();
  CHECK(left == 1);
}

TEST_CASE("a series of large pushes does not delay a report") {
  HostFixture f(1);
  const std::uint64_t large = 300000;  // the apply takes a little more than one turn
  f.Hold(CountingShard(0, large));
  for (std::uint32_t u = 0; u < 4; ++u) {
    RequestBuilder push;
    push.Push(0, 0, u, Floats(large, 1));
    f.Start(push.Frame());
  }
  std::uint64_t lsn = 0;
  f.host->shard_executor(ShardId(0)).Report(JobUid(0), false, [&](std::vector<v1::ShardState> s) {
    lsn = s.at(0).lsn();
  });
  f.RunAll();
  CHECK(lsn == 1);
  CHECK(f.Report()[0].lsn() == 4);
}

TEST_CASE("a shard that is assigned again answers sections queued for the old epoch with STALE") {
  HostFixture f(1);
  f.Hold(CountingShard(0));
  RequestBuilder request;
  request.Push(0, 0, 0, Floats(4, 1));
  const auto reply = f.Start(request.Frame());
  f.host->shard_executor(ShardId(0))
      .Assign(CountingShard(0), {1, 8}, {1, 7}, {}, [](ShardExecutor::Loaded) {});
  f.RunAll();
  REQUIRE(reply->answered);
  const auto states = f.Report();
  REQUIRE(states.size() == 1);
  CHECK(states[0].epoch().n() == 8);
  CHECK(states[0].lsn() == 0);
  const auto late = f.Send(request);
  CHECK(late->push() == v1::STALE);
}

TEST_CASE("Drop removes only the epoch that it names; dropping a job removes all of its shards") {
  HostFixture f;
  f.Hold(CountingShard(0));
  f.Hold(CountingShard(1));
  f.Hold(CountingShard(1, 4, kJob + 1));
  f.host->shard_executor(ShardId(0)).Drop({JobUid(kJob), ShardId(0)}, {1, 4});
  CHECK(f.Report().size() == 3);
  f.host->shard_executor(ShardId(0)).Drop({JobUid(kJob), ShardId(0)}, kEpoch);
  CHECK(f.Report().size() == 2);
  f.host->DropJob(JobUid(kJob));
  const auto left = f.Report();
  REQUIRE(left.size() == 1);
  CHECK(left[0].job_uid() == kJob + 1);
}

TEST_CASE(
    "a cut in the middle of an apply is the state between two updates, and a dropped shard answers "
    "it") {
  constexpr std::uint64_t kRows = 1'000'000;  // the apply takes four turns
  const ShardKey key{JobUid(kJob), ShardId(0)};
  HostFixture f(1);
  f.Hold(CountingShard(0, kRows));
  RequestBuilder request;
  request.Push(0, 0, 0, Floats(kRows, 1));
  request.Push(0, 0, 1, Floats(kRows, 1));
  std::vector<absl::StatusOr<ShardCut>> cuts;
  const auto take = [&](absl::StatusOr<ShardCut> cut) { cuts.push_back(std::move(cut)); };
  ShardExecutor& shards = f.host->shard_executor(ShardId(0));
  auto reply = f.Start(request.Frame());
  shards.Cut(key, kEpoch, take);  // ordered after the first MiB of the apply
  shards.Cut(key, {1, 4}, take);  // the epoch is not held, so the answer comes at once
  f.RunAll();
  REQUIRE(reply->answered);
  REQUIRE(cuts.size() == 2);
  CHECK(cuts[0].status().code() == absl::StatusCode::kNotFound);
  REQUIRE(cuts[1].ok());
  const auto check = [&](const ShardCut& cut, std::uint64_t lsn) {
    CHECK(cut.lsn == lsn);
    CHECK(cut.ledger.Has(ClosureId(0), UpdateIndex(static_cast<std::uint32_t>(lsn - 1))));
    CHECK_FALSE(cut.ledger.Has(ClosureId(0), UpdateIndex(static_cast<std::uint32_t>(lsn))));
    bool whole = true;
    for (std::size_t c = 0; c < cut.values.chunks(); ++c)
      for (const float v : cut.values.chunk(c)) whole = whole && v == static_cast<float>(lsn);
    CHECK(whole);
  };
  check(*cuts[1], 1);
  // The shard is sealed while the cut waits. The cut must contain exactly the pushes that were
  // admitted before.
  cuts.clear();
  RequestBuilder third;
  third.Push(0, 0, 2, Floats(kRows, 1));
  reply = f.Start(third.Frame());
  shards.Seal(key, kEpoch, [] {});
  shards.Cut(key, kEpoch, take);
  f.RunAll();
  REQUIRE(cuts.size() == 1);
  check(*cuts[0], 3);
  // In the first case the shard is dropped while the cut waits. In the second case the executor
  // ends while the cut waits. In both cases the function that waits for the cut must not be called.
  cuts.clear();
  f.Hold(CountingShard(0, kRows), {1, 6});
  v1::PushSection& push = *third.header.mutable_pushes(0);
  *push.mutable_epoch() = client::ToProto(ShardEpoch{1, 6});
  reply = f.Start(third.Frame());
  shards.Cut(key, {1, 6}, take);
  shards.Drop(key, {1, 6});
  f.RunAll();
  REQUIRE(cuts.size() == 1);
  CHECK(cuts[0].status().code() == absl::StatusCode::kNotFound);
  CHECK(reply->push() == v1::STALE);
  cuts.clear();
  auto uncalled = std::make_shared<int>(0);
  shards.Cut(key, {1, 6}, [uncalled](absl::StatusOr<ShardCut>) { ++*uncalled; });
  f.executors.clear();
  CHECK(*uncalled == 0);
  CHECK(uncalled.use_count() == 1);
}

TEST_CASE("an adopted shard replaces the held one, whose waiting pushes are stale") {
  HostFixture f(1);
  f.Hold(CountingShard(0));
  RequestBuilder request;
  request.Push(0, 0, 0, Floats(4, 1));
  CHECK(f.Send(request)->push() == v1::APPLIED);
  auto other = *Shard::FromSeed(CountingShard(0), {1, 8}, {1, 7}, IntervalSet{5});
  const auto reply = f.Start(request.Frame());
  ShardExecutor::Loaded loaded;
  f.host->shard_executor(ShardId(0)).Adopt(std::move(other), [&](ShardExecutor::Loaded l) {
    loaded = std::move(l);
  });
  f.RunAll();
  CHECK(loaded.status.ok());
  CHECK(loaded.value_bytes == 16);
  CHECK(loaded.refused == IntervalSet{5});
  CHECK(f.Report()[0].epoch().n() == 8);
  CHECK(f.Report()[0].lsn() == 0);
  CHECK(f.Send(request)->push() == v1::STALE);
  bool vacated = false;
  f.host->shard_executor(ShardId(0)).Vacate({JobUid(kJob), ShardId(0)}, [&] { vacated = true; });
  f.RunAll();
  CHECK(vacated);
  CHECK(f.Report().empty());
}

TEST_CASE("a report has every shard's numbers in order, digests only when asked") {
  HostFixture f(3);
  for (std::uint32_t shard = 0; shard < 5; ++shard) f.Hold(CountingShard(shard));
  RequestBuilder request;
  request.Push(2, 0, 0, Floats(4, 1));
  v1::PushSection& skip = request.Push(2, 0, 1, {});
  skip.set_kind(v1::SKIP);
  skip.set_skip_reason("nan");
  CHECK(f.Send(request)->push(1) == v1::APPLIED);
  CHECK(f.Send(request)->push(1) == v1::DUPLICATE);
  const auto states = f.Report(true);
  REQUIRE(states.size() == 5);
  for (std::uint32_t shard = 0; shard < 5; ++shard) CHECK(states[shard].shard() == shard);
  CHECK(states[2].updates_applied() == 1);
  CHECK(states[2].skips() == 1);
  CHECK(states[2].lsn() == 2);
  CHECK(states[2].vlsn() == 1);
  CHECK(states[2].duplicates_refused() == 2);
  CHECK(states[2].open_closures() == 1);
  CHECK(states[2].bytes() == 16);
  CHECK(states[2].slot_bytes() == 16);
  CHECK(states[2].digest() != states[1].digest());
  CHECK(states[0].digest() == states[1].digest());
  CHECK(f.Report(false)[2].digest() == 0);
}

TEST_CASE(
    "a report counts the requests and answers of each shard: sections with values or an update, "
    "and their bytes") {
  HostFixture f;
  f.Hold(CountingShard(0));
  f.Hold(CountingSlot(1));
  f.Hold(CountingShard(2));
  RequestBuilder request;
  request.Push(0, 0, 0, Floats(4, 1));
  request.PushRows(1, 0, 0, {7, -1}, {1, 2, 3, 4});
  request.Pull(0);
  request.PullRows(1, {-1, 5, 7});
  CHECK(f.Send(request)->push() == v1::APPLIED);
  RequestBuilder skip;
  v1::PushSection& section = skip.Push(0, 0, 1, {});
  section.set_kind(v1::SKIP);
  section.set_skip_reason("nan");
  CHECK(f.Send(skip)->push() == v1::APPLIED);
  // A repeated push gets values but does not count as an update. Refused and stale requests do not
  // count as traffic of the shard.
  CHECK(f.Send(request)->push() == v1::DUPLICATE);
  RequestBuilder stale;
  *stale.Push(2, 0, 0, Floats(4, 1)).mutable_epoch() = client::ToProto(ShardEpoch{1, 4});
  stale.Push(2, 0, 0, Floats(3, 1));
  CHECK(f.Send(stale)->push() == v1::STALE);
  RequestBuilder unchanged;
  v1::PullSection& pull = unchanged.Pull(0);
  pull.set_has(true);
  *pull.mutable_have_start() = client::ToProto(kStart);
  pull.set_have_vlsn(1);
  CHECK(f.Send(unchanged)->pull() == v1::UNCHANGED);
  const auto states = f.Report();
  REQUIRE(states.size() == 3);
  const auto traffic = [&](std::size_t i) {
    return std::vector<std::uint64_t>{states[i].pulls(), states[i].pushes(),
                                      states[i].bytes_received(), states[i].bytes_sent()};
  };
  CHECK(traffic(0) == std::vector<std::uint64_t>{2, 2, 16, 2 * 16});
  CHECK(traffic(1) == std::vector<std::uint64_t>{2, 1, 2 * 8 + 16 + 2 * 3 * 8, 2 * 3 * 8});
  CHECK(traffic(2) == std::vector<std::uint64_t>{0, 0, 0, 0});
}

TEST_CASE(
    "failpoints: a push lost before its apply changes nothing, and the repeat of a push lost after "
    "it is a duplicate") {
  HostFixture f(1);
  f.Hold(CountingShard(0));
  RequestBuilder request;
  request.Push(0, 0, 0, Floats(4, 1));
  REQUIRE(f.failpoints.Arm("server.before_apply=1*drop;server.after_apply=1*error", 1).ok());
  auto reply = f.Send(request);
  CHECK_FALSE(reply->answered);
  REQUIRE(reply->failed.has_value());
  CHECK(reply->failed->code() == absl::StatusCode::kInternal);
  CHECK(f.Report()[0].lsn() == 0);
  reply = f.Send(request);  // the push is applied, and its answer is lost
  CHECK_FALSE(reply->answered);
  CHECK(f.Report()[0].lsn() == 1);
  CHECK(f.Send(request)->push() == v1::DUPLICATE);
}

TEST_CASE("failpoints: a delay delays its shard, keeps its order, and affects no other shard") {
  HostFixture f(1);
  f.Hold(CountingShard(0));
  f.Hold(CountingShard(1));
  REQUIRE(f.failpoints.Arm("server.before_apply=1*delay(50)", 1).ok());
  RequestBuilder first, second, other;
  first.Push(0, 0, 0, Floats(4, 1));
  first.Pull(0);
  second.Pull(0);
  other.Pull(1);
  const auto a = f.Send(first), b = f.Send(second), c = f.Send(other);
  CHECK_FALSE(a->answered);
  CHECK_FALSE(b->answered);
  CHECK(c->answered);
  f.executors[0]->Advance(std::chrono::milliseconds(50));
  REQUIRE(a->answered);
  REQUIRE(b->answered);
  CHECK(b->values() == Floats(4, 1));
}

// This test is most useful under ThreadSanitizer. It uses real executors, sends requests from
// several threads, and sends control messages in between.
TEST_CASE("many callers on real executors: every update is applied once") {
  std::vector<std::unique_ptr<runtime::ThreadExecutor>> executors;
  metrics::Registry registry;
  ShardHost::Options options;
  for (int i = 0; i < 3; ++i) {
    executors.push_back(
        std::make_unique<runtime::ThreadExecutor>(runtime::ThreadExecutor::Options{"shards"}));
    options.executors.push_back(executors.back().get());
  }
  options.registry = &registry;
  ShardHost host(std::move(options));
  constexpr std::uint32_t kShards = 5, kUpdates = 100;
  for (std::uint32_t shard = 0; shard < kShards; ++shard)
    host.shard_executor(ShardId(shard))
        .Assign(CountingShard(shard), kEpoch, kStart, {}, [](ShardExecutor::Loaded) {});

  class CountingResponder final : public transport::DataResponder {
   public:
    CountingResponder(std::atomic<int>* left, runtime::WaitableEvent* done)
        : left_(left), done_(done) {}
    void Answer(transport::Frame) override {
      if (left_->fetch_sub(1) == 1) done_->Set();
    }
    void Fail(absl::Status) override {}

   private:
    std::atomic<int>* left_;
    runtime::WaitableEvent* done_;
  };
  constexpr int kCallers = 3;
  std::atomic<int> left{kCallers * kUpdates * 2};
  runtime::WaitableEvent done;
  {
    std::vector<runtime::Thread> callers;
    for (int caller = 0; caller < kCallers; ++caller) {
      callers.emplace_back("caller", [&, caller] {
        for (std::uint32_t u = 0; u < kUpdates; ++u) {
          RequestBuilder request;
          // If the answer is small and the executor is idle, the request runs on the caller's
          // thread.
          if (caller != 0) request.header.set_response_bytes_max(4096);
          for (std::uint32_t shard = 0; shard < kShards; ++shard)
            request.Push(shard, static_cast<std::uint64_t>(caller), u, Floats(4, 1));
          for (std::uint32_t shard = 0; shard < kShards; ++shard) request.Pull(shard);
          for (int twice = 0; twice < 2; ++twice)
            host.Handle({request.Frame(), nullptr},
                        std::make_unique<CountingResponder>(&left, &done));
          if (u % 20 == 0) host.Report(JobUid(0), true, [](std::vector<v1::ShardState>) {});
        }
      });
    }
  }
  done.Wait();
  for (auto& executor : executors) executor->Shutdown();
  CHECK(host.updates_applied() == kCallers * kUpdates * kShards);
  CHECK(host.duplicates() == kCallers * kUpdates * kShards);
}

TEST_CASE(
    "a brief request is answered by its caller's thread when the executor is idle; a large one, or "
    "a push to tables, never") {
  runtime::ThreadExecutor executor({"shards"});
  metrics::Registry registry;
  ShardHost::Options options;
  options.executors = {&executor};
  options.registry = &registry;
  ShardHost host(std::move(options));
  for (const ShardSettings& settings : {CountingShard(0), CountingSlot(1)}) {
    runtime::WaitableEvent held;
    host.shard_executor(settings.shard)
        .Assign(settings, kEpoch, kStart, {}, [&](ShardExecutor::Loaded) { held.Set(); });
    held.Wait();
  }
  class ThreadResponder final : public transport::DataResponder {
   public:
    ThreadResponder(std::thread::id* by, runtime::WaitableEvent* answered)
        : by_(by), answered_(answered) {}
    void Answer(transport::Frame) override {
      *by_ = std::this_thread::get_id();
      answered_->Set();
    }
    void Fail(absl::Status) override {}

   private:
    std::thread::id* const by_;
    runtime::WaitableEvent* const answered_;
  };
  const auto answered_here = [&](const RequestBuilder& request) {
    // The executor runs work on the thread of a caller only while its own thread is idle.
    while (!executor.RunIfIdle([] {})) {
    }
    std::thread::id by;
    runtime::WaitableEvent answered;
    host.Handle({request.Frame(), nullptr}, std::make_unique<ThreadResponder>(&by, &answered));
    answered.Wait();
    return by == std::this_thread::get_id();
  };
  RequestBuilder brief;
  brief.header.set_response_bytes_max(1024);
  brief.Push(0, 0, 0, Floats(4, 1));
  brief.Pull(0);
  CHECK(answered_here(brief));
  RequestBuilder large;
  large.Push(0, 0, 1, Floats(4, 1));
  large.Pull(0);
  CHECK_FALSE(answered_here(large));
  RequestBuilder rows;
  rows.header.set_response_bytes_max(1024);
  rows.PullRows(1, {7});
  CHECK(answered_here(rows));
  rows.PushRows(1, 0, 0, {7}, {1, 1});
  CHECK_FALSE(answered_here(rows));
  executor.Shutdown();
  CHECK(host.updates_applied() == 3);
}

TEST_CASE(
    "rows of a slot through the wire: pushed, pulled in the order of the ids, never more than the "
    "request reserved") {
  HostFixture f;
  f.Hold(CountingSlot(1));
  f.Hold(CountingShard(2));
  RequestBuilder both;
  both.PushRows(1, 0, 0, {7, -1}, {1, 2, 3, 4});
  both.Push(2, 0, 0, {1, 1, 1, 1});
  both.Pull(2);
  both.PullRows(1, {-1, 5, 7});
  const auto reply = f.Send(both);
  REQUIRE(reply->answered);
  CHECK(reply->push(0) == v1::APPLIED);
  CHECK(reply->push(1) == v1::APPLIED);
  CHECK(reply->values(0) == std::vector<float>(4, 1.f));
  CHECK(reply->values(1) == std::vector<float>{3, 4, 0, 0, 1, 2});
  CHECK(f.Send(both)->push(0) == v1::DUPLICATE);

  // The rows of the second pull need more bytes than the request allows for its answer. The server
  // must refuse this pull before it reserves memory for it.
  RequestBuilder greedy;
  greedy.header.set_response_bytes_max(63);
  greedy.PullRows(1, std::vector<std::int64_t>(5, 7));
  greedy.PullRows(1, std::vector<std::int64_t>(3, 7));
  const auto refused = f.Send(greedy);
  REQUIRE(refused->answered);
  CHECK(refused->pull(0) == v1::VALUES);
  CHECK(refused->pull(1) == v1::PULL_INVALID);
  CHECK_THAT(
      refused->response.header->pulls(1).message(),
      Catch::Contains("exceed the reservation of the request: bytes=24 reserved=63 left=23"));

  RequestBuilder wrong;
  wrong.Push(1, 1, 0, {1, 1});
  wrong.Pull(1);
  wrong.PullRows(2, {7});
  wrong.PullRows(1, {7}).set_tables(0, 1);
  const auto invalid = f.Send(wrong);
  CHECK(invalid->push() == v1::INVALID);
  CHECK_THAT(invalid->response.header->pushes(0).message(),
             Catch::Contains("a slot needs an id list"));
  for (int i = 0; i < 3; ++i) CHECK(invalid->pull(i) == v1::PULL_INVALID);
  CHECK_THAT(invalid->response.header->pulls(1).message(),
             Catch::Contains("a dense shard takes no id list"));
  CHECK_THAT(invalid->response.header->pulls(2).message(),
             Catch::Contains("no such table: table=1 tables=1"));

  const std::vector<v1::ShardState> states = f.Report();
  REQUIRE(states.size() == 2);
  REQUIRE(states[0].tables_size() == 1);
  CHECK(states[0].tables(0).name() == "user");
  CHECK(states[0].tables(0).rows() == 2);
  CHECK(states[0].tables(0).bytes() == 16);
  CHECK(states[0].tables(0).digest() == states[0].digest());
  CHECK(states[0].bytes() == 16);
  CHECK(states[1].tables_size() == 0);
}

}  // namespace
}  // namespace evergrad::ps_server
