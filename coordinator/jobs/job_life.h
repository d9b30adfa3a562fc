// The life of a job: decides when each event of its phases happens (job_phases.h), and carries out
// the effects of the phases. JobEnd carries out the effects of the closing phases.
//
//   Start ─▶ Describe ─▶ BeginPlan ─▶ Advance: placed, trained, an evaluation is due ─▶ …
//   Cancel, Fail ─▶ JobEnd
//   Restore ─▶ Resume ─▶ CloseWindow ─▶ the phase continues
//
// The parts of the job call JobLife through JobActions. A phase that a restarted coordinator would
// continue is committed before anything follows from it. Not thread-safe: only the control executor
// uses it. Clock and I/O come from the host.
#pragma once

#include <string>

#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/jobs/failpoint_hold.h"
#include "coordinator/jobs/granter.h"
#include "coordinator/jobs/job_end.h"
#include "coordinator/jobs/job_parts.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class JobLife final : public JobActions {
 public:
  // `parts` may be constructed after this object, but before the first call of another method.
  explicit JobLife(JobParts* parts) : parts_(*parts), end_(parts, this) {}
  JobLife(const JobLife&) = delete;
  JobLife& operator=(const JobLife&) = delete;

  JobEnd& end() { return end_; }
  const JobEnd& end() const { return end_; }

  // --- calls of the control plane, as in Job
  void Start();
  void Cancel();
  // Reads the job's state from the store. If an ended job cannot be restored completely, `refusal`
  // is the reason, otherwise "".
  absl::Status Restore(const v1::JobSnapshot& snapshot, const StoredJob& stored,
                       std::string refusal);
  void Resume(Term term);
  void BeginAnew(Term term);
  void CloseWindow();
  void EndTurn();

  // Begins the phase that follows `event`. Returns false if the event is refused or the store
  // failed. A failure of the store ends the job's life in this process.
  bool Apply(PhaseEvent event);

  // --- ends of the work of a phase
  void OnDescribed(const v1::DescribeResult& described);
  void BeginPlan();  // Called once the job is described and the search for a checkpoint has ended.
  void OnEvaluated();
  void OnExportEnded();

  // --- times
  void TickCheckpoints(MonoTime now);
  void SampleRate();  // Takes a sample of the training rate.

  // --- JobActions
  bool Persist(const Record& record) override { return parts_.journal.Persist(record); }
  bool PersistWhole() override { return parts_.journal.PersistWhole(); }
  v1::JobNote* NoteIfJournaled() override { return parts_.journal.writer().Note(); }
  void Event(absl::string_view kind, const std::string& text) override {
    parts_.news.AddEvent(kind, text);
  }
  void Touch() override { parts_.news.Touch(); }
  void Pump() override;  // Also ends a phase that is over.
  void SendMap() override { parts_.notices.SendMap(); }
  void SendCloses() override {
    if (!grants_stopped() && !parts_.phases.window_open()) parts_.notices.SendCloses();
  }
  void AfterRollback(absl::string_view why) override;
  void SayNotReproducible(const std::string& why) override { parts_.news.SayNotReproducible(why); }
  void Fail(v1::ErrorDetail cause, bool user) override;
  bool grants_stopped() const override { return parts_.phases.grants_stopped(); }

 private:
  void BeginRun();
  void SetStages();            // Sets the stages of the parts that have stages.
  bool Enter(JobPhase phase);  // Begins the phase. Returns false if the store failed.
  void ResumePhase();
  void Describe();
  ClosureBook::Options BookOptions() const;
  absl::Status RestoreBook(const DurableState& state);
  void Advance();  // Begins the next phase if the present phase is over.
  void BeginRate() { parts_.rate.Begin(parts_.host->Now(), parts_.epochs.examples_done()); }

  JobParts& parts_;
  JobEnd end_;
  Granter granter_;
  FailpointHold evaluation_hold_{"coordinator.evaluate"};
  bool in_pump_ = false;
};

}  // namespace evergrad::coordinator
