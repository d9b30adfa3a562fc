// Tests which part of a job handles each kind of report from workers, without a Job object.
#include "coordinator/jobs/worker_reports.h"

#include <catch2/catch.hpp>

#include "work_fixture.h"

namespace evergrad::coordinator {
namespace {

struct Fixture : WorkFixture {
  Fixture() {
    for (const PhaseEvent event : {PhaseEvent::kStarted, PhaseEvent::kPlanned, PhaseEvent::kPlaced})
      REQUIRE(phases.Apply(event));
  }
  // Begins a round of two closures of this kind, and grants one of them to worker 7.
  v1::Grant Read(v1::WorkKind kind) {
    worker(7).DropAll();
    worker(8).ready = false;
    reading.Begin(kind, 2, MonoTime{0});
    reading.Grant();
    worker(8).ready = true;
    return Grants(7).at(0);
  }
  absl::Status End(std::uint64_t task, const v1::Grant& grant) {
    v1::Done done = Answer<v1::Done>(grant);
    *done.mutable_v0() = *done.mutable_v1() = client::ToProto(book->durable().version);
    done.mutable_metrics()->set_examples(4);
    done.mutable_metrics()->set_steps(1);
    return reports.OnDone(TaskId(task), done);
  }
  void ReportFailure(const v1::Grant& grant, bool user, v1::Lack lack = v1::NO_LACK) {
    v1::Failed failed = Answer<v1::Failed>(grant);
    failed.set_user_error(user);
    failed.set_lack(lack);
    failed.mutable_cause()->set_message("why");
    reports.OnFailed(TaskId(7), failed);
  }

  JobPhases phases;
  v1::CheckpointStatus checkpoint;
  SealedExport sealed{
      Part(), &reading, &roster, &checkpoint, {.send_job = [](TaskId) {}, .over = [] {}}};
  WorkerReports reports{
      Part(),
      {.phases = &phases,
       .roster = &roster,
       .deaths = &deaths,
       .turn = &turn,
       .training = &training,
       .reading = &reading,
       .sealed_export = &sealed,
       .source = &source},
      {.described = [this](const v1::DescribeResult&) { said.push_back("described"); },
       .evaluated = [this] { said.push_back("evaluated"); },
       .exported = [this](const v1::ExportResult&,
                          const std::string& worker) { said.push_back("exported by " + worker); }}};
};

TEST_CASE("a Done of training goes to the ledger, and one of a reading closure to its round") {
  Fixture f;
  REQUIRE(f.End(7, f.Hold()).ok());
  CHECK(f.epochs.succeeded() == 1);
  CHECK(f.said.empty());
  const v1::Grant first = f.Read(v1::EVALUATE);
  REQUIRE(f.End(7, first).ok());
  CHECK(f.said.empty());  // one closure of the round is left
  v1::Grant second = first;
  second.set_closure(first.closure() + 1);
  *second.mutable_attempt() = client::ToProto(f.reading.closures()[1].attempt);
  REQUIRE(f.End(7, second).ok());
  CHECK(f.said == std::vector<std::string>{"evaluated"});
}

TEST_CASE("the result of a reading closure is told with its kind") {
  Fixture f;
  REQUIRE(f.End(7, f.Read(v1::DESCRIBE)).ok());
  REQUIRE(f.End(7, f.Read(v1::EXPORT)).ok());
  CHECK(f.said == std::vector<std::string>{"described", "exported by 7"});
}

TEST_CASE("a Done that is not of the newest attempt is answered as superseded") {
  Fixture f;
  v1::Grant grant = f.Read(v1::EXPORT);
  grant.mutable_attempt()->set_n(grant.attempt().n() + 50);
  REQUIRE(f.End(7, grant).ok());
  CHECK(f.said.empty());
  f.turn.End();
  CHECK(f.Take(TaskId(7)).at(0).done_answer().superseded());
}

TEST_CASE("a Done that is too large is malformed, and a task that is no worker changes nothing") {
  Fixture f;
  const v1::Grant grant = f.Read(v1::EXPORT);
  v1::Done done = f.Answer<v1::Done>(grant);
  for (int i = 0; i < 65; ++i) done.mutable_metrics()->add_sums();
  CHECK(absl::IsInvalidArgument(f.reports.OnDone(TaskId(7), done)));
  CHECK(f.End(99, grant).ok());
  f.reports.OnFailed(TaskId(99), f.Answer<v1::Failed>(grant));
  f.reports.OnDropped(TaskId(99), f.Answer<v1::AttemptDropped>(grant));
  CHECK(f.said.empty());
  CHECK(f.reading.left() == 2);
}

TEST_CASE("once the job ends only the user's error of a failing job is heard") {
  Fixture f;
  const v1::Grant grant = f.Hold();
  const bool fails = GENERATE(false, true), user = GENERATE(false, true);
  CAPTURE(fails, user);
  REQUIRE(f.phases.Apply(fails ? PhaseEvent::kFailed : PhaseEvent::kCancelled));
  f.ReportFailure(grant, user);
  CHECK(f.Said("fail user: why") == (fails && user));
  CHECK_FALSE(f.Said("failed on worker/7"));
}

TEST_CASE("a worker that cannot take part is set aside, and its work goes to others") {
  Fixture f;
  const v1::Grant grant = f.Hold();
  f.ReportFailure(grant, /*user=*/true, v1::ABILITY);
  CHECK(f.roster.IsAside(7));
  CHECK(f.IsFree(grant));
  CHECK_FALSE(f.Said("fail user"));
}

TEST_CASE("an attempt that was recalled, or comes from a leaving worker, is free at once") {
  Fixture f;
  const v1::Grant grant = f.Hold();
  const auto attempt = client::FromProto<Attempt>(grant.attempt());
  const int why = GENERATE(0, 1, 2);
  CAPTURE(why);
  if (why == 1) f.roster.Recall(&f.worker(7), attempt, &f.worker(7).held.at(attempt));
  if (why == 2) f.worker(7).leaving = true;
  f.reports.OnDropped(TaskId(7), f.Answer<v1::AttemptDropped>(grant));
  CHECK(f.worker(7).held.count(attempt) == 0);
  CHECK(f.IsFree(grant) == (why != 0));
}

}  // namespace
}  // namespace evergrad::coordinator
