// Tests transcripts of the messages between a coordinator and a server: Assign, Close, Seal and
// Drop, and sessions that begin and end.
#include "ps_server/service/control.h"
#include "service_fixture.h"
#include "tests/support/manual_executor.h"
#include "tests/support/memory_files/memory_file_system.h"

namespace evergrad::ps_server {
namespace {

using Floats = std::vector<float>;

struct ControlFixture : HostFixture {
  runtime::ManualExecutor control_executor{&clock};
  log::Logger logger{{.level = log::Level::kError, .file = "/dev/null"}};
  bool connected = true;
  std::vector<v1::TaskMessage> sent;
  fs::MemoryFileSystem files;
  std::unique_ptr<Control> control;
  // No order in these tests reaches the writer or the restorer, so their threads post no task.
  // snapshots_test.cc tests both with real executors.
  RealClock real_clock;
  SnapshotWriter writer;
  Restorer restorer;

  ControlFixture() : writer(WriterOptions()), restorer(RestorerOptions()) {
    Control::Options options;
    options.executor = &control_executor;
    options.host = host.get();
    options.logger = &logger;
    options.clock = &clock;
    options.writer = &writer;
    options.restorer = &restorer;
    options.send = [this](v1::TaskMessage message) {
      if (connected) sent.push_back(std::move(message));
      return connected;
    };
    control = std::make_unique<Control>(std::move(options));
    Register(1);
  }
  SnapshotWriter::Options WriterOptions() {
    SnapshotWriter::Options options;
    options.files = &files;
    options.registry = &registry;
    options.clock = &real_clock;
    return options;
  }
  Restorer::Options RestorerOptions() {
    Restorer::Options options;
    options.files = &files;
    options.registry = &registry;
    options.clock = &real_clock;
    return options;
  }
  void Register(std::uint64_t term) {
    connected = true;
    v1::Registered registered;
    registered.set_term(term);
    registered.set_life_id(term * 100);
    control->OnRegistered(registered);
  }
  void Run() {
    RunAll();
    control_executor.RunReady();
  }
  // Returns all messages that were sent since the last call.
  std::vector<v1::TaskMessage> Take() {
    Run();
    return std::exchange(sent, {});
  }
  static v1::Assign AssignOf(std::uint32_t shard, ShardEpoch epoch = kEpoch,
                             MapVersion start = kStart) {
    v1::Assign assign;
    assign.set_job_uid(kJob);
    v1::ShardSpec* spec = assign.mutable_spec();
    spec->set_shard(shard);
    spec->set_row_end(4);
    spec->mutable_variable()->set_name("count");
    spec->mutable_variable()->add_shape(4);
    spec->mutable_variable()->add_shape(1);
    spec->mutable_variable()->set_dtype(v1::DTYPE_FLOAT32);
    spec->mutable_variable()->mutable_initializer()->set_type("zeros");
    spec->mutable_variable()->mutable_optimizer()->set_type("counting");
    *assign.mutable_epoch() = client::ToProto(epoch);
    *assign.mutable_start() = client::ToProto(start);
    *assign.mutable_version() = client::ToProto(start);
    assign.set_shards_total(8);
    return assign;
  }
  void Give(const v1::Assign& assign) {
    v1::CoordinatorMessage message;
    *message.mutable_assign() = assign;
    control->OnMessage(message);
  }
  void Close(std::uint32_t shard, MapVersion version, const IntervalSet& done,
             const IntervalSet& refused, ShardEpoch epoch = kEpoch) {
    v1::CoordinatorMessage message;
    v1::Close* close = message.mutable_close();
    close->set_job_uid(kJob);
    close->set_shard(shard);
    *close->mutable_epoch() = client::ToProto(epoch);
    *close->mutable_version() = client::ToProto(version);
    *close->mutable_done() = client::ToProto(done);
    *close->mutable_refused() = client::ToProto(refused);
    control->OnMessage(message);
  }
  v1::Hello Hello() {
    v1::Hello hello;
    control->FillHello(&hello);
    return hello;
  }
};

TEST_CASE("an assigned shard is loaded, answered, and served") {
  ControlFixture f;
  f.Give(ControlFixture::AssignOf(2));
  REQUIRE(f.Hello().shards_size() == 1);
  CHECK(f.Hello().shards(0).loading());
  CHECK(f.sent.empty());
  const auto sent = f.Take();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].assigned().ok());
  CHECK(sent[0].assigned().shard() == 2);
  CHECK(client::FromProto<ShardEpoch>(sent[0].assigned().epoch()) == kEpoch);
  CHECK_FALSE(f.Hello().shards(0).loading());
  RequestBuilder request;
  request.Push(2, 0, 0, Floats(4, 1));
  CHECK(f.Send(request)->push() == v1::APPLIED);
  CHECK(f.control->Progress().shards() == 1);
  CHECK(f.control->Progress().bytes() == 32);
  CHECK(f.control->Progress().updates_applied() == 1);
}

TEST_CASE("two jobs with equal variable names have values, counters and reports of their own") {
  ControlFixture f;
  constexpr std::uint64_t kOther = kJob + 1;
  const auto name = [&](std::uint64_t job, const char* text) {
    v1::CoordinatorMessage message;
    message.mutable_job()->set_job_uid(job);
    message.mutable_job()->set_name(text);
    f.control->OnMessage(message);
  };
  name(kJob, "one");
  name(kOther, "two");
  f.Give(ControlFixture::AssignOf(0));
  for (const std::uint32_t shard : {0u, 1u}) {
    v1::Assign assign = ControlFixture::AssignOf(shard);
    assign.set_job_uid(kOther);
    f.Give(assign);
  }
  f.Run();
  RequestBuilder one, two;
  one.Push(0, 0, 0, Floats(4, 1));
  one.Pull(0);
  two.header.set_job_uid(kOther);
  two.Push(0, 0, 0, Floats(4, 5));
  two.Push(1, 0, 0, Floats(4, 7));
  two.Pull(0);
  CHECK(f.Send(one)->push() == v1::APPLIED);
  CHECK(f.Send(one)->push() == v1::DUPLICATE);
  CHECK(f.Send(one)->values() == Floats(4, 1));
  CHECK(f.Send(two)->push() == v1::APPLIED);
  CHECK(f.Send(two)->values() == Floats(4, 5));
  const v1::ServerProgress progress = f.control->Progress();
  CHECK(progress.updates_applied() == 3);
  REQUIRE(progress.jobs_size() == 2);
  const v1::JobUsage &first = progress.jobs(0), &second = progress.jobs(1);
  CHECK(first.job_uid() == kJob);
  CHECK(first.shards() == 1);
  CHECK(first.bytes() == 32);
  CHECK(first.updates_applied() == 1);
  CHECK(first.duplicates_refused() == 2);
  CHECK(second.shards() == 2);
  CHECK(second.bytes() == 64);
  CHECK(second.updates_applied() == 2);
  CHECK(second.duplicates_refused() == 2);
  CHECK(first.bytes_received() > 3 * 16);
  CHECK(first.bytes_sent() > 3 * 16);
  CHECK(second.bytes_received() > 2 * 32);
  CHECK(first.stint() != second.stint());
  const std::string text = f.registry.PrometheusText();
  CHECK_THAT(text, Catch::Contains("evergrad_ps_server_job_bytes{job=\"one\",job_uid=\"" +
                                   JobUidString(JobUid(kJob)) + "\"} 32\n"));
  CHECK_THAT(text, Catch::Contains("evergrad_ps_server_job_shards{job=\"two\",job_uid=\"" +
                                   JobUidString(JobUid(kOther)) + "\"} 2\n"));
  // One of the two jobs ends. Its metrics must be removed, and those of the other job must not
  // change.
  v1::CoordinatorMessage ended;
  ended.mutable_job_ended()->set_job_uid(kOther);
  f.control->OnMessage(ended);
  f.Run();
  REQUIRE(f.control->Progress().jobs_size() == 1);
  CHECK(f.control->Progress().jobs(0).job_uid() == kJob);
  CHECK(f.Send(one)->values() == Floats(4, 1));
  CHECK_THAT(f.registry.PrometheusText(), !Catch::Contains("job=\"two\""));
}

TEST_CASE(
    "a repeated assignment keeps the state; an older one is refused; a newer one starts from the "
    "seed") {
  ControlFixture f;
  f.Give(ControlFixture::AssignOf(0));
  f.Give(ControlFixture::AssignOf(0));  // the shard still loads, so both orders get one answer
  CHECK(f.Take().size() == 1);
  RequestBuilder request;
  request.Push(0, 0, 0, Floats(4, 1));
  CHECK(f.Send(request)->push() == v1::APPLIED);
  f.Give(ControlFixture::AssignOf(0));
  auto sent = f.Take();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].assigned().ok());
  CHECK(f.Report()[0].lsn() == 1);
  f.Give(ControlFixture::AssignOf(0, {1, 4}));
  sent = f.Take();
  REQUIRE(sent.size() == 1);
  CHECK_FALSE(sent[0].assigned().ok());
  CHECK_THAT(sent[0].assigned().error().message(),
             Catch::Matchers::Contains("older than the held epoch"));
  CHECK(f.Report()[0].lsn() == 1);
  v1::Assign next = ControlFixture::AssignOf(0, {1, 8}, {1, 7});
  *next.mutable_refused() = client::ToProto(IntervalSet{0});
  f.Give(next);
  CHECK(f.Take()[0].assigned().ok());
  CHECK(f.Report()[0].lsn() == 0);
  CHECK(f.Send(request)->push() == v1::STALE);
  *request.header.mutable_pushes(0)->mutable_epoch() = client::ToProto(ShardEpoch{1, 8});
  // The new Assign says that closure 0 was cancelled.
  CHECK(f.Send(request)->push() == v1::REFUSED);
  CHECK(client::FromProto(f.Hello().shards(0).refused())->Contains(0));
}

TEST_CASE("a shard that cannot be held is answered with the cause") {
  ControlFixture f;
  std::vector<std::pair<v1::Assign, std::string>> cases;
  const auto spoiled = [&](auto spoil, const char* words) {
    v1::Assign assign = ControlFixture::AssignOf(0);
    spoil(assign);
    cases.emplace_back(assign, words);
  };
  spoiled([](v1::Assign& a) { a.mutable_snapshot(); }, "the snapshot has no path");
  spoiled([](v1::Assign& a) { a.mutable_snapshot()->set_uri("x.egshard"); },
          "SHA-256 of a snapshot has a wrong length: path=x.egshard want=32 got=0");
  spoiled(
      [](v1::Assign& a) { a.mutable_spec()->mutable_variable()->set_dtype(v1::DTYPE_BFLOAT16); },
      "dtype is not built, expected DTYPE_FLOAT32");
  spoiled([](v1::Assign& a) { a.mutable_spec()->mutable_variable()->set_name(""); },
          "variable name is empty or too long");
  spoiled(
      [](v1::Assign& a) {
        a.mutable_spec()->mutable_variable()->mutable_optimizer()->set_type("lamb");
      },
      "unknown optimizer");
  spoiled(
      [](v1::Assign& a) {
        a.mutable_spec()->mutable_variable()->mutable_initializer()->set_type("x");
      },
      "unknown initializer");
  spoiled([](v1::Assign& a) { a.mutable_spec()->set_row_end(5); },
          "the rows are outside of the shape");
  spoiled([](v1::Assign& a) { a.mutable_spec()->set_shard(8); },
          "shard number out of range: shard=8 shards=8");
  spoiled([](v1::Assign& a) { a.mutable_spec()->mutable_variable()->set_shape(1, ~0ull); }, "");
  spoiled([](v1::Assign& a) { a.mutable_refused()->add_bounds(3); }, "");
  for (const auto& [assign, words] : cases) {
    INFO(words);
    f.Give(assign);
    const auto sent = f.Take();
    REQUIRE(sent.size() == 1);
    CHECK_FALSE(sent[0].assigned().ok());
    CHECK_FALSE(sent[0].assigned().error().message().empty());
    CHECK_THAT(sent[0].assigned().error().message(), Catch::Matchers::Contains(words));
    CHECK(f.Hello().shards_size() == 0);
    CHECK(f.Report().empty());
  }
}

TEST_CASE(
    "a close is taken or ignored as line 24 says, and the next hello reports the taken ones") {
  ControlFixture f;
  f.Give(ControlFixture::AssignOf(1));
  f.Take();
  f.Close(1, {1, 3}, {0, 1}, {7});
  auto sent = f.Take();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].closed().taken());
  CHECK(client::FromProto<MapVersion>(sent[0].closed().version()) == MapVersion{1, 3});
  f.Close(1, {1, 1}, {2}, {});  // V is lower than the start of the shard
  CHECK_FALSE(f.Take()[0].closed().taken());
  f.Close(1, {1, 3}, {2}, {}, {1, 4});  // at another epoch of the shard
  CHECK_FALSE(f.Take()[0].closed().taken());
  f.Close(3, {1, 3}, {2}, {});  // shard 3 is not held
  CHECK_FALSE(f.Take()[0].closed().taken());
  const v1::Hello hello = f.Hello();
  CHECK(*client::FromProto(hello.shards(0).done()) == IntervalSet{0, 1});
  CHECK(*client::FromProto(hello.shards(0).refused()) == IntervalSet{7});
  RequestBuilder request;
  request.Push(1, 1, 0, Floats(4, 1));
  request.Push(1, 7, 0, Floats(4, 1));
  request.Push(1, 2, 0, Floats(4, 1));
  const auto reply = f.Send(request);
  CHECK(reply->push(0) == v1::DUPLICATE);
  CHECK(reply->push(1) == v1::REFUSED);
  CHECK(reply->push(2) == v1::APPLIED);
  // A Close with a malformed set must change nothing.
  v1::CoordinatorMessage message;
  message.mutable_close()->set_job_uid(kJob);
  message.mutable_close()->set_shard(1);
  *message.mutable_close()->mutable_epoch() = client::ToProto(kEpoch);
  *message.mutable_close()->mutable_version() = client::ToProto(MapVersion{1, 3});
  message.mutable_close()->mutable_done()->add_bounds(9);
  f.control->OnMessage(message);
  CHECK_FALSE(f.Take()[0].closed().taken());
  CHECK(f.Hello().shards(0).done().bounds_size() == 2);
}

TEST_CASE(
    "without a session the server continues, and reports newly loaded shards in the next session") {
  ControlFixture f;
  f.Give(ControlFixture::AssignOf(0));
  f.Give(ControlFixture::AssignOf(1));
  f.connected = false;
  f.control->OnLost();
  const v1::Hello hello = f.Hello();  // no session is open, and both shards still load
  CHECK(hello.shards(0).loading());
  CHECK(f.Take().empty());
  RequestBuilder request;
  request.Push(0, 0, 0, Floats(4, 1));
  CHECK(f.Send(request)->push() == v1::APPLIED);
  f.Register(2);
  const auto sent = f.Take();
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].assigned().ok());
  CHECK(sent[1].assigned().ok());
  f.Register(2);
  CHECK(f.Take().empty());  // each answer is sent only once
  CHECK(f.Hello().highest_term() == 2);
  CHECK(f.Hello().life_id() == 200);
  f.Register(1);  // a term below the highest known one
  CHECK(f.Hello().highest_term() == 2);
}

TEST_CASE("an answer to a session that has ended is not sent in the next one") {
  ControlFixture f;
  f.Give(ControlFixture::AssignOf(0));
  f.Take();
  f.Close(0, {1, 3}, {0}, {});
  f.control->OnLost();
  f.Register(1);
  CHECK(f.Take().empty());
  // The Close was accepted, and its answer was lost. The next Hello must have its closures.
  CHECK(f.Hello().shards(0).done().bounds_size() == 2);
}

TEST_CASE("a seal is answered, and every later push is refused") {
  ControlFixture f;
  f.Give(ControlFixture::AssignOf(0));
  f.Take();
  v1::CoordinatorMessage message;
  message.mutable_seal()->set_job_uid(kJob);
  *message.mutable_seal()->mutable_epoch() = client::ToProto(kEpoch);
  f.control->OnMessage(message);
  const auto sent = f.Take();
  REQUIRE(sent.size() == 1);
  CHECK(client::FromProto<ShardEpoch>(sent[0].sealed().epoch()) == kEpoch);
  RequestBuilder request;
  request.Push(0, 0, 0, Floats(4, 1));
  request.Pull(0);
  const auto reply = f.Send(request);
  CHECK(reply->push() == v1::REFUSED);
  CHECK(reply->pull() == v1::VALUES);
  CHECK(f.Report()[0].open_closures() == 0);
  message.mutable_seal()->set_shard(5);  // a shard that the server does not hold counts as sealed
  f.control->OnMessage(message);
  CHECK(f.Take()[0].sealed().shard() == 5);
}

TEST_CASE("Drop and the end of a job release all memory") {
  ControlFixture f;
  for (const std::uint32_t shard : {0u, 1u, 2u}) f.Give(ControlFixture::AssignOf(shard));
  f.Take();
  v1::CoordinatorMessage drop;
  drop.mutable_drop()->set_job_uid(kJob);
  *drop.mutable_drop()->mutable_epoch() = client::ToProto(ShardEpoch{1, 4});
  f.control->OnMessage(drop);
  CHECK(f.Report().size() == 3);
  *drop.mutable_drop()->mutable_epoch() = client::ToProto(kEpoch);
  f.control->OnMessage(drop);
  CHECK(f.Report().size() == 2);
  CHECK(f.Hello().shards_size() == 2);
  f.Give(ControlFixture::AssignOf(3));  // this shard still loads when the job ends
  v1::CoordinatorMessage ended;
  ended.mutable_job_ended()->set_job_uid(kJob);
  ended.mutable_job_ended()->set_state("CANCELLED");
  f.control->OnMessage(ended);
  CHECK(f.Take().empty());
  CHECK(f.Report().empty());
  CHECK(f.Hello().shards_size() == 0);
  CHECK(f.control->Progress().bytes() == 0);
  CHECK(f.host->jobs().Find(JobUid(kJob)).version == MapVersion{0, 0});
}

TEST_CASE("a stale push is answered with the newest version that the server has seen") {
  ControlFixture f;
  f.Give(ControlFixture::AssignOf(0));
  f.Take();
  RequestBuilder request;
  request.Push(1, 0, 0, Floats(4, 1));
  CHECK(client::FromProto<MapVersion>(f.Send(request)->response.header->pushes(0).version()) ==
        kStart);
  v1::CoordinatorMessage map;
  map.mutable_map()->set_job_uid(kJob);
  *map.mutable_map()->mutable_version() = client::ToProto(MapVersion{1, 6});
  f.control->OnMessage(map);
  CHECK(client::FromProto<MapVersion>(f.Send(request)->response.header->pushes(0).version()) ==
        MapVersion{1, 6});
}

TEST_CASE("a report of many shards comes in several messages, each far below the limit of one") {
  constexpr int kShards = 1200;
  ControlFixture f;
  for (std::uint32_t i = 0; i < kShards; ++i) {
    v1::Assign assign = ControlFixture::AssignOf(i);
    assign.mutable_spec()->mutable_variable()->set_name(std::string(500, 'v'));
    assign.set_shards_total(kShards);
    f.Give(assign);
  }
  f.Take();
  v1::CoordinatorMessage message;
  message.mutable_report_shards()->set_request_id(9);
  f.control->OnMessage(message);
  const auto sent = f.Take();
  REQUIRE(sent.size() > 1);
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    CHECK(sent[i].ByteSizeLong() < 600 * 1024);
    CHECK(sent[i].shard_report().request_id() == 9);
    CHECK(sent[i].shard_report().more() == (i + 1 < sent.size()));
    for (const auto& state : sent[i].shard_report().shards()) CHECK(state.shard() == next++);
  }
  CHECK(next == kShards);
}

TEST_CASE("shards and log lines are reported on request") {
  ControlFixture f;
  f.Give(ControlFixture::AssignOf(0));
  f.Take();
  v1::CoordinatorMessage message;
  message.mutable_report_shards()->set_request_id(9);
  message.mutable_report_shards()->set_job_uid(kJob);
  message.mutable_report_shards()->set_digests(true);
  f.control->OnMessage(message);
  auto sent = f.Take();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].shard_report().request_id() == 9);
  REQUIRE(sent[0].shard_report().shards_size() == 1);
  CHECK(sent[0].shard_report().shards(0).variable() == "count");
  CHECK(sent[0].shard_report().shards(0).digest() != 0);

  for (int i = 0; i < 5; ++i) f.logger.Error("line " + std::to_string(i) + " \xff");
  message.mutable_read_logs()->set_request_id(10);
  message.mutable_read_logs()->set_lines_max(3);
  f.control->OnMessage(message);
  sent = f.Take();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].log_lines().end());
  CHECK(sent[0].log_lines().request_id() == 10);
  REQUIRE(sent[0].log_lines().lines_size() == 3);
  CHECK_THAT(sent[0].log_lines().lines(2).text(), Catch::Matchers::StartsWith("line 4 "));
  CHECK(sent[0].log_lines().lines(2).level() == "error");
  CHECK_FALSE(sent[0].SerializeAsString().empty());
}

TEST_CASE_METHOD(ControlFixture,
                 "jobs that run beside each other keep their names; those whose ends were not "
                 "heard of are forgotten with the session, and there is a bound") {
  const auto tell = [&](std::uint64_t uid) {
    v1::CoordinatorMessage message;
    message.mutable_job()->set_job_uid(uid);
    message.mutable_job()->set_name("job");
    control->OnMessage(message);
  };
  tell(kJob);
  Give(AssignOf(0));
  Take();
  tell(2000);
  CHECK(control->jobs_named() == 2);
  for (std::uint64_t uid = 10000; uid < 11000; ++uid) tell(uid);
  CHECK(control->jobs_named() <= 256);
  Register(2);  // no job is running, but one job has a shard here
  CHECK(control->jobs_named() == 1);
}

}  // namespace
}  // namespace evergrad::ps_server
