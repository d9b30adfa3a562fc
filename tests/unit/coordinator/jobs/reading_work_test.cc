// Tests how closures that only read are granted and answered, without a Job object.
#include "coordinator/jobs/reading_work.h"

#include <catch2/catch.hpp>

#include "reading_fixture.h"

namespace evergrad::coordinator {
namespace {

struct Fixture : ReadingFixture {
  // Begins a round of one closure, and grants the closure to worker `task`.
  v1::Grant Hold(std::uint64_t task, v1::WorkKind kind = v1::EVALUATE) {
    AddWorker(task);
    reading.Begin(kind, 1, MonoTime{0});
    reading.Grant();
    const std::vector<v1::Grant> grants = Grants(task);
    REQUIRE(grants.size() == 1);
    return grants[0];
  }
  // The worker `task` reports that the attempt has failed.
  void ReportFailure(const v1::Grant& grant, std::uint64_t task, bool user, bool elsewhere = false,
                     absl::StatusCode code = absl::StatusCode::kInternal) {
    v1::Failed failed = Answer<v1::Failed>(grant);
    failed.set_user_error(user);
    v1::ErrorDetail cause;
    cause.set_code(static_cast<int>(code));
    cause.set_message("why");
    reading.OnFailed(roster.workers().at(TaskId(task)), failed, elsewhere, cause);
  }
  bool Waits() { return reading.Waiting(host.Now()) != nullptr; }
};

TEST_CASE("closures go to the worker that holds fewest, and each worker holds at most two") {
  Fixture f;
  f.AddWorker(7);
  f.AddWorker(8).Take(Attempt{1, 90}, {ClosureId(0), v1::TRAIN, MonoTime{0}});
  f.reading.Begin(v1::EVALUATE, 4, MonoTime{0});
  f.reading.Grant();
  CHECK(f.Grants(7).size() == 2);
  CHECK(f.Grants(8).size() == 1);
  CHECK(f.Waits());
}

TEST_CASE("a grant names the kind of the round, and an export has its order") {
  Fixture f;
  const v1::Grant evaluate = f.Hold(7);
  CHECK(evaluate.kind() == v1::EVALUATE);
  CHECK(evaluate.all_targets());
  CHECK_FALSE(evaluate.has_export_order());
  CHECK(evaluate.job_uid() == f.id.uid.value());
  const v1::Grant exported = f.Hold(8, v1::EXPORT);
  CHECK(exported.export_order().mark() == "mark");
}

TEST_CASE("a closure that describes a job is granted before the job has a book") {
  Fixture f;
  f.book.reset();
  const v1::Grant grant = f.Hold(7, v1::DESCRIBE);
  CHECK(grant.attempt().n() > (1ull << 62));
}

TEST_CASE("nothing is granted while grants are blocked, to an unusable worker, or too early") {
  Fixture f;
  JobWorker& worker = f.AddWorker(7);
  f.reading.Begin(v1::EVALUATE, 1, std::chrono::seconds(1));
  f.reading.Grant();
  CHECK(f.Grants(7).empty());
  f.host.clock.Advance(std::chrono::seconds(1));
  f.blocked = true;
  f.reading.Grant();
  CHECK(f.Grants(7).empty());
  f.blocked = false;
  worker.leaving = true;
  f.reading.Grant();
  CHECK(f.Grants(7).empty());
  worker.leaving = false;
  f.reading.Grant();
  CHECK(f.Grants(7).size() == 1);
}

TEST_CASE("a Done counts once, from the worker of the newest attempt, and of the round's kind") {
  Fixture f;
  const v1::Grant grant = f.Hold(7);
  const JobWorker &worker = f.roster.workers().at(TaskId(7)), &other = f.AddWorker(8);
  v1::Done done = f.Answer<v1::Done>(grant);
  CHECK_FALSE(f.reading.Accept(other, done));
  done.set_kind(v1::EXPORT);
  CHECK_FALSE(f.reading.Accept(worker, done));
  done.set_kind(v1::EVALUATE);
  done.mutable_metrics()->set_examples(5);
  CHECK(f.reading.Accept(worker, done));
  CHECK(f.reading.closures()[0].metrics.examples() == 5);
  CHECK_FALSE(f.reading.Accept(worker, done));
}

TEST_CASE("the workers of a void round are told, and training attempts stay") {
  Fixture f;
  const v1::Grant grant = f.Hold(7);
  JobWorker& worker = f.roster.workers().at(TaskId(7));
  worker.Take(Attempt{1, 90}, {ClosureId(0), v1::TRAIN, MonoTime{0}});
  f.reading.Void();
  CHECK(f.reading.empty());
  const auto sent = f.Take(TaskId(7));
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].done_answer().superseded());
  CHECK(sent[0].done_answer().closure() == grant.closure());
  REQUIRE(worker.held.size() == 1);
  CHECK(worker.held.begin()->second.kind == v1::TRAIN);
}

TEST_CASE("errors of machines are retried with a wait, and too many in a row end the job") {
  Fixture f;
  f.options.retries_max = 1;
  v1::Grant grant = f.Hold(7);
  f.roster.workers().at(TaskId(7)).DropAll();
  f.ReportFailure(grant, 7, /*user=*/false);
  CHECK(f.Said("warning: EVALUATE failed on worker/7 (failures in a row: 1): why"));
  CHECK_FALSE(f.Waits());
  f.host.clock.Advance(f.options.retry_min);
  f.reading.Grant();
  grant = f.Grants(7).at(0);
  f.ReportFailure(grant, 7, /*user=*/false);
  CHECK(f.Said("fail machine: why"));
}

TEST_CASE("an error of the user's ends the job, and a worker that cannot take part does not") {
  Fixture f;
  SECTION("the user's") {
    f.ReportFailure(f.Hold(7), 7, /*user=*/true);
    CHECK(f.Said("fail user: why"));
  }
  SECTION("elsewhere") {
    f.ReportFailure(f.Hold(7), 7, /*user=*/true, /*elsewhere=*/true);
    CHECK(f.said == std::vector<std::string>{"pump"});
    CHECK(f.Waits());
  }
  SECTION("of an attempt that another worker holds by now") {
    const v1::Grant grant = f.Hold(7);
    f.AddWorker(8);
    f.ReportFailure(grant, 8, /*user=*/true);
    CHECK(f.said.empty());
  }
}

TEST_CASE("an export without disk space is no error of the worker's") {
  Fixture f;
  const v1::WorkKind kind = GENERATE(v1::EXPORT, v1::EVALUATE);
  f.ReportFailure(f.Hold(7, kind), 7, /*user=*/false, /*elsewhere=*/false,
                  absl::StatusCode::kResourceExhausted);
  CHECK(f.Said("no space: why") == (kind == v1::EXPORT));
  CHECK(f.Said("failed on worker/7") == (kind != v1::EXPORT));
}

TEST_CASE("an attempt that is given back goes to others, at once if it was asked for") {
  Fixture f;
  const v1::Grant grant = f.Hold(7);
  const auto dropped = f.Answer<v1::AttemptDropped>(grant);
  CHECK_FALSE(f.reading.OnDropped(TaskId(8), dropped, true));
  const bool asked = GENERATE(false, true);
  CHECK(f.reading.OnDropped(TaskId(7), dropped, asked));
  CHECK(f.Waits() == asked);
  f.host.clock.Advance(f.options.retry_min);
  CHECK(f.Waits());
}

}  // namespace
}  // namespace evergrad::coordinator
