// Tests the last phases of a job, without the calls of the control plane.
#include "coordinator/jobs/job_end.h"

#include <catch2/catch.hpp>

#include "life_fixture.h"

namespace evergrad::coordinator {
namespace {

bool HasEnd(const std::vector<v1::CoordinatorMessage>& messages) {
  return std::any_of(messages.begin(), messages.end(),
                     [](const v1::CoordinatorMessage& m) { return m.has_job_ended(); });
}

TEST_CASE("a job that is cancelled in the queue writes its files and never begins") {
  LifeFixture f;
  f.life.Cancel();
  REQUIRE(f.In(JobPhase::kWriting));
  CHECK(f.parts.phases.never_started());
  f.RunFileThread();
  CHECK(f.In(JobPhase::kEnded));
  CHECK(f.parts.phases.state() == JobState::kCancelled);
  CHECK(f.host.files.count("/runs/life/result.json") == 1);
}

TEST_CASE("an early end is told to workers when the seal begins, and to servers at the very end") {
  LifeFixture f;
  f.AddWorker();
  f.Train();
  f.Take(LifeFixture::kWorker);
  f.Take(LifeFixture::kServer);
  f.life.Cancel();
  REQUIRE(f.In(JobPhase::kSealing));
  CHECK(HasEnd(f.Take(LifeFixture::kWorker)));
  CHECK(f.parts.roster.workers().at(LifeFixture::kWorker).held.empty());
  const auto told = f.Take(LifeFixture::kServer);
  CHECK(std::any_of(told.begin(), told.end(), [](const auto& m) { return m.has_seal(); }));
  CHECK_FALSE(HasEnd(told));

  // The job waits for a server that does not answer the order to seal, but only for a limited time.
  f.host.clock.Advance(f.parts.options.seal_timeout);
  f.life.end().CheckSealed();
  REQUIRE(f.In(JobPhase::kSealedReporting));
  f.host.clock.Advance(f.parts.options.report_timeout);
  f.parts.report.Check();
  REQUIRE(f.In(JobPhase::kWriting));
  CHECK_FALSE(HasEnd(f.Take(LifeFixture::kServer)));
  f.RunFileThread();
  CHECK(f.In(JobPhase::kEnded));
  CHECK(HasEnd(f.Take(LifeFixture::kServer)));
  CHECK_FALSE(f.parts.book);
}

TEST_CASE("no seal is complete while the window of a restart is open") {
  LifeFixture f;
  f.Train();
  f.parts.phases.OpenWindow();
  f.Fail("nan in loss", true);
  f.parts.shards.servers().clear();
  f.life.end().CheckSealed();
  CHECK(f.In(JobPhase::kSealing));
  f.life.CloseWindow();
  f.life.end().CheckSealed();
  CHECK_FALSE(f.In(JobPhase::kSealing));
}

TEST_CASE("a worker is wanted for the weights of a failed job that has trained, and of no other") {
  const auto train = [](LifeFixture& f) {
    f.Train();
    v1::Done done;
    done.mutable_metrics()->set_examples(32);
    f.parts.source->OnCounted("0", ClosureId(0), done);
    CHECK_FALSE(f.life.end().WantsSealedExport());
  };
  LifeFixture failed;
  train(failed);
  failed.Fail("nan in loss", true);
  CHECK(failed.life.end().WantsSealedExport());

  LifeFixture cancelled;
  train(cancelled);
  cancelled.life.Cancel();
  CHECK_FALSE(cancelled.life.end().WantsSealedExport());

  LifeFixture untrained;
  untrained.Train();
  untrained.Fail("nan in loss", true);
  CHECK_FALSE(untrained.life.end().WantsSealedExport());
}

}  // namespace
}  // namespace evergrad::coordinator
