// Tests the closures of a functions job and the calls of its clients, without a Job object.
#include "coordinator/jobs/function_calls.h"

#include <catch2/catch.hpp>

#include "common/base/status.h"
#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;

struct Fixture : PartFixture {
  explicit Fixture(bool checkpoints = false) {
    id.spec.type = "functions";
    id.spec.checkpoint.on = checkpoints;
    id.spec.functions.queue_limit = 3;
    id.spec.functions.argument_bytes_max = 4 * FunctionQueue::kEntryBytes;
    Place();
    rounds.emplace(Part(), &epochs,
                   CheckpointRounds::Hooks{.round_ended = [this] { closures->TrimArguments(); },
                                           .saved = [](const v1::Manifest&) {},
                                           .over = [] {}});
    closures.emplace(Part(), FunctionClosures::Parts{
                                 .epochs = &epochs,
                                 .totals = &totals,
                                 .rounds = &*rounds,
                                 .revoke = [this](ClosureId closure, const ClosureBook::Current&) {
                                   said.push_back(absl::StrCat("revoke ", closure.value()));
                                 }});
    calls.emplace(Part(), &*closures, &*rounds,
                  FunctionCalls::Hooks{.refusal = [this] { return refusal; },
                                       .waiting_for = [] { return ""; }});
  }
  v1::ClosureCall Call() {
    v1::ClosureCall call;
    call.set_client(9);
    call.set_call(++call_number);
    return call;
  }
  v1::ScheduleClosureRequest Request(const std::string& arguments = "") {
    v1::ScheduleClosureRequest request;
    *request.mutable_call() = Call();
    request.set_function("f");
    request.set_arguments(arguments);
    return request;
  }
  bool Schedules(const v1::ScheduleClosureRequest& request) {
    const auto answer = calls->Schedule(request, &waiting);
    return answer && answer->ok() && (*answer)->scheduled();
  }
  absl::StatusCode Refused(const v1::ScheduleClosureRequest& request) {
    return calls->Schedule(request, &waiting)->status().code();
  }
  // Grants the next closure, and lets it succeed.
  std::uint64_t RunOne() {
    const auto granted = book->NextGrant(TaskId(7));
    REQUIRE(granted);
    const auto result = book->OnDone(granted->closure, granted->attempt, book->durable().version,
                                     book->durable().version);
    REQUIRE(result.counted);
    v1::Done done;
    done.set_result("result");
    done.mutable_metrics()->set_steps(2);
    closures->OnSucceeded("0", granted->closure, done);
    return granted->closure.value();
  }
  // Lets every owner accept every Close that the book has for it.
  void TakeCloses() {
    for (const auto& [task, server] : shards.servers()) {
      for (const ClosureBook::CloseOrder& order : book->MakeCloses(task, server.identity))
        book->OnClosed(task, order.shard, order.epoch, true);
    }
  }
  std::optional<absl::StatusOr<v1::JoinClosuresResponse>> Join(bool durable = false) {
    v1::JoinClosuresRequest request;
    *request.mutable_call() = Call();
    request.set_durable(durable);
    waiting.clear();
    return calls->Join(request, &waiting);
  }
  v1::ResultState StateOf(std::uint64_t closure) {
    v1::FetchResultRequest request;
    request.set_closure(closure);
    const auto answer = calls->FetchResult(request, &waiting);
    return answer ? (*answer)->state() : v1::RESULT_WAITING;
  }

  EpochAccount epochs{{}, MonoTime{0}};
  TaskTotals totals;
  std::optional<CheckpointRounds> rounds;
  std::optional<FunctionClosures> closures;
  std::optional<FunctionCalls> calls;
  absl::Status refusal;
  std::uint64_t call_number = 0;
  std::string waiting;
};

TEST_CASE(
    "a closure is scheduled in one commit before work is looked for, and a repeat of the call "
    "gets the same number") {
  Fixture f;
  const v1::ScheduleClosureRequest request = f.Request("x");
  REQUIRE(f.Schedules(request));
  CHECK(f.said == std::vector<std::string>{"persist", "pump"});
  CHECK(f.note.functions().scheduled_size() == 1);
  f.refusal = absl::FailedPreconditionError("the job has ended");
  CHECK((*f.calls->Schedule(request, &f.waiting))->closure() == 0);
  CHECK(f.Refused(f.Request()) == absl::StatusCode::kFailedPrecondition);
  f.refusal = absl::OkStatus();
  f.store_fails = true;
  CHECK_FALSE(f.calls->Schedule(f.Request(), &f.waiting));
}

TEST_CASE("a malformed schedule() is refused, whatever the job waits for") {
  Fixture f;
  f.book.reset();
  v1::ScheduleClosureRequest request = f.Request();
  request.mutable_call()->set_client(0);
  CHECK(f.Refused(request) == absl::StatusCode::kInvalidArgument);
  request = f.Request();
  request.set_function("two words");
  CHECK(f.Refused(request) == absl::StatusCode::kInvalidArgument);
  request = f.Request();
  request.mutable_released()->add_bounds(3);
  CHECK(f.Refused(request) == absl::StatusCode::kInvalidArgument);
  CHECK_FALSE(f.Schedules(f.Request()));
  CHECK(f.waiting == "the job to start");
}

TEST_CASE("a full queue, missing room and a store in trouble are waited for by name") {
  Fixture f;
  CHECK_FALSE(f.Schedules(f.Request(std::string(4 * FunctionQueue::kEntryBytes, 'x'))));
  CHECK_THAT(f.waiting, Contains("memory for the arguments"));
  CHECK(f.closures->wants_round());
  for (int i = 0; i < 3; ++i) REQUIRE(f.Schedules(f.Request()));
  CHECK_FALSE(f.Schedules(f.Request()));
  CHECK(f.waiting == "space in the queue: queue_limit=3");
  f.host.trouble = "no space";
  CHECK_FALSE(f.Schedules(f.Request()));
  CHECK(f.waiting == "the coordinator's journal: no space");
}

TEST_CASE(
    "without checkpoints the arguments of ended closures give way to new ones, and an event "
    "says so once") {
  Fixture f;
  for (int i = 0; i < 2; ++i) REQUIRE(f.Schedules(f.Request(std::string(64, 'x'))));
  CHECK_FALSE(f.closures->FreeCapacity(128));
  for (int i = 0; i < 2; ++i) f.RunOne();
  CHECK(f.closures->FreeCapacity(128));
  CHECK_FALSE(f.closures->wants_round());
  CHECK(f.closures->queue().kept().size() == 1);
  CHECK(std::count_if(f.said.begin(), f.said.end(), [](const std::string& line) {
          return line.find("the job discards the arguments") != std::string::npos;
        }) == 1);
}

TEST_CASE("the first error cancels the others, and is told once every owner refuses them") {
  Fixture f;
  for (int i = 0; i < 3; ++i) REQUIRE(f.Schedules(f.Request()));
  CHECK(f.RunOne() == 0);
  REQUIRE(f.book->NextGrant(TaskId(7)));
  v1::ErrorDetail cause;
  cause.set_message("bad input");
  f.closures->OnFailed(ClosureId(1), cause);
  CHECK(f.Said("error: closure 1 (f) failed: bad input; 1 other is cancelled"));
  CHECK(f.Said("revoke 1"));
  CHECK(f.closures->closing());
  CHECK_FALSE(f.Join());
  CHECK(f.waiting == "servers to confirm that closures are cancelled: 2 left");
  f.TakeCloses();
  const auto told = f.Join();
  REQUIRE(told);
  CHECK((*told)->error().cause().message() == "bad input");
  CHECK((*f.Join())->joined());
  CHECK(f.StateOf(0) == v1::RESULT_SUCCEEDED);
  CHECK(f.StateOf(1) == v1::RESULT_FAILED);
  CHECK(f.StateOf(2) == v1::RESULT_CANCELLED);
}

TEST_CASE("a join waits for open closures, and a durable one for a checkpoint that holds them") {
  Fixture f(/*checkpoints=*/true);
  REQUIRE(f.Schedules(f.Request()));
  CHECK_FALSE(f.Join());
  CHECK(f.waiting == "1 closure to end");
  f.RunOne();
  CHECK((*f.Join())->joined());
  CHECK_FALSE(f.Join(/*durable=*/true));
  CHECK(f.waiting == "a checkpoint of the closures");
  CHECK(f.closures->wants_round());
  v1::Manifest manifest;
  for (std::uint32_t p = 0; p < 2; ++p) {
    v1::ShardFile* file = manifest.add_shards();
    file->set_shard(p);
    *file->mutable_done() = client::ToProto(IntervalSet{0});
  }
  f.closures->OnSaved(manifest);
  f.closures->OnRoundTick();
  CHECK_FALSE(f.closures->wants_round());
  CHECK((*f.Join(/*durable=*/true))->joined());
  Fixture without;
  CHECK(without.Join(/*durable=*/true)->status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("a cancellation is committed, revokes what runs, and is answered when it is settled") {
  Fixture f;
  for (int i = 0; i < 2; ++i) REQUIRE(f.Schedules(f.Request()));
  REQUIRE(f.book->NextGrant(TaskId(7)));
  v1::CancelClosuresRequest request;
  request.set_all(true);
  f.said.clear();
  CHECK_FALSE(f.calls->CancelClosures(request, &f.waiting));
  CHECK(f.said == std::vector<std::string>{"state: the client cancelled 2 closures", "persist",
                                           "revoke 0", "closes", "pump"});
  f.TakeCloses();
  CHECK((*f.calls->CancelClosures(request, &f.waiting))->cancelled());
}

TEST_CASE("a job is finished once, by a call without open closures") {
  Fixture f;
  v1::FinishJobRequest request;
  *request.mutable_call() = f.Call();
  REQUIRE(f.Schedules(f.Request()));
  CHECK_FALSE(f.calls->Finish(request, &f.waiting));
  f.RunOne();
  REQUIRE((*f.calls->Finish(request, &f.waiting))->finishing());
  CHECK(f.Said("state: the client finished the job after 1 closure"));
  f.refusal = absl::FailedPreconditionError("the job has ended");
  CHECK((*f.calls->Finish(request, &f.waiting))->finishing());
}

TEST_CASE("a new life skips numbers that the journal may have forgotten and keeps them dead") {
  Fixture f;
  plan::PlanSpec large{.train_examples = 1u << 20, .batch_size = 1, .steps_per_closure = 1};
  f.plan = *plan::Plan::Create(large);
  f.book = std::make_unique<ClosureBook>(
      ClosureBook::Options{.closures = f.plan->closures(), .shards = 2}, DurableState{});
  Record begun = f.book->BeginLife(Term(2));
  f.closures->BeginLife(&begun);
  CHECK(f.closures->queue().next() == 1u << 16);
  CHECK(begun.dead_add.Contains(0));
  CHECK(f.closures->closing());
}

TEST_CASE("the notes restore the queue and the counters") {
  Fixture f;
  REQUIRE(f.Schedules(f.Request("x")));
  f.RunOne();
  v1::FunctionsState state;
  Fixture restored;
  restored.closures->Fill(&state);
  REQUIRE(restored.closures->Read(state).ok());
  restored.closures->ReadNote(f.note.functions());
  v1::FunctionsState before, after;
  f.closures->Fill(&before);
  restored.closures->Fill(&after);
  CHECK(before.SerializeAsString() == after.SerializeAsString());
  CHECK(restored.epochs.steps_done() == 2);
}

}  // namespace
}  // namespace evergrad::coordinator
