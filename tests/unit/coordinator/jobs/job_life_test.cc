// Tests the events that change the phase of a job, and their effects, without the calls of the
// control plane.
#include "coordinator/jobs/job_life.h"

#include <catch2/catch.hpp>

#include "evergrad/v1/journal.pb.h"
#include "life_fixture.h"

namespace evergrad::coordinator {
namespace {

using std::chrono::seconds;

TEST_CASE("tasks are told of a phase after its commit, and of none that the store has refused") {
  LifeFixture f({.persistent = true});
  f.life.Start();
  const auto told = f.Take(LifeFixture::kServer);
  REQUIRE(told.size() == 1);
  CHECK(told[0].has_job());
  CHECK(f.parts.reading.left() == 1);  // the closure that describes the job

  LifeFixture refused({.jobs_max = 0, .persistent = true});
  refused.life.Start();
  CHECK(absl::IsResourceExhausted(refused.host.store_failure));
  CHECK(refused.Take(LifeFixture::kServer).empty());
  CHECK(refused.parts.reading.empty());
}

TEST_CASE("an event that the phase refuses changes nothing") {
  LifeFixture f;
  CHECK_FALSE(f.life.Apply(PhaseEvent::kEvaluated));
  CHECK(f.In(JobPhase::kNone));
  CHECK(f.parts.events.events().empty());
  CHECK(f.Take(LifeFixture::kServer).empty());
}

TEST_CASE("a job that is described is placed, and trains once its server holds every shard") {
  LifeFixture f;
  f.Begin();
  CHECK(f.parts.phases.state() == JobState::kStarting);
  REQUIRE(f.parts.book);
  const auto told = f.Take(LifeFixture::kServer);
  CHECK(std::count_if(told.begin(), told.end(), [](const auto& m) { return m.has_assign(); }) ==
        f.parts.shards.size());
  f.life.Pump();
  CHECK(f.In(JobPhase::kPlacing));
  for (std::uint32_t p = 0; p < f.parts.shards.size(); ++p) f.parts.shards.Give(ShardId(p), true);
  f.life.Pump();
  CHECK(f.In(JobPhase::kTraining));
  CHECK(f.parts.phases.state() == JobState::kRunning);
}

TEST_CASE("a description without a plan fails the job") {
  LifeFixture f;
  f.described.set_train_examples(0);
  f.life.Start();
  f.life.OnDescribed(f.described);
  CHECK(f.parts.phases.ending() == JobState::kFailed);
  CHECK_FALSE(f.parts.book);
}

TEST_CASE("a user's error replaces the cause of a failure, and the job is sealed once") {
  LifeFixture f;
  f.Train();
  f.Fail("connection lost", false);
  REQUIRE(f.In(JobPhase::kSealing));
  f.Take(LifeFixture::kServer);
  f.Fail("nan in loss", true);
  CHECK(f.parts.phases.cause()->message() == "nan in loss");
  CHECK(f.Said("fails: ") == 1);
  CHECK(f.Take(LifeFixture::kServer).empty());
  f.Fail("another error", false);
  CHECK(f.parts.phases.cause()->message() == "nan in loss");
}

TEST_CASE("a rollback voids an evaluation, and the training continues") {
  LifeFixture f;
  f.Train();
  REQUIRE(f.life.Apply(PhaseEvent::kEvaluationDue));
  REQUIRE(f.parts.reading.left() > 0);
  f.life.AfterRollback("shard 0 was lost");
  CHECK(f.In(JobPhase::kTraining));
  CHECK(f.parts.reading.empty());
  CHECK(f.Said("evaluating begins again: shard 0 was lost") == 1);
  f.life.AfterRollback("shard 0 was lost");  // during training a rollback adds no event
  CHECK(f.Said("begins again") == 1);
}

TEST_CASE("time without a worker is not a sample of the training rate") {
  LifeFixture f;
  f.Train();
  f.host.clock.Advance(seconds(1));
  f.life.SampleRate();
  CHECK(f.parts.rate.curve().points().empty());
  f.AddWorker();
  f.host.clock.Advance(seconds(1));
  f.life.SampleRate();
  CHECK(f.parts.rate.curve().points().size() == 1);
}

TEST_CASE("a restored job continues its phase when the window of the new life closes") {
  LifeFixture former({.persistent = true});
  former.life.Start();
  const StoredJob stored = *former.host.memory.LoadJob(former.parts.id.uid);
  v1::JobSnapshot snapshot;
  REQUIRE(snapshot.ParseFromString(stored.snapshot));

  LifeFixture f({.persistent = true});
  REQUIRE(f.life.Restore(snapshot, stored, "").ok());
  CHECK(f.In(JobPhase::kDescribing));
  f.life.Resume(Term(2));
  CHECK(f.Said("the coordinator restarted: term=2") == 1);
  f.life.Pump();
  CHECK(f.parts.reading.empty());
  f.life.CloseWindow();
  CHECK(f.parts.reading.left() == 1);
  f.life.CloseWindow();  // A repeated call changes nothing.
  CHECK(f.parts.reading.left() == 1);
  // Nothing is sent to the server here. A server is told about the job when it registers.
  CHECK(f.Take(LifeFixture::kServer).empty());
}

}  // namespace
}  // namespace evergrad::coordinator
