// Tests the phases of a job, without a Job object.
#include "coordinator/jobs/job_phases.h"

#include <catch2/catch.hpp>

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;
using E = PhaseEvent;
using P = JobPhase;

constexpr E kEvents[] = {E::kStarted,         E::kPlanned,  E::kPlaced,    E::kEvaluationDue,
                         E::kEvaluated,       E::kTrained,  E::kExported,  E::kReported,
                         E::kRolledBack,      E::kFailed,   E::kCancelled, E::kSealed,
                         E::kSealedExportDue, E::kFinished, E::kWritten};

// For each phase, a sequence of events that leads to it.
const std::map<P, std::vector<E>> kWays = {
    {P::kNone, {}},
    {P::kDescribing, {E::kStarted}},
    {P::kPlacing, {E::kStarted, E::kPlanned}},
    {P::kTraining, {E::kStarted, E::kPlanned, E::kPlaced}},
    {P::kEvaluating, {E::kStarted, E::kPlanned, E::kPlaced, E::kEvaluationDue}},
    {P::kExporting, {E::kStarted, E::kPlanned, E::kPlaced, E::kTrained}},
    {P::kReporting, {E::kStarted, E::kPlanned, E::kPlaced, E::kTrained, E::kExported}},
    {P::kSaving, {E::kStarted, E::kPlanned, E::kPlaced, E::kTrained, E::kExported, E::kReported}},
    {P::kSealing, {E::kStarted, E::kPlanned, E::kPlaced, E::kFailed}},
    {P::kSealedReporting, {E::kStarted, E::kPlanned, E::kPlaced, E::kFailed, E::kSealed}},
    {P::kSealedSaving,
     {E::kStarted, E::kPlanned, E::kPlaced, E::kFailed, E::kSealed, E::kReported}},
    {P::kSealedExporting,
     {E::kStarted, E::kPlanned, E::kPlaced, E::kFailed, E::kSealed, E::kSealedExportDue}},
    {P::kWriting, {E::kStarted, E::kCancelled, E::kFinished}},
    {P::kEnded, {E::kStarted, E::kCancelled, E::kFinished, E::kWritten}},
};

JobPhases After(const std::vector<E>& events) {
  JobPhases phases;
  for (const E event : events) REQUIRE(phases.Apply(event));
  return phases;
}
JobPhases In(P phase) {
  JobPhases phases = After(kWays.at(phase));
  REQUIRE(phases.phase() == phase);
  return phases;
}
v1::ErrorDetail Cause(const std::string& message) {
  v1::ErrorDetail cause;
  cause.set_message(message);
  cause.set_code(static_cast<int>(absl::StatusCode::kInternal));
  return cause;
}

TEST_CASE("each phase accepts the events of the table, and refuses every other event") {
  const std::map<std::pair<P, E>, P> accepted = {
      {{P::kNone, E::kStarted}, P::kDescribing},
      {{P::kNone, E::kCancelled}, P::kSealing},
      {{P::kDescribing, E::kPlanned}, P::kPlacing},
      {{P::kDescribing, E::kFailed}, P::kSealing},
      {{P::kDescribing, E::kCancelled}, P::kSealing},
      {{P::kPlacing, E::kPlaced}, P::kTraining},
      {{P::kPlacing, E::kFailed}, P::kSealing},
      {{P::kPlacing, E::kCancelled}, P::kSealing},
      {{P::kTraining, E::kEvaluationDue}, P::kEvaluating},
      {{P::kTraining, E::kTrained}, P::kExporting},
      {{P::kTraining, E::kFailed}, P::kSealing},
      {{P::kTraining, E::kCancelled}, P::kSealing},
      {{P::kEvaluating, E::kEvaluated}, P::kTraining},
      {{P::kEvaluating, E::kRolledBack}, P::kTraining},
      {{P::kEvaluating, E::kFailed}, P::kSealing},
      {{P::kEvaluating, E::kCancelled}, P::kSealing},
      {{P::kExporting, E::kExported}, P::kReporting},
      {{P::kExporting, E::kRolledBack}, P::kTraining},
      {{P::kExporting, E::kFailed}, P::kSealing},
      {{P::kExporting, E::kCancelled}, P::kSealing},
      {{P::kReporting, E::kReported}, P::kSaving},
      {{P::kReporting, E::kFinished}, P::kWriting},  // if the job makes no checkpoints
      {{P::kReporting, E::kRolledBack}, P::kTraining},
      {{P::kReporting, E::kFailed}, P::kSealing},
      {{P::kReporting, E::kCancelled}, P::kSealing},
      {{P::kSaving, E::kFinished}, P::kWriting},
      {{P::kSaving, E::kRolledBack}, P::kTraining},
      {{P::kSaving, E::kFailed}, P::kSealing},
      {{P::kSaving, E::kCancelled}, P::kSealing},
      {{P::kSealing, E::kSealed}, P::kSealedReporting},
      {{P::kSealing, E::kFinished}, P::kWriting},  // if no shard was placed
      {{P::kSealedReporting, E::kReported}, P::kSealedSaving},
      {{P::kSealedReporting, E::kSealedExportDue}, P::kSealedExporting},
      {{P::kSealedReporting, E::kFinished}, P::kWriting},
      {{P::kSealedSaving, E::kSealedExportDue}, P::kSealedExporting},
      {{P::kSealedSaving, E::kFinished}, P::kWriting},
      {{P::kSealedExporting, E::kFinished}, P::kWriting},
      {{P::kWriting, E::kWritten}, P::kEnded},
  };
  std::size_t found = 0;
  for (const auto& [phase, way] : kWays) {
    for (const E event : kEvents) {
      JobPhases phases = In(phase);
      const auto rule = accepted.find({phase, event});
      INFO(JobPhaseName(phase) << " " << static_cast<int>(phase) << ", event "
                               << static_cast<int>(event));
      const JobState state = phases.state();
      CHECK(phases.After(event).has_value() == (rule != accepted.end()));
      CHECK(phases.Apply(event) == (rule != accepted.end()));
      CHECK(phases.phase() == (rule == accepted.end() ? phase : rule->second));
      if (rule == accepted.end()) CHECK(phases.state() == state);
      found += rule != accepted.end();
    }
  }
  CHECK(found == accepted.size());
}

struct Line {
  E event;
  P phase;
  JobState state;
};

// Applies the event of each line to a job, and checks the phase and the state that users then see.
void Play(const std::vector<Line>& lines) {
  JobPhases phases;
  for (const Line& line : lines) {
    INFO("event " << static_cast<int>(line.event) << ", before: " << JobPhaseName(phases.phase()));
    CHECK(phases.Apply(line.event));
    CHECK(phases.phase() == line.phase);
    CHECK(phases.state() == line.state);
  }
}

TEST_CASE("a job that trains, evaluates, is rolled back and succeeds goes through its phases") {
  Play({{E::kStarted, P::kDescribing, JobState::kStarting},
        {E::kPlanned, P::kPlacing, JobState::kStarting},
        {E::kPlaced, P::kTraining, JobState::kRunning},
        {E::kEvaluationDue, P::kEvaluating, JobState::kRunning},
        {E::kRolledBack, P::kTraining, JobState::kRunning},
        {E::kEvaluationDue, P::kEvaluating, JobState::kRunning},
        {E::kEvaluated, P::kTraining, JobState::kRunning},
        {E::kTrained, P::kExporting, JobState::kRunning},
        {E::kExported, P::kReporting, JobState::kRunning},
        {E::kReported, P::kSaving, JobState::kRunning},
        {E::kFinished, P::kWriting, JobState::kRunning},
        {E::kWritten, P::kEnded, JobState::kSucceeded}});
}

TEST_CASE("a job that fails is sealed, reported, saved and exported before its files are written") {
  Play({{E::kStarted, P::kDescribing, JobState::kStarting},
        {E::kPlanned, P::kPlacing, JobState::kStarting},
        {E::kPlaced, P::kTraining, JobState::kRunning},
        {E::kFailed, P::kSealing, JobState::kRunning},
        {E::kSealed, P::kSealedReporting, JobState::kRunning},
        {E::kReported, P::kSealedSaving, JobState::kRunning},
        {E::kSealedExportDue, P::kSealedExporting, JobState::kRunning},
        {E::kFinished, P::kWriting, JobState::kRunning},
        {E::kWritten, P::kEnded, JobState::kFailed}});
}

TEST_CASE("the state of a job that was cancelled in the queue stays QUEUED until its end") {
  Play({{E::kCancelled, P::kSealing, JobState::kQueued},
        {E::kFinished, P::kWriting, JobState::kQueued},
        {E::kWritten, P::kEnded, JobState::kCancelled}});
  JobPhases phases = After({E::kCancelled});
  CHECK(phases.never_started());
  CHECK(phases.started());
  CHECK(phases.active());
  CHECK_FALSE(After({E::kStarted, E::kCancelled}).never_started());
}

TEST_CASE("the questions about a job's phase have one answer for each phase") {
  struct Row {
    P phase;
    bool active, grants_stopped, closing, failing;
    v1::WorkKind reading;
  };
  const v1::WorkKind none = v1::WORK_KIND_UNSPECIFIED;
  const std::vector<Row> rows = {
      {P::kNone, false, true, false, false, none},
      {P::kDescribing, true, false, false, false, v1::DESCRIBE},
      {P::kPlacing, true, false, false, false, none},
      {P::kTraining, true, false, false, false, none},
      {P::kEvaluating, true, false, false, false, v1::EVALUATE},
      {P::kExporting, true, false, false, false, v1::EXPORT},
      {P::kReporting, true, false, false, false, none},
      {P::kSaving, true, false, false, false, none},
      {P::kSealing, true, true, true, true, none},
      {P::kSealedReporting, true, true, true, true, none},
      {P::kSealedSaving, true, true, true, true, none},
      {P::kSealedExporting, true, true, true, true, v1::EXPORT},
      {P::kWriting, true, true, true, false, none},
      {P::kEnded, false, true, true, false, none},
  };
  for (const Row& row : rows) {
    const JobPhases phases = In(row.phase);
    INFO(JobPhaseName(row.phase) << " " << static_cast<int>(row.phase));
    CHECK(phases.active() == row.active);
    CHECK(phases.started() == (row.phase != P::kNone));
    CHECK(phases.ended() == (row.phase == P::kEnded));
    CHECK(phases.grants_stopped() == row.grants_stopped);
    CHECK(phases.closing() == row.closing);
    CHECK(phases.failing() == row.failing);
    CHECK(phases.ReadingKind() == row.reading);
  }
  CHECK_FALSE(After({E::kStarted, E::kCancelled}).failing());
}

TEST_CASE("the first cause stays, but a user's error replaces a machine's error") {
  JobPhases queued;
  CHECK_FALSE(queued.TakeCause(Cause("early"), true));
  JobPhases phases = In(P::kTraining);
  CHECK(phases.TakeCause(Cause("disk"), false));
  CHECK(phases.Apply(E::kFailed));
  CHECK(phases.ending() == JobState::kFailed);
  CHECK_FALSE(phases.TakeCause(Cause("network"), false));
  CHECK(phases.TakeCause(Cause("nan"), true));
  CHECK_FALSE(phases.TakeCause(Cause("another nan"), true));
  CHECK(phases.cause()->message() == "nan");
  // The job takes no other cause while the files of the run are being written.
  JobPhases writing = In(P::kTraining);
  CHECK(writing.TakeCause(Cause("disk"), false));
  for (const E event : {E::kFailed, E::kFinished}) CHECK(writing.Apply(event));
  CHECK_FALSE(writing.TakeCause(Cause("nan"), true));
}

TEST_CASE("an error while a job is cancelled does not become its cause") {
  JobPhases phases = After({E::kStarted, E::kCancelled});
  CHECK_FALSE(phases.TakeCause(Cause("nan"), true));
  CHECK_FALSE(phases.cause());
}

TEST_CASE("calls of clients are refused with the reason for which the job ends") {
  CHECK(In(P::kNone).CallsRefusal("j").ok());
  CHECK(In(P::kSaving).CallsRefusal("j").ok());
  JobPhases failed = In(P::kTraining);
  failed.TakeCause(Cause("nan"), true);
  failed.Apply(E::kFailed);
  CHECK(failed.CallsRefusal("j").message() == "the job has failed: job=j cause=nan");
  CHECK(BlameOf(failed.CallsRefusal("j")) == Blame::kUser);
  JobPhases broken = In(P::kTraining);
  broken.TakeCause(Cause("disk"), false);
  broken.Apply(E::kFailed);
  CHECK(BlameOf(broken.CallsRefusal("j")) != Blame::kUser);
  CHECK_FALSE(IsRetryable(broken.CallsRefusal("j")));
  CHECK(After({E::kStarted, E::kCancelled}).CallsRefusal("j").code() ==
        absl::StatusCode::kCancelled);
  JobPhases succeeded = In(P::kSaving);
  for (const E event : {E::kFinished, E::kWritten}) succeeded.Apply(event);
  CHECK(succeeded.CallsRefusal("j").message() == "the job has ended: job=j state=SUCCEEDED");
}

TEST_CASE("the window opens for a job that has begun, and closes once") {
  JobPhases queued;
  queued.OpenWindow();
  CHECK_FALSE(queued.window_open());
  JobPhases phases = In(P::kTraining);
  CHECK_FALSE(phases.CloseWindow());
  phases.OpenWindow();
  CHECK(phases.window_open());
  CHECK(phases.CloseWindow());
  CHECK_FALSE(phases.window_open());
  CHECK_FALSE(phases.CloseWindow());
  // TakeRestored returns true only for a job that was restored, and only once.
  CHECK_FALSE(phases.TakeRestored());
  phases.SetRestored();
  CHECK(phases.TakeRestored());
  CHECK_FALSE(phases.TakeRestored());
}

TEST_CASE("a restored job begins again the phases that the journal does not distinguish") {
  for (const auto& [phase, way] : kWays) {
    v1::JobSnapshot snapshot;
    In(phase).Fill(&snapshot);
    JobPhases restored;
    REQUIRE(restored.Read(snapshot).ok());
    const bool works = phase >= P::kEvaluating && phase <= P::kSaving,
               sealed = phase >= P::kSealing && phase <= P::kSealedExporting;
    INFO(JobPhaseName(phase) << " " << static_cast<int>(phase));
    CHECK(restored.phase() == (works ? P::kTraining : sealed ? P::kSealing : phase));
    CHECK(restored.state() == In(phase).state());
    CHECK(restored.ending() == In(phase).ending());
  }
}

TEST_CASE("the journal keeps the cause of a job's end and a cancellation in the queue") {
  JobPhases phases = In(P::kTraining);
  phases.TakeCause(Cause("nan"), true);
  phases.Apply(E::kFailed);
  v1::JobSnapshot snapshot;
  phases.Fill(&snapshot);
  JobPhases restored;
  REQUIRE(restored.Read(snapshot).ok());
  CHECK(restored.cause()->message() == "nan");
  CHECK_FALSE(restored.TakeCause(Cause("another nan"), true));
  v1::JobSnapshot queued;
  After({E::kCancelled}).Fill(&queued);
  REQUIRE(restored.Read(queued).ok());
  CHECK(restored.state() == JobState::kQueued);
}

TEST_CASE("a journal with an unknown state or phase is refused") {
  v1::JobSnapshot snapshot;
  In(P::kTraining).Fill(&snapshot);
  JobPhases phases;
  for (const auto& [state, ending, phase, text] : std::vector<std::array<std::string, 4>>{
           {"RESTING", "FAILED", "training", "unknown state of a job: state=RESTING"},
           {"RUNNING", "LOST", "training", "unknown state of a job: state=LOST"},
           {"RUNNING", "FAILED", "resting", "unknown phase: phase=resting"},
           {"RUNNING", "FAILED", "", "unknown phase: phase="},
           {"RUNNING", "FAILED", "evaluating", "unknown phase: phase=evaluating"}}) {
    snapshot.set_state(state);
    snapshot.set_ending(ending);
    snapshot.set_phase(phase);
    CHECK(phases.Read(snapshot).message() == text);
  }
}

}  // namespace
}  // namespace evergrad::coordinator
