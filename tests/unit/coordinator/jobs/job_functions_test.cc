// Tests the closures that a client schedules through the API. Workers and servers are scripted. The
// answer to each call must be the one that docs/closures.md describes.
#include <catch2/catch.hpp>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/random/philox.h"
#include "job_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;

const MemoryStateStore::Options kJournal{.jobs_max = 8, .torn_max = 0, .persistent = true};

class Functions : public FakeCluster {
 public:
  explicit Functions(std::function<void(config::JobSpec&, JobOptions&)> more = {},
                     MemoryStateStore::Options store = {})
      : FakeCluster(
            [&](config::JobSpec& s, JobOptions& o) {
              s.type = "functions";
              config::FunctionVariable weights, bias;
              weights.name = "weights";
              weights.shape = {8, 2};
              bias.name = "bias";
              s.functions.variables = {weights, bias};
              s.strategy.partitioner.type = "fixed_shards";
              s.strategy.partitioner.num_shards = 4;
              s.optimizer = {};
              if (more) more(s, o);
            },
            store) {
    on_done = [](const v1::Grant& grant, v1::Done* done) {
      if (grant.kind() != v1::TRAIN) return;
      done->mutable_metrics()->clear_step_records();
      done->set_result(absl::StrCat(grant.function(), "(", grant.arguments(), ")"));
    };
  }
  FakeWorker& AddFunctionWorker(const std::string& identity,
                                std::vector<std::string> functions = {"f", "g"}) {
    v1::Hello hello;
    for (const std::string& name : functions) hello.add_functions(name);
    return AddWorker(identity, hello);
  }
  void Up() {
    AddServer("0");
    AddServer("1");
    AddFunctionWorker("0");
    AddFunctionWorker("1");
    job->Start();
    REQUIRE(Run([&] { return job->state() == JobState::kRunning; }));
  }
  v1::ClosureCall Call() {
    v1::ClosureCall call;
    call.set_client(9);
    call.set_call(++calls);
    call.set_answered_below(calls);
    return call;
  }
  v1::ScheduleClosureRequest Request(const std::string& function, const std::string& arguments) {
    v1::ScheduleClosureRequest request;
    *request.mutable_call() = Call();
    request.set_function(function);
    request.set_arguments(arguments);
    return request;
  }
  // Schedules a closure and returns its number, or nullopt if the call has to wait.
  std::optional<std::uint64_t> Try(const v1::ScheduleClosureRequest& request) {
    waiting.clear();
    const auto answer = function_calls().Schedule(request, &waiting);
    if (!answer) return std::nullopt;
    REQUIRE(answer->ok());
    REQUIRE((*answer)->scheduled());
    return (*answer)->closure();
  }
  std::uint64_t Schedule(const std::string& arguments = "", const std::string& function = "f") {
    const auto c = Try(Request(function, arguments));
    REQUIRE(c);
    return *c;
  }
  std::optional<absl::StatusOr<v1::JoinClosuresResponse>> TryJoin(bool durable = false) {
    v1::JoinClosuresRequest request;
    *request.mutable_call() = Call();
    request.set_durable(durable);
    waiting.clear();
    return function_calls().Join(request, &waiting);
  }
  bool Joined(bool durable = false) {
    const auto answer = TryJoin(durable);
    return answer && answer->ok() && (*answer)->joined();
  }
  v1::FetchResultResponse Fetch(std::uint64_t closure) {
    v1::FetchResultRequest request;
    request.set_closure(closure);
    const auto answer = function_calls().FetchResult(request, &waiting);
    v1::FetchResultResponse none;
    none.set_state(v1::RESULT_WAITING);
    if (!answer) return none;
    REQUIRE(answer->ok());
    return **answer;
  }
  void Finish() {
    v1::FinishJobRequest request;
    *request.mutable_call() = Call();
    const auto answer = function_calls().Finish(request, &waiting);
    REQUIRE(answer);
    REQUIRE(answer->ok());
    REQUIRE((*answer)->finishing());
  }
  using FakeCluster::Finish;
  const v1::Grant* HeldBy(FakeWorker& worker, std::uint64_t closure) {
    for (const v1::Grant& g : worker.held) {
      if (g.closure() == closure) return &g;
    }
    return nullptr;
  }

  std::uint64_t calls = 0;
  std::string waiting;
};

TEST_CASE(
    "calls go to the least loaded worker with the function, oldest first, and each worker is "
    "considered once") {
  Functions f;
  f.hold = [](const FakeWorker&, const v1::Grant& grant) { return grant.kind() == v1::TRAIN; };
  f.AddServer("0");
  f.AddServer("1");
  for (int i = 0; i < 60; ++i)
    f.AddFunctionWorker(std::to_string(i), i % 3 == 0 ? std::vector<std::string>{"g"}
                                                      : std::vector<std::string>{"f", "g"});
  f.job->Start();
  REQUIRE(f.Run([&] { return f.job->state() == JobState::kRunning; }));
  for (int i = 0; i < 40; ++i) f.Schedule("", "f");
  REQUIRE(f.Run([&] { return f.granted.size() >= 40; }));
  for (const auto& [identity, worker] : f.workers)
    CHECK(worker.held.size() == (std::stoi(identity) % 3 == 0 ? 0 : 1));
  for (int i = 0; i < 20; ++i) f.Schedule("", "g");
  REQUIRE(f.Run([&] { return f.granted.size() >= 60; }));
  for (const auto& [identity, worker] : f.workers) CHECK(worker.held.size() == 1);
}

TEST_CASE(
    "a closure is granted with its function and arguments, its result can be fetched repeatedly, "
    "and the client ends the job") {
  for (const bool journal : {false, true}) {
    Functions c({}, journal ? kJournal : MemoryStateStore::Options{});
    c.Up();
    CHECK(c.Status().waiting_for() == "closures to be scheduled");
    CHECK(c.Joined());
    const std::uint64_t a = c.Schedule("1"), b = c.Schedule("2", "g");
    CHECK(b == a + 1);
    REQUIRE(c.Run([&] { return c.Joined(); }));
    CHECK(c.Fetch(a).result() == "f(1)");
    CHECK(c.Fetch(b).result() == "g(2)");
    c.KillWorker("0");
    c.KillWorker("1");
    CHECK(c.Fetch(a).result() == "f(1)");  // scenario W14: the result outlives its worker
    c.AddFunctionWorker("0");
    v1::FetchResultRequest unknown;
    unknown.set_closure(b + 1);
    CHECK(c.function_calls().FetchResult(unknown, &c.waiting)->status().code() ==
          absl::StatusCode::kNotFound);
    c.Finish();
    CHECK(c.function_calls().Schedule(c.Request("f", ""), &c.waiting)->status().code() ==
          absl::StatusCode::kFailedPrecondition);
    REQUIRE(c.RunToEnd());
    const v1::JobStatus status = c.Status();
    CHECK(status.state() == "SUCCEEDED");
    CHECK(status.updates_exact());  // `psctl job audit` shows the same value
    CHECK(status.closures_total() == 2);
    CHECK(status.closures_succeeded() == 2);
    CHECK(status.closures_failed() == 0);
    CHECK(status.closures_cancelled() == 0);
    CHECK(status.steps_done() == 4);
    CHECK(c.function_calls().Schedule(c.Request("f", ""), &c.waiting)->status().code() ==
          absl::StatusCode::kFailedPrecondition);
    CHECK(c.refused.empty());
    CHECK(c.host.store_failure.ok());
  }
}

TEST_CASE(
    "the first error is reported once, after every owner has answered Closed for the cancelled "
    "closures") {
  Functions c({}, kJournal);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return true; };
  c.Up();
  const std::uint64_t early = c.Schedule("0");
  c.Deliver();
  for (auto& [identity, worker] : c.workers) {
    c.FinishHeld(worker);
  }
  REQUIRE(c.Run([&] { return c.Joined(); }));
  std::vector<std::uint64_t> closures;
  for (int i = 1; i <= 6; ++i) closures.push_back(c.Schedule(absl::StrCat(i)));
  c.Deliver();
  c.servers["1"].silent = true;
  FakeWorker* holder = nullptr;
  for (auto& [identity, worker] : c.workers) {
    if (c.HeldBy(worker, closures[1]) != nullptr) holder = &worker;
  }
  REQUIRE(holder != nullptr);
  c.FailGrant(*holder, *c.HeldBy(*holder, closures[1]), "a point that is none", true);
  c.Deliver();
  // Each worker was told that the attempts that it held are superseded.
  for (auto& [identity, worker] : c.workers) CHECK(worker.held.empty());
  CHECK(c.job->state() == JobState::kRunning);
  const v1::ScheduleClosureRequest next = c.Request("f", "7");
  const auto not_yet = [&] {
    CHECK_FALSE(c.Try(next));
    CHECK_THAT(c.waiting, Contains("servers to confirm that closures are cancelled: 6 left"));
    CHECK_FALSE(c.TryJoin());
    v1::ClosuresDoneRequest done;
    *done.mutable_call() = c.Call();
    CHECK_FALSE((*c.function_calls().ClosuresDone(done))->done());
  };
  not_yet();
  c.Run([] { return false; }, std::chrono::milliseconds(500));
  not_yet();
  c.servers["1"].silent = false;
  c.AddServer("1", true);  // the new session gets the Closes of all ended closures
  std::optional<absl::StatusOr<v1::ScheduleClosureResponse>> raised;
  REQUIRE(c.Run([&] {
    raised = c.function_calls().Schedule(next, &c.waiting);
    return raised.has_value();
  }));
  for (const auto& [identity, server] : c.servers) {
    for (const auto& [p, shard] : server.shards)
      CHECK(shard.refused.ContainsAll(IntervalSet::Range(closures.front(), closures.back() + 1)));
  }
  REQUIRE(raised->ok());
  CHECK_FALSE((*raised)->scheduled());
  CHECK((*raised)->error().closure() == closures[1]);
  CHECK((*raised)->error().function() == "f");
  CHECK_THAT((*raised)->error().cause().message(), Contains("a point that is none"));
  // If the same call is repeated, it gets the error once more. No other call gets the error.
  const auto again = c.function_calls().Schedule(next, &c.waiting);
  REQUIRE(again);
  CHECK((*again)->error().closure() == closures[1]);
  CHECK(c.Joined());
  CHECK(c.Fetch(early).state() == v1::RESULT_SUCCEEDED);
  CHECK(c.Fetch(closures[1]).state() == v1::RESULT_FAILED);
  CHECK_THAT(c.Fetch(closures[1]).cause().message(), Contains("a point that is none"));
  CHECK(c.Fetch(closures[0]).state() == v1::RESULT_CANCELLED);
  // The error has been reported to its client, so the functions job accepts closures again.
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  const std::uint64_t after = c.Schedule("8");
  REQUIRE(c.Run([&] { return c.Joined(); }));
  CHECK(c.Fetch(after).result() == "f(8)");
  c.Finish();
  REQUIRE(c.RunToEnd());
  const v1::JobStatus status = c.Status();
  CHECK(status.closures_total() == 8);
  CHECK(status.closures_succeeded() == 2);
  CHECK(status.closures_failed() == 1);
  CHECK(status.closures_cancelled() == 5);
  CHECK(c.refused.empty());
}

TEST_CASE("a join gets the error too, and a machine's error counts only after the last retry") {
  Functions c([](config::JobSpec&, JobOptions& o) { o.retries_max = 3; });
  int failures = 0;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  c.Up();
  c.Schedule("1");
  std::optional<absl::StatusOr<v1::JoinClosuresResponse>> joined;
  REQUIRE(c.Run([&] {
    for (auto& [identity, worker] : c.workers) {
      for (const v1::Grant& g : std::vector<v1::Grant>(worker.held)) {
        ++failures;
        c.FailGrant(worker, g, "the disk is away", false);
      }
    }
    joined = c.TryJoin();
    return joined.has_value();
  }));
  CHECK(failures == 4);
  CHECK_THAT((**joined).error().cause().message(), Contains("the disk is away"));
  CHECK((**joined).error().cause().kind() != "user");
  CHECK(c.Joined());
  CHECK(c.job->state() == JobState::kRunning);
}

TEST_CASE("a queue of two processes a thousand closures, and never holds more than two") {
  Functions c([](config::JobSpec& s, JobOptions&) { s.functions.queue_limit = 2; }, kJournal);
  c.Up();
  std::size_t scheduled = 0, waited = 0;
  std::optional<v1::ScheduleClosureRequest> next;
  REQUIRE(c.Run(
      [&] {
        for (int i = 0; i < 3 && scheduled < 1000; ++i) {
          if (!next) next = c.Request("f", absl::StrCat(scheduled));
          if (!c.Try(*next)) {
            CHECK_THAT(c.waiting, Contains("space in the queue: queue_limit=2"));
            ++waited;
            break;
          }
          next.reset();
          ++scheduled;
        }
        CHECK(c.workers["0"].held.size() + c.workers["1"].held.size() <= 2);
        return scheduled == 1000 && c.Joined();
      },
      std::chrono::seconds(120)));
  CHECK(waited > 0);
  CHECK(c.Status().closures_succeeded() == 1000);
  CHECK(c.granted.size() >= 1000);
}

TEST_CASE(
    "a repeated schedule gets the same closure, and one that was answered long ago is refused") {
  Functions c({}, kJournal);
  c.Up();
  const v1::ScheduleClosureRequest request = c.Request("f", "1");
  const auto first = c.Try(request);
  CHECK(c.Try(request) == first);
  c.Restart();
  CHECK(c.Try(request) == first);
  c.Schedule("2");  // this call acknowledges that the client has all earlier answers
  CHECK(c.function_calls().Schedule(request, &c.waiting)->status().code() ==
        absl::StatusCode::kInvalidArgument);
  REQUIRE(c.Run([&] { return c.Joined(); }));
  CHECK(c.Status().closures_total() == 2);
}

TEST_CASE("an invalid call is refused and changes nothing") {
  Functions c;
  c.Up();
  v1::ScheduleClosureRequest request = c.Request("f", "");
  request.clear_call();
  CHECK(c.function_calls().Schedule(request, &c.waiting)->status().code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(c.function_calls().Schedule(c.Request("", ""), &c.waiting)->status().code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(c.function_calls().Schedule(c.Request("a b", ""), &c.waiting)->status().code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(c.function_calls()
            .Schedule(c.Request("f", std::string((1u << 20) + 1, 'x')), &c.waiting)
            ->status()
            .code() == absl::StatusCode::kInvalidArgument);
  request = c.Request("f", "");
  request.mutable_released()->add_bounds(3);
  CHECK(c.function_calls().Schedule(request, &c.waiting)->status().code() ==
        absl::StatusCode::kInvalidArgument);
  // A durable join is refused, because the job makes no checkpoints.
  CHECK(c.TryJoin(true)->status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(c.Status().closures_total() == 0);

  FakeCluster other;
  v1::JoinClosuresRequest join;
  std::string waiting;
  CHECK(other.job->function_calls().status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE(
    "closures are granted only to workers with the function, and the job names a missing "
    "function") {
  Functions c;
  c.AddServer("0");
  c.AddFunctionWorker("0", {"f"});
  c.AddFunctionWorker("plain", {});
  c.hold = [](const FakeWorker&, const v1::Grant&) { return true; };
  c.job->Start();
  REQUIRE(c.Run([&] { return c.job->state() == JobState::kRunning; }));
  const std::uint64_t g = c.Schedule("1", "g");
  const std::uint64_t f = c.Schedule("2", "f");
  c.Run([] { return false; }, std::chrono::milliseconds(200));
  CHECK(c.HeldBy(c.workers["0"], f) != nullptr);  // closure g was scheduled first and has no worker
  CHECK(c.HeldBy(c.workers["0"], g) == nullptr);
  CHECK(c.workers["plain"].held.empty());
  CHECK(c.Status().waiting_for() == "workers: no connected worker has function `g`");
  c.AddFunctionWorker("1", {"g"});
  c.Deliver();
  CHECK(c.HeldBy(c.workers["1"], g) != nullptr);
  CHECK(c.Status().waiting_for().empty());
}

TEST_CASE("closures that a worker has not begun go to an idle worker with the function") {
  Functions c;
  c.AddServer("0");
  c.AddFunctionWorker("0", {"f"});
  c.hold = [](const FakeWorker&, const v1::Grant&) { return true; };
  c.job->Start();
  REQUIRE(c.Run([&] { return c.job->state() == JobState::kRunning; }));
  c.Schedule("1");
  c.Schedule("2");
  c.Schedule("3");
  c.Run([&] { return c.workers["0"].held.size() > 1; });
  c.AddFunctionWorker("other", {"g"});
  c.Run([] { return false; }, std::chrono::milliseconds(200));
  CHECK(c.workers["other"].held.empty());
  const std::size_t grants = c.granted.size();
  CHECK(grants <= 3);  // no grant was recalled for a worker that cannot run the closure
  c.AddFunctionWorker("1", {"f"});
  REQUIRE(c.Run([&] { return !c.workers["1"].held.empty(); }));
}

TEST_CASE(
    "closures that their client cancelled are reported once all owners refuse them, without an "
    "error for any call") {
  Functions c({}, kJournal);
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  c.Up();
  const std::uint64_t a = c.Schedule("1"), b = c.Schedule("2"), keep = c.Schedule("3");
  c.Deliver();
  c.servers["0"].silent = true;
  v1::CancelClosuresRequest request;
  request.add_closures(a);
  request.add_closures(b);
  request.add_closures(b + 100);  // this number belongs to no closure
  CHECK_FALSE(c.function_calls().CancelClosures(request, &c.waiting));
  c.Run([] { return false; }, std::chrono::milliseconds(300));
  CHECK_FALSE(c.function_calls().CancelClosures(request, &c.waiting));
  CHECK_THAT(c.waiting, Contains("closures are cancelled: 2 left"));
  c.servers["0"].silent = false;
  c.AddServer("0", true);
  std::optional<absl::StatusOr<v1::CancelClosuresResponse>> answer;
  REQUIRE(c.Run([&] {
    return (answer = c.function_calls().CancelClosures(request, &c.waiting)).has_value();
  }));
  CHECK((*answer)->cancelled());
  CHECK(c.Fetch(a).state() == v1::RESULT_CANCELLED);
  CHECK(c.Fetch(keep).state() == v1::RESULT_WAITING);
  // A Done is superseded if the worker sent it before it heard of the cancellation.
  for (auto& [identity, worker] : c.workers) {
    CHECK(c.HeldBy(worker, a) == nullptr);
    c.FinishHeld(worker);
  }
  REQUIRE(c.Run([&] { return c.Joined(); }));
  CHECK(c.Fetch(keep).state() == v1::RESULT_SUCCEEDED);
  request.Clear();
  request.set_all(true);
  CHECK((*c.function_calls().CancelClosures(request, &c.waiting))
            ->cancelled());  // true, although no closure is left to cancel
  CHECK(c.Status().closures_cancelled() == 2);
  // The closures are still cancelled after a restart. The owners must confirm again that they
  // refuse the closures, before a client is told.
  c.Restart();
  REQUIRE(c.Run([&] { return c.Joined(); }));
  CHECK(c.Fetch(a).state() == v1::RESULT_CANCELLED);
}

TEST_CASE(
    "results are kept until they are released, up to a limit of bytes, above which the oldest are "
    "removed with a report") {
  Functions c([](config::JobSpec& s, JobOptions&) { s.functions.result_bytes_max = 1u << 20; },
              kJournal);
  c.on_done = [](const v1::Grant& grant, v1::Done* done) {
    if (grant.kind() == v1::TRAIN)
      done->set_result(
          std::string(300'000, grant.arguments().empty() ? 'x' : grant.arguments()[0]));
  };
  c.Up();
  std::vector<std::uint64_t> closures;
  for (int i = 0; i < 5; ++i) closures.push_back(c.Schedule(absl::StrCat(i)));
  REQUIRE(c.Run([&] { return c.Joined(); }));
  CHECK(c.Fetch(closures[0]).state() == v1::RESULT_GONE);
  CHECK(c.Fetch(closures[1]).state() == v1::RESULT_GONE);
  CHECK(c.Fetch(closures[2]).result()[0] == '2');
  int said = 0;
  for (const v1::JobStatus status = c.Status(); const v1::Event& event : status.events())
    said += event.text().find("the job discards results") == 0;
  CHECK(said == 1);
  v1::ReleaseResultsRequest release;
  release.mutable_released()->add_bounds(closures[2]);
  release.mutable_released()->add_bounds(~0ull);
  CHECK(c.function_calls().ReleaseResults(release)->ok());
  CHECK(c.Fetch(closures[4]).state() == v1::RESULT_GONE);
  c.Restart();
  REQUIRE(c.Run([&] { return c.Joined(); }));
  CHECK(c.Fetch(closures[3]).state() == v1::RESULT_GONE);
  // If a closure is released before it has ended, neither its arguments nor its result may be kept.
  v1::ScheduleClosureRequest request = c.Request("f", "5");
  const std::uint64_t c5 = *c.Try(request);
  release.mutable_released()->set_bounds(1, c5 + 1);
  CHECK(c.function_calls().ReleaseResults(release)->ok());
  REQUIRE(c.Run([&] { return c.Joined(); }));
  CHECK(c.Fetch(c5).state() == v1::RESULT_GONE);
}

TEST_CASE(
    "a restart keeps queue, results and pending error, and new closures are above all that a torn "
    "journal forgot") {
  for (const std::size_t torn : {0u, 3u}) {
    Functions c([](config::JobSpec&, JobOptions& o) { o.notes_max = 4; },
                {.jobs_max = 8, .torn_max = torn, .persistent = true});
    c.hold = [](const FakeWorker&, const v1::Grant& g) {
      return g.kind() == v1::TRAIN && g.arguments() != "done";
    };
    c.Up();
    const std::uint64_t done = c.Schedule("done");
    REQUIRE(c.Run([&] { return c.Joined(); }));
    std::vector<std::uint64_t> open;
    for (int i = 0; i < 5; ++i) open.push_back(c.Schedule(absl::StrCat(i)));
    c.Deliver();
    c.Run([] { return false; }, std::chrono::milliseconds(300));
    const std::uint64_t scheduled = c.Status().closures_total();
    c.host.memory.TearTail(torn);
    c.Restart();
    INFO(c.Status().ShortDebugString());
    CHECK(c.Fetch(done).result() == "f(done)");
    CHECK(c.Status().closures_total() <= scheduled);
    if (torn == 0) CHECK(c.Status().closures_total() == scheduled);
    const std::uint64_t next = c.Schedule("new");
    CHECK(next > open.back() + 1);
    c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
    for (auto& [identity, worker] : c.workers) {
      c.FinishHeld(worker);
    }
    REQUIRE(c.Run([&] { return c.Joined(); }));
    CHECK(c.Fetch(next).result() == "f(new)");
    if (torn == 0) {
      for (int i = 0; i < 5; ++i)
        CHECK(c.Fetch(open[static_cast<std::size_t>(i)]).result() == absl::StrCat("f(", i, ")"));
    }
    // If no client has seen an error before the restart, the error must be reported once after the
    // restart.
    c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
    const std::uint64_t bad = c.Schedule("bad");
    c.Deliver();
    for (auto& [identity, worker] : c.workers) {
      if (const v1::Grant* g = c.HeldBy(worker, bad))
        c.FailGrant(worker, v1::Grant(*g), "no", true);
    }
    c.Restart();
    std::optional<absl::StatusOr<v1::JoinClosuresResponse>> joined;
    REQUIRE(c.Run([&] { return (joined = c.TryJoin()).has_value(); }));
    CHECK((*joined)->error().closure() == bad);
    c.Restart();
    REQUIRE(c.Run([&] { return c.Joined(); }));
    c.Finish();
    c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
    REQUIRE(c.RunToEnd());
    const v1::JobStatus status = c.Status();
    CHECK(status.state() == "SUCCEEDED");
    CHECK(status.closures_total() ==
          status.closures_succeeded() + status.closures_failed() + status.closures_cancelled());
    CHECK(c.host.store_failure.ok());
  }
}

TEST_CASE("a functions job wants a worker for each open closure, and none while nothing is open") {
  Functions c;
  c.AddServer("0");
  c.job->Start();
  CHECK(c.job->wanted_workers() == 0);  // a functions job has no describe closure
  c.AddFunctionWorker("0");
  REQUIRE(c.Run([&] { return c.job->state() == JobState::kRunning; }));
  CHECK(c.job->wanted_workers() == 0);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return true; };
  c.Schedule();
  c.Schedule();
  CHECK(c.job->wanted_workers() == 2);
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  const v1::Grant grant = c.workers["0"].held.front();
  c.Finish(c.workers["0"], grant);
  CHECK(c.job->wanted_workers() == 1);
}

TEST_CASE("a functions job that resumes at any moment runs each closure to one end") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    std::uint64_t drawn = 0;
    const auto below = [&](std::uint64_t n) {
      return static_cast<std::uint64_t>(random::Uniform(seed, drawn++) * static_cast<double>(n));
    };
    Functions c(
        [&](config::JobSpec& s, JobOptions& o) {
          o.notes_max = 1 + static_cast<std::uint32_t>(seed % 5);
          s.functions.queue_limit = 4;
        },
        kJournal);
    c.hold = [&](const FakeWorker&, const v1::Grant& g) {
      return g.kind() == v1::TRAIN && below(2) == 0;
    };
    c.Up();
    std::map<std::uint64_t, std::string> wanted;
    std::optional<v1::ScheduleClosureRequest> next;
    for (int turn = 0; turn < 60; ++turn) {
      if (!next) next = c.Request(below(2) == 0 ? "f" : "g", absl::StrCat(turn));
      if (const auto closure = c.Try(*next)) {
        wanted[*closure] = absl::StrCat(next->function(), "(", next->arguments(), ")");
        if (below(3) != 0) next.reset();  // otherwise the next turn repeats the call
      }
      c.Run([] { return false; }, std::chrono::milliseconds(25 * below(2)));
      for (auto& [identity, worker] : c.workers) {
        for (const v1::Grant& g : std::vector<v1::Grant>(worker.held)) {
          if (below(2) == 0) c.Finish(worker, g);
        }
      }
      if (below(12) == 0) c.Restart();
      if (below(15) == 0) {
        const std::string victim = absl::StrCat(below(2));
        c.KillWorker(victim);
        c.AddFunctionWorker(victim);
      }
    }
    c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
    for (auto& [identity, worker] : c.workers) {
      c.FinishHeld(worker);
    }
    REQUIRE(c.Run([&] { return c.Joined(); }));
    for (const auto& [closure, result] : wanted) CHECK(c.Fetch(closure).result() == result);
    CHECK(c.Status().closures_total() == wanted.size());
    CHECK(c.Status().closures_succeeded() == wanted.size());
    CHECK(c.refused.empty());
  }
}

// ---------------------------------------------------------------- with checkpoints

void Checkpointed(config::JobSpec& s, JobOptions&) {
  s.checkpoint.on = s.checkpoint.given = true;
  s.checkpoint.every = std::chrono::hours(1);  // only a durable join makes a checkpoint
  s.checkpoint.keep = 2;
}

TEST_CASE("a durable join makes a checkpoint of the finished work and waits for it") {
  Functions c(Checkpointed, kJournal);
  c.Up();
  // Waits for the first checkpoint round.
  REQUIRE(c.Run([&] { return c.Status().checkpoint().number() >= 1; }));
  const std::uint64_t before = c.Status().checkpoint().number();
  c.Schedule("1");
  c.Schedule("2");
  REQUIRE(c.Run([&] { return c.Joined(true); }, std::chrono::seconds(5)));
  CHECK(c.Status().checkpoint().number() > before);
  const std::uint64_t number = c.Status().checkpoint().number();
  CHECK(c.Joined(true));  // no shard has changed, so no checkpoint is made
  c.Run([] { return false; }, std::chrono::seconds(1));
  CHECK(c.Status().checkpoint().number() == number);
  for (const auto& [identity, server] : c.servers) {
    for (const auto& [p, shard] : server.shards) CHECK(shard.saved->done().bounds_size() == 2);
  }
}

TEST_CASE(
    "arguments are kept until a snapshot holds their effect, and at the limit schedule waits for a "
    "snapshot") {
  Functions c(
      [](config::JobSpec& s, JobOptions& o) {
        Checkpointed(s, o);
        s.functions.argument_bytes_max = 1u << 20;
      },
      kJournal);
  c.Up();
  REQUIRE(c.Run([&] { return c.Status().checkpoint().number() >= 1; }));
  const std::uint64_t first = c.Status().checkpoint().number();
  int scheduled = 0;
  bool waited = false;
  std::optional<v1::ScheduleClosureRequest> next;
  REQUIRE(c.Run([&] {
    if (!next) next = c.Request("f", std::string(200'000, 'a'));
    if (c.Try(*next)) {
      ++scheduled;
      next.reset();
    } else {
      waited |= c.waiting.find("argument_bytes_max=1048576") != std::string::npos;
    }
    return scheduled == 20;
  }));
  CHECK(waited);
  CHECK(c.Status().checkpoint().number() > first);
  REQUIRE(c.Run([&] { return c.Joined(); }));
  // Every call that had to wait at the limit was scheduled after a later snapshot, so all 20
  // closures succeed.
  CHECK(c.Status().closures_succeeded() == 20);
}

TEST_CASE(
    "a lost server's closures run again with their arguments, and without them the loss is counted "
    "and named") {
  for (const bool checkpoints : {true, false}) {
    Functions c(
        [&](config::JobSpec& s, JobOptions& o) {
          if (checkpoints) Checkpointed(s, o);
          s.functions.argument_bytes_max = 1u << 20;
        },
        kJournal);
    c.Up();
    const std::uint64_t a = c.Schedule("1");
    REQUIRE(c.Run([&] { return c.Joined(checkpoints); }, std::chrono::seconds(5)));
    const std::uint64_t b = c.Schedule("2");
    REQUIRE(c.Run([&] { return c.Joined(); }));
    c.granted.clear();
    c.AddServer("1");  // another process, which holds no shard
    REQUIRE(c.Run([&] {
      return c.Status().closures_rerun() >= (checkpoints ? 1u : 2u) &&
             c.Status().phase() == "training";
    }));
    for (const v1::Grant& g : c.granted) {
      CHECK_FALSE(g.all_targets());
      CHECK(g.function() == "f");
      CHECK(g.arguments() == (g.closure() == a ? "1" : "2"));
      if (checkpoints) CHECK(g.closure() == b);
    }
    CHECK(c.Fetch(b).result() == "f(2)");  // the result of the first run is still there
    CHECK(c.Status().closures_succeeded() == 2);
    if (checkpoints) continue;
    // Without checkpoints the job drops old arguments when their memory is needed for new ones.
    for (int i = 0; i < 12; ++i) {
      const v1::ScheduleClosureRequest request = c.Request("f", std::string(200'000, 'a'));
      REQUIRE(c.Run([&] { return c.Try(request).has_value(); }));
    }
    REQUIRE(c.Run([&] { return c.Joined(); }));
    c.AddServer("1");
    REQUIRE(c.Run([&] { return c.Status().phase() == "training" && c.Joined(); }));
    c.Finish();
    REQUIRE(c.RunToEnd());
    const auto result = nlohmann::json::parse(c.Status().result_json());
    CHECK_THAT(result["functions"]["updates_lost_of"].get<std::string>(),
               Contains(absl::StrCat(a)));
    CHECK(result["updates_exact"] == false);
    bool named = false;
    const v1::JobStatus status = c.Status();
    for (const v1::Event& event : status.events())
      named |= event.text().find(absl::StrCat("updates of closure ", a, " are lost")) !=
               std::string::npos;
    CHECK(named);
  }
}

TEST_CASE("a function that kills each of its workers is poison, and the job fails and names it") {
  Functions c;
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  c.Up();
  const std::uint64_t closure = c.Schedule("1", "g");
  REQUIRE(c.Run([&] {
    for (const std::string identity : {"0", "1"}) {
      FakeWorker& worker = c.workers[identity];
      if (const v1::Grant* g = c.HeldBy(worker, closure)) {
        c.Report(worker, *g, 3);
        c.KillWorker(identity);
        c.Run([] { return false; }, std::chrono::milliseconds(400));
        c.AddFunctionWorker(identity);
      }
    }
    return c.job->ended();
  }));
  const v1::JobStatus status = c.Status();
  CHECK(status.state() == "FAILED");
  CHECK_THAT(status.first_cause().message(), Contains("poison closure") && Contains("function=g"));
  const auto answer = c.function_calls().Schedule(c.Request("f", ""), &c.waiting);
  REQUIRE(answer);
  CHECK_THAT(std::string(answer->status().message()),
             Contains("the job has failed") && Contains("poison"));
}

}  // namespace
}  // namespace evergrad::coordinator
