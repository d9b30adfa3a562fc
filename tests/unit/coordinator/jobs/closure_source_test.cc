// Tests the two sources of closures (a plan, and the calls of clients), without a Job object.
#include "coordinator/jobs/closure_source.h"

#include <catch2/catch.hpp>

#include "coordinator/jobs/journal_writer.h"
#include "coordinator/jobs/planned_closures.h"
#include "coordinator/jobs/scheduled_closures.h"
#include "coordinator/jobs/worker_claims.h"
#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

using OnError = ClosureSource::OnError;

// There are two workers, "0" and "1". The messages to the workers are in `sent`.
struct Fixture : PartFixture, GrantActions {
  explicit Fixture(const std::string& type) : kind(Typed(type)) {
    Place();
    epochs.SetPlan(&*plan);
    epochs.BeginPlan();
    for (const std::uint64_t n : {7, 8}) {
      JobWorker& worker = workers[TaskId(n)];
      worker.task = TaskId(n);
      worker.identity = std::to_string(n - 7);
      worker.functions = n == 7 ? std::set<std::string>{"f"} : std::set<std::string>{"f", "g"};
    }
    source = kind.MakeSource(
        Part(),
        {.epochs = &epochs,
         .totals = &totals,
         .rounds = &rounds,
         .claims = &claims,
         .journal = &journal,
         .grants = this,
         .account_context = [this] { return EpochAccount::Context{host.Now()}; },
         .revoke = [](ClosureId, const ClosureBook::Current&) {},
         .calls = {.refusal = [] { return absl::OkStatus(); }, .waiting_for = [] { return ""; }}});
    source->UpdateNewLimit();
  }
  const JobKind& Typed(const std::string& type) {
    id.spec.type = type;
    return JobKind::Of(id.spec);
  }
  std::uint64_t Schedule(const std::string& function) {
    v1::ScheduleClosureRequest request;
    request.mutable_call()->set_client(9);
    request.mutable_call()->set_call(++calls);
    request.set_function(function);
    std::string waiting;
    return (**source->calls()->Schedule(request, &waiting)).closure();
  }
  void Grant() { source->Grant(granter, workers); }
  // The worker `task` succeeds with its attempt of the closure.
  void End(TaskId task, std::uint64_t closure) {
    const ClosureBook::Current current = book->current().at(ClosureId(closure));
    const auto result = book->OnDone(ClosureId(closure), current.attempt, book->durable().version,
                                     book->durable().version);
    REQUIRE(result.counted);
    workers.at(task).Drop(current.attempt);
    v1::Done done;
    done.mutable_metrics()->set_examples(4);
    done.mutable_metrics()->set_steps(2);
    source->OnCounted(workers.at(task).identity, ClosureId(closure), done);
  }

  bool Usable(const JobWorker& worker, MonoTime) const override { return !worker.stuck; }
  WorkerPin::Choice PinnedWorker() override { return pin; }
  bool GrantsBlocked() override { return false; }
  std::uint32_t LimitOf(const JobWorker&) const override { return attempts_max; }
  void RecallAttempt(JobWorker*, Attempt, JobWorker::Held* held) override { held->recalled = true; }
  void SendTraining(JobWorker& worker, const ClosureBook::Granted& granted, bool regrant) override {
    worker.Take(granted.attempt, {granted.closure, v1::TRAIN, host.Now(), false, 0, regrant});
    sent.emplace_back(worker.identity, granted.closure.value());
  }
  void GiveUpRepair(ClosureId, Attempt, absl::string_view) override {}

  const JobKind& kind;
  EpochAccount epochs{{}, MonoTime{0}};
  TaskTotals totals;
  CheckpointRounds rounds{
      Part(), &epochs, {.round_ended = [] {}, .saved = [](const auto&) {}, .over = [] {}}};
  WorkerClaims claims{Part(), &epochs};
  MetricsFile lines{&host, "/runs/part", [](absl::string_view, const std::string&) {}};
  JournalWriter journal{&host, &options, JobUid(0xabc), &lines, [](v1::JobCounters*) {}};
  std::unique_ptr<ClosureSource> source;
  Granter granter;
  JobWorkers workers;
  WorkerPin::Choice pin;
  std::uint32_t attempts_max = 1;
  std::uint64_t calls = 0;
  std::vector<std::pair<std::string, std::uint64_t>> sent;
};

using Sent = std::vector<std::pair<std::string, std::uint64_t>>;

TEST_CASE("the closures of a plan go to every worker in order, or to the pinned one alone") {
  Fixture f("training");
  CHECK_FALSE(f.source->has_callers());
  CHECK_FALSE(f.source->WantedFunctions(f.workers));
  CHECK(f.source->Limit() == 16);
  CHECK(f.source->UsefulWorkers(2) == 16);
  f.Grant();
  CHECK(f.sent == Sent{{"0", 0}, {"1", 1}});
  Fixture pinned("training");
  pinned.id.spec.strategy.deterministic = true;
  pinned.pin = {true, &pinned.workers.at(TaskId(8))};
  pinned.Grant();
  CHECK(pinned.sent == Sent{{"1", 0}});
}

TEST_CASE("a plan wants a worker for each closure that is left, within the limit of grants") {
  Fixture f("training");
  CHECK(f.source->WantedWorkers() == 16);
  f.Grant();
  CHECK(f.source->WantedWorkers() == 16);  // a closure in flight is not done
  f.End(TaskId(8), 1);
  CHECK(f.source->WantedWorkers() == 15);  // closure 1 is done, although closure 0 is not
  f.End(TaskId(7), 0);
  CHECK(f.source->WantedWorkers() == 14);
  f.options.closures_behind_max = 6;
  CHECK(f.source->WantedWorkers() == 6);
}

TEST_CASE("a success of a plan's closure is counted with its steps and examples") {
  Fixture f("training");
  f.Grant();
  f.End(TaskId(7), 0);
  CHECK(f.epochs.succeeded() == 1);
  CHECK(f.epochs.steps_done() == 1);
  CHECK(f.epochs.examples_done() == 4);
  CHECK(f.source->StepsOf(ClosureId(0), v1::Done()) == 1);
  CHECK(f.source->OnLost(ClosureId(0)) == 1);
}

TEST_CASE(
    "new closures wait for the oldest one while too many lie behind it, and an event says so") {
  Fixture f("training");
  f.options.closures_behind_max = 2;
  f.source->UpdateNewLimit();
  f.Grant();
  f.End(TaskId(8), 1);
  f.Grant();
  CHECK(f.sent.size() == 2);
  CHECK(f.source->TakeWindowRefusals() == 1);
  CHECK(f.source->TakeWindowRefusals() == 0);
  f.host.clock.Advance(std::chrono::seconds(6));
  f.Grant();
  CHECK(f.Said("closure 0 has not ended, but later closures have"));
  f.End(TaskId(7), 0);
  f.Grant();
  CHECK(f.sent.size() == 4);
}

TEST_CASE("the notes of a plan's closures are counted again, and none lies beyond the plan") {
  Fixture f("training");
  v1::JobNote read;
  v1::CountedClosure* one = read.add_counted();
  one->set_closure(3);
  one->set_worker("0");
  one->set_examples(4);
  REQUIRE(f.source->ReadNote(read, /*ended=*/false).ok());
  CHECK(f.epochs.succeeded() == 1);
  one->set_closure(16);
  CHECK(f.source->ReadNote(read, false).code() == absl::StatusCode::kInvalidArgument);
  CHECK(f.source->ReadNote(read, /*ended=*/true).ok());
}

TEST_CASE("an error ends a training job, except a lost repair that is only to be reported") {
  Fixture f("training");
  CHECK(f.source->Judge(true, false, 0) == OnError::kRetry);
  CHECK(f.source->Judge(true, true, 0) == OnError::kRetry);
  f.id.spec.training.on_lost_updates = "report";
  CHECK(f.source->Judge(true, true, 0) == OnError::kGiveUpRepair);
  CHECK(f.source->Judge(false, true, 100) == OnError::kRetry);
}

TEST_CASE("an error ends a client's closure, or its repair, at once or after too many retries") {
  Fixture f("functions");
  CHECK(f.source->Judge(true, false, 0) == OnError::kFailClosure);
  CHECK(f.source->Judge(true, true, 0) == OnError::kGiveUpRepair);
  CHECK(f.source->Judge(false, false, f.options.retries_max - 1) == OnError::kRetry);
  CHECK(f.source->Judge(false, false, f.options.retries_max) == OnError::kFailClosure);
}

TEST_CASE("a client's closure goes only to a worker that has its function") {
  Fixture f("functions");
  CHECK(f.source->has_callers());
  CHECK(f.source->IdleText() == "closures to be scheduled");
  CHECK(f.Schedule("g") == 0);
  CHECK(f.Schedule("h") == 1);
  CHECK(f.source->WantedFunctions(f.workers) == std::set<std::string>{"g", "h"});
  CHECK(f.source->UsefulWorkers(2) == 2);
  CHECK(f.source->WantedWorkers() == 2);
  CHECK_FALSE(f.source->IdleText());
  f.Grant();
  CHECK(f.sent == Sent{{"1", 0}});
  CHECK_FALSE(f.source->CanRun(f.workers.at(TaskId(7)), ClosureId(0)));
  CHECK(f.source->WaitingForWorker(f.workers, f.host.Now()) ==
        "workers: no connected worker has function `h`");
  v1::Grant grant;
  f.source->FillGrant(ClosureId(0), &grant);
  CHECK(grant.function() == "g");
  CHECK(f.source->Knows(ClosureId(1)));
  CHECK_FALSE(f.source->Knows(ClosureId(2)));
  CHECK(f.source->NameOf(ClosureId(1)) == " function=h");
}

TEST_CASE("the counts of a functions job are those of its clients") {
  Fixture f("functions");
  f.Schedule("f");
  f.Grant();
  f.End(TaskId(7), 0);
  v1::JobStatus status;
  f.source->FillStatus(&status);
  CHECK(status.closures_total() == 1);
  CHECK(status.epochs() == 0);
  CHECK(f.source->CountedEnds()->scheduled == 1);
  CHECK(f.epochs.steps_done() == 2);
  CHECK(f.source->CompareUpdates({}).verdict == UpdateAccount::Verdict::kExact);
  f.source->OnLost(ClosureId(0));
  CHECK(f.source->CompareUpdates({}).verdict == UpdateAccount::Verdict::kWithin);
  CHECK_FALSE(f.source->Complete());
}

}  // namespace
}  // namespace evergrad::coordinator
