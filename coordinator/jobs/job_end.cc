#include "coordinator/jobs/job_end.h"

#include "coordinator/jobs/job_life.h"

namespace evergrad::coordinator {

void JobEnd::BeginReport() {
  parts_.report.Begin(FinalReport::Kind::kComplete, [this] {
    if (!parts_.claims.Accept(parts_.source->CompareUpdates(parts_.report.answer().shards))) return;
    life_.Apply(parts_.rounds.on() ? PhaseEvent::kReported : PhaseEvent::kFinished);
  });
}

// ---------------------------------------------------------------- early ends (LEDGER line 20a)

bool JobEnd::BeginSeal() {
  parts_.reading.Clear();
  parts_.report.Void();
  parts_.training.Clear();
  parts_.placer.ForgetRetries();
  parts_.mover.End();
  if (!parts_.phases.window_open())
    parts_.notices.SendCloses();  // The ledgers that are saved then list all ended closures.
  if (!life_.PersistWhole()) return false;
  // Workers drop all state of the job at once. Servers first answer REFUSED, then report their
  // shards, and then drop them.
  parts_.notices.SendEnded(parts_.phases.ending(), true, false);
  for (auto& [task, worker] : parts_.roster.workers()) {
    worker.DropAll();
  }
  parts_.seal.Begin();
  CheckSealed();
  return true;
}

void JobEnd::CheckSealed() {
  if (!parts_.phases.In(JobPhase::kSealing) || parts_.phases.window_open())
    return;  // In the start-up window it is not known which servers are gone.
  if (!parts_.seal.IsComplete()) return;
  life_.Apply(parts_.book && parts_.shards.placed() ? PhaseEvent::kSealed : PhaseEvent::kFinished);
}

void JobEnd::BeginSealedReport() {
  parts_.report.Begin(FinalReport::Kind::kSealed, [this] {
    if (!parts_.rounds.on() || !parts_.book) return Finish();
    life_.Apply(PhaseEvent::kReported);
  });
}

// True from the seal on, because a worker that went to another job during the seal would have to
// come back.
bool JobEnd::WantsSealedExport() const {
  return parts_.phases.failing() && parts_.book && parts_.shards.placed() &&
         parts_.epochs.succeeded() > 0;
}

// ---------------------------------------------------------------- the end

// If the weights are not exported, the event about it precedes the last line of metrics.jsonl.
void JobEnd::Finish() {
  const bool exports =
      parts_.phases.After(PhaseEvent::kSealedExportDue) && WantsSealedExport() &&
      parts_.sealed_export.Begin(parts_.report.answer(), parts_.plan.server_bytes());
  life_.Apply(exports ? PhaseEvent::kSealedExportDue : PhaseEvent::kFinished);
}

bool JobEnd::BeginWriting() {
  parts_.exports.DropReceiver();
  parts_.times.ended_ms = parts_.host->WallMillis();
  parts_.times.ended_at = parts_.host->Now();
  parts_.closure_totals.Close(parts_.source->CountedEnds());
  parts_.epochs.WriteEpochLines(parts_.account_context());
  parts_.output.MakeResult();
  if (!life_.PersistWhole()) return false;
  parts_.journal.FlushLines();
  WriteFiles();
  return true;
}

void JobEnd::WriteFiles() { parts_.output.Write(parts_.phases.ending() == JobState::kSucceeded); }

void JobEnd::End() {
  parts_.notices.SendEnded(parts_.phases.ending(), true, true);
  parts_.book.reset();
  parts_.epochs.ForgetWaiting();
  parts_.shards.Clear();
  parts_.mover.Forget();
  parts_.roster.workers().clear();
  parts_.source->Clear();
  parts_.output.lines().Close();
  if (parts_.journal.on()) {
    life_.PersistWhole();
  } else if (absl::Status removed = parts_.host->store().Remove(parts_.id.uid); !removed.ok()) {
    parts_.host->StoreFailed(removed);
  }
  parts_.report.End();
}

}  // namespace evergrad::coordinator
