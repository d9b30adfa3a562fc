// Tests the changes that a job commits to the journal, and that a job can be restored from them.
// There is no Job object.
#include "coordinator/jobs/job_journal.h"

#include <catch2/catch.hpp>

#include "work_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;

// The parts of a job in the phase kDescribing. A job in this phase has no plan in the journal yet.
struct Fixture : WorkFixture {
  Fixture() : WorkFixture({.persistent = true}) {
    id.yaml = "name: part\n";
    REQUIRE(phases.Apply(PhaseEvent::kStarted));
  }
  StoredJob Stored() const { return *host.memory.LoadJob(id.uid); }
  v1::JobSnapshot Snapshot() const {
    v1::JobSnapshot snapshot;
    REQUIRE(snapshot.ParseFromString(Stored().snapshot));
    return snapshot;
  }
  // Reads what the fixture `former` has committed.
  absl::Status Read(const Fixture& former) {
    return commits.Read(
        former.Snapshot(), former.Stored(), [] { return absl::OkStatus(); }, &refusal);
  }

  JobPhases phases;
  RunTimes times;
  JobPlan described{&id, &options, &shards, &epochs};
  TrainingRate rate{10};
  ReadingRound round;
  ExportFiles exported{Part(), &round, &rounds, {}};
  FinalReport report{Part()};
  ShardPlacer placer{Part(), &deaths.backoff(), &report.queries()};
  RunOutput output{Part(), {}};
  std::string refusal;
  JobJournal commits{Part(),
                     {.phases = &phases,
                      .times = &times,
                      .plan = &described,
                      .epochs = &epochs,
                      .rate = &rate,
                      .closures = &totals,
                      .tasks = &tasks,
                      .roster = &roster,
                      .claims = &claims,
                      .deaths = &deaths,
                      .events = &events,
                      .placer = &placer,
                      .rounds = &rounds,
                      .exported = &exported,
                      .report = &report,
                      .output = &output,
                      .source = &source}};
};

TEST_CASE("a commit of notes becomes a whole one when the notes are many") {
  Fixture f;
  f.options.notes_max = 2;
  REQUIRE(f.commits.PersistWhole());
  for (std::uint64_t i = 0; i < 2; ++i) {
    f.events.Add("state", "note", 5, f.commits.writer().Note());
    REQUIRE(f.commits.Persist({}));
    CHECK(f.Stored().notes.size() == i + 1);
  }
  f.events.Add("state", "the last", 5, f.commits.writer().Note());
  REQUIRE(f.commits.Persist({}));
  CHECK(f.Stored().notes.empty());
  REQUIRE(f.Snapshot().events_size() == 3);
  CHECK(f.Snapshot().events(2).text() == "the last");
}

TEST_CASE("the parts come back from the snapshot and from the notes after it") {
  Fixture f, next;
  f.times.started_ms = 7;
  f.totals.OnGranted(Attempt{1, 4});
  f.tasks.BeginWorker("7", 1);
  f.tasks.CountClosure("7", 2, 8);
  REQUIRE(f.commits.PersistWhole());
  // OnGranted makes no note of its own. The note of the event must include the change that it
  // makes.
  f.totals.OnGranted(Attempt{1, 5});
  f.events.Add("state", "later", 5, f.commits.writer().Note());
  REQUIRE(f.commits.Persist({}));
  REQUIRE(next.Read(f).ok());
  CHECK(next.phases.In(JobPhase::kDescribing));
  CHECK(next.times.started_ms == 7);
  CHECK(next.totals.Counts(0).attempts == 2);
  CHECK(next.tasks.HasCountedClosures("7"));
  REQUIRE(next.events.events().size() == 1);
  CHECK(next.events.events()[0].text() == "later");
}

TEST_CASE("the owner of a job is in the snapshot, and a job of an older journal has none") {
  Fixture f;
  f.id.owner = "user/alice";
  REQUIRE(f.commits.PersistWhole());
  v1::JobSnapshot snapshot = f.Snapshot();
  CHECK(snapshot.owner() == "user/alice");
  snapshot.set_state("FAILED");
  snapshot.set_phase("");
  std::string refusal;
  auto id = JobJournal::IdentityOf(f.id.uid, snapshot, &refusal);
  REQUIRE(id.ok());
  CHECK(id->owner == "user/alice");
  snapshot.clear_owner();
  id = JobJournal::IdentityOf(f.id.uid, snapshot, &refusal);
  REQUIRE(id.ok());
  CHECK(id->owner.empty());
}

TEST_CASE("a job without an owner has the bytes of an older build in the journal") {
  Fixture owned, none;
  owned.id.owner = "user/alice";
  REQUIRE(owned.commits.PersistWhole());
  REQUIRE(none.commits.PersistWhole());
  v1::JobSnapshot snapshot = owned.Snapshot();
  snapshot.clear_owner();
  CHECK(none.Stored().snapshot == snapshot.SerializeAsString());
  CHECK(none.Stored().snapshot.size() < owned.Stored().snapshot.size());
}

TEST_CASE("a clock that began again moves the moments of the job") {
  Fixture f, next;
  f.host.clock.Advance(std::chrono::seconds(100));
  f.times.started_at = f.host.Now();
  REQUIRE(f.commits.PersistWhole());
  REQUIRE(next.Read(f).ok());
  CHECK(next.times.started_at == next.host.Now());
}

TEST_CASE("lines of metrics.jsonl are committed before they are written") {
  Fixture f;
  f.output.lines().Add("{}", false);
  f.commits.FlushLines();
  f.RunFileThread();
  CHECK(f.host.files.at("/runs/part/metrics.jsonl") == "{}\n");
  v1::JobNote note;
  REQUIRE(f.Stored().notes.size() == 1);
  REQUIRE(note.ParseFromString(f.Stored().notes[0]));
  CHECK(note.lines() == "{}\n");
}

TEST_CASE("malformed notes, and a phase that needs a plan without one, are refused") {
  Fixture f, next;
  REQUIRE(f.commits.PersistWhole());
  SECTION("a note") {
    StoredJob stored = f.Stored();
    stored.notes.push_back("\xff");
    CHECK(absl::IsDataLoss(next.commits.Read(
        f.Snapshot(), stored, [] { return absl::OkStatus(); }, &next.refusal)));
  }
  SECTION("a phase") {
    v1::JobSnapshot snapshot = f.Snapshot();
    snapshot.set_phase("training");
    next.book.reset();
    const absl::Status status = next.commits.Read(
        snapshot, f.Stored(), [] { return absl::OkStatus(); }, &next.refusal);
    CHECK(status.message() == "the job has no plan in phase training");
  }
}

TEST_CASE("a living job whose YAML is refused cannot come back, and an ended one is shown") {
  v1::JobSnapshot snapshot;
  snapshot.set_name("part");
  snapshot.set_yaml("no: job\n");
  snapshot.set_ending("FAILED");
  snapshot.set_barrier_epochs(3);
  std::string refusal;
  snapshot.set_state("RUNNING");
  snapshot.set_phase("training");
  CHECK(absl::IsInvalidArgument(JobJournal::IdentityOf(JobUid(1), snapshot, &refusal).status()));
  snapshot.set_state("FAILED");
  snapshot.set_phase("");
  const auto id = JobJournal::IdentityOf(JobUid(1), snapshot, &refusal);
  REQUIRE(id.ok());
  CHECK_THAT(refusal, Contains("this version refuses the job's YAML: "));
  CHECK(id->spec.name == "part");
  CHECK(id->spec.training.epochs == 3);
}

}  // namespace
}  // namespace evergrad::coordinator
