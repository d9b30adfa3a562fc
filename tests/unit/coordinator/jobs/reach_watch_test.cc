// Tests how a job watches for workers that cannot reach a server, without a Job object.
#include "coordinator/jobs/reach_watch.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

// There are the workers 7 and 8. Worker 7 holds a closure and gets no answer from server "a".
struct Fixture : PartFixture {
  Fixture() {
    Place();
    for (const std::uint64_t n : {7, 8}) {
      v1::Hello hello;
      hello.set_process_uid(n);
      JobWorker worker = roster.Make(TaskId(n), std::to_string(n), MonoTime{0}, hello);
      worker.ready = true;
      roster.workers().insert_or_assign(TaskId(n), std::move(worker));
    }
    cut_off().Take({1, 1}, {ClosureId(0), v1::TRAIN, host.Now()});
    watch.Check();  // from now on the watch knows the servers
    host.clock.Advance(options.reach_timeout);
    Unreached(cut_off());
  }
  JobWorker& cut_off() { return *roster.Find(TaskId(7)); }
  void Unreached(JobWorker& worker) {
    v1::UnreachedServer* one = worker.progress.add_unreached();
    one->set_server("a");
    one->set_address("127.0.0.1:4001");
    one->set_for_ms(static_cast<std::uint64_t>(options.reach_timeout.count()));
  }

  EpochAccount epochs{{}, MonoTime{0}};
  WorkerRoster roster{Part(), &epochs};
  bool others = true;
  std::vector<std::string> passed;
  std::size_t able = 0;
  ReachWatch watch{Part(),
                   &roster,
                   {.others_can =
                        [this](const JobWorker&, const std::vector<const JobWorker*>& workers) {
                          able = workers.size();
                          return others;
                        },
                    .pass_on =
                        [this](JobWorker& worker, const v1::UnreachedServer& from) {
                          passed.push_back(worker.identity + ">" + from.server());
                        }}};
};

TEST_CASE("the work of a worker that is cut off is passed on, and the able workers are named") {
  Fixture f;
  CHECK(f.watch.WaitingFor() == "worker/7 to reach ps_server/a at 127.0.0.1:4001 for 5 s");
  f.watch.Check();
  CHECK(f.passed == std::vector<std::string>{"7>a"});
  CHECK(f.able == 1);
  f.watch.Check();  // the second check comes too soon after the first
  CHECK(f.passed.size() == 1);
}

TEST_CASE("a worker keeps work that nobody else can do, and this is told once") {
  const bool pinned = GENERATE(false, true);
  Fixture f;
  f.others = pinned;
  f.id.spec.strategy.deterministic = pinned;
  for (int i = 0; i < 3; ++i) {
    f.watch.Check();
    f.host.clock.Advance(std::chrono::milliseconds(100));
  }
  CHECK(f.passed.empty());
  REQUIRE(f.said.size() == 1);
  CHECK(f.Said("worker/7 cannot reach ps_server/a"));
}

TEST_CASE("a worker without work, or one that reaches its servers, is left alone") {
  Fixture f;
  f.cut_off().DropAll();
  f.watch.Check();
  CHECK(f.passed.empty());
  CHECK(f.watch.WaitingFor().empty());
  Fixture reached;
  reached.cut_off().progress.clear_unreached();
  reached.watch.Check();
  CHECK(reached.passed.empty());
  CHECK(reached.watch.FindUnreached(reached.cut_off()) == nullptr);
}

TEST_CASE("the job waits for answers only while every worker does") {
  Fixture f;
  CHECK(f.watch.WaitingForAnswers().empty());
  f.cut_off().progress.set_awaits("ps_server/b");
  CHECK(f.watch.WaitingForAnswers() == "an answer to worker/7 by ps_server/b");
  JobWorker& other = *f.roster.Find(TaskId(8));
  other.Take({1, 2}, {ClosureId(1), v1::TRAIN, f.host.Now()});
  CHECK(f.watch.WaitingForAnswers().empty());
  CHECK(f.watch.WaitingFor().empty());
}

}  // namespace
}  // namespace evergrad::coordinator
