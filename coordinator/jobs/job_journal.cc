#include "coordinator/jobs/job_journal.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_spec.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {

JobJournal::JobJournal(const JobPart& part, const Parts& parts)
    : JobPart(part),
      parts_(parts),
      writer_(host_, &options_, id_.uid, &parts.output->lines(),
              [this](v1::JobCounters* counters) { FillCounters(counters); }) {}

// ---------------------------------------------------------------- writing

bool JobJournal::Persist(const Record& record) {
  if (!record.empty()) writer_.Add(record);
  return writer_.full() ? PersistWhole() : writer_.Commit();
}

bool JobJournal::PersistWhole() {
  if (!on()) return Persist(Record());
  v1::JobSnapshot snapshot;
  FillSnapshot(&snapshot);
  const DurableState nothing;
  if (!writer_.CommitWhole(book_ ? book_->durable() : nothing, snapshot)) return false;
  if (parts_.phases->started()) parts_.output->lines().Commit(/*durable=*/false);
  return true;
}

// Lines are written to the file only when the journal has them. A restart then knows which lines
// the file must hold.
void JobJournal::FlushLines() {
  if (!parts_.phases->started()) return;
  if (!on()) {
    parts_.output->lines().Commit(/*durable=*/true);
  } else if (writer_.whole_wanted()) {
    PersistWhole();
  } else {
    Persist(Record());
  }
  parts_.output->lines().Write();
}

void JobJournal::FillSnapshot(v1::JobSnapshot* s) const {
  const JobPhases& phases = *parts_.phases;
  s->set_yaml(id_.yaml);
  s->set_runs_folder(id_.runs_folder);
  s->set_name(id_.spec.name);
  s->set_owner(id_.owner);
  s->set_request_id(id_.request_id);
  if (!phases.ended()) s->set_grant_key(id_.grant_key);
  phases.Fill(s);
  parts_.times->Fill(s);
  // During the search for a checkpoint to resume from, the plan has no book yet. A plan without a
  // book is not stored, so the job is described again after a restart.
  parts_.plan->Fill(*parts_.plan && !phases.In(JobPhase::kDescribing), s);
  FillCounters(s->mutable_counters());
  parts_.epochs->Fill(s);
  parts_.rate->Fill(s);
  parts_.tasks->Fill(s);
  parts_.roster->Fill(s);
  parts_.events->Fill(s);
  parts_.closures->Fill(s);
  parts_.output->Fill(!phases.started(), phases.ended(), s);
  parts_.report->Fill(s);
  parts_.exported->Fill(s);
  parts_.rounds->Fill(s);
  (*parts_.source)->Fill(s);
  parts_.claims->Fill(s);
}

void JobJournal::FillCounters(v1::JobCounters* counters) const {
  counters->set_mono_ns(host_->Now().count());
  parts_.closures->FillCounters(counters);
  parts_.events->FillCounters(counters);
  parts_.deaths->FillCounters(counters);
  parts_.epochs->FillCounters(counters);
  parts_.placer->FillCounters(counters);
  parts_.output->lines().FillCounters(counters);
  parts_.rounds->FillCounters(counters);
}

// ---------------------------------------------------------------- reading

absl::StatusOr<JobIdentity> JobJournal::IdentityOf(JobUid uid, const v1::JobSnapshot& snapshot,
                                                   std::string* refusal) {
  JobIdentity id{uid,
                 {},
                 snapshot.yaml(),
                 snapshot.runs_folder(),
                 snapshot.grant_key(),
                 snapshot.owner(),
                 snapshot.request_id()};
  config::ParsedJob parsed = config::ParseJob(snapshot.yaml(), {.submission = true});
  if (parsed.spec) {
    id.spec = *std::move(parsed.spec);
    return id;
  }
  *refusal = absl::StrCat("this version refuses the job's YAML: ",
                          parsed.mistakes.empty() ? "" : parsed.mistakes.front().ToString());
  JobPhases phases;
  if (!phases.Read(snapshot).ok() || !phases.ended()) return absl::InvalidArgumentError(*refusal);
  id.spec.name = snapshot.name();
  if (snapshot.has_functions()) id.spec.type = "functions";
  id.spec.training.epochs = static_cast<std::uint32_t>(snapshot.barrier_epochs());
  return id;
}

absl::Status JobJournal::Read(const v1::JobSnapshot& snapshot, const StoredJob& stored,
                              const std::function<absl::Status()>& make_book,
                              std::string* refusal) {
  EG_RETURN_IF_ERROR(ReadSnapshot(snapshot, make_book, refusal));
  MonoTime last(snapshot.counters().mono_ns());
  for (const std::string& bytes : stored.notes) {
    v1::JobNote note;
    if (!note.ParseFromString(bytes)) return absl::DataLossError("a note of the job is unreadable");
    EG_RETURN_IF_ERROR(ReadNote(note));
    last = MonoTime(note.counters().mono_ns());
  }
  // The monotonic clock continues when the process restarts, and begins again when the machine
  // restarts.
  if (const MonoTime now = host_->Now(); now < last) {
    parts_.times->Shift(now - last);
    parts_.epochs->ShiftClock(now - last);
  }
  return absl::OkStatus();
}

absl::Status JobJournal::ReadSnapshot(const v1::JobSnapshot& s,
                                      const std::function<absl::Status()>& make_book,
                                      std::string* refusal) {
  JobPhases& phases = *parts_.phases;
  EG_RETURN_IF_ERROR(phases.Read(s));
  parts_.times->Read(s);
  EG_RETURN_IF_ERROR(parts_.plan->Read(s, phases.ended(), refusal));
  if (*parts_.plan && !phases.ended()) EG_RETURN_IF_ERROR(make_book());
  if (phases.active() && !book_ &&
      (phases.In(JobPhase::kPlacing) || phases.In(JobPhase::kTraining)))
    return absl::InvalidArgumentError(absl::StrCat("the job has no plan in phase ", s.phase()));
  ReadCounters(s.counters());
  EG_RETURN_IF_ERROR(parts_.epochs->Read(s, phases.ended()));
  parts_.rate->Read(s);
  parts_.tasks->Read(s);
  parts_.roster->Read(s);
  EG_RETURN_IF_ERROR(parts_.events->Read(s));
  parts_.closures->Read(s);
  parts_.output->Read(s);
  EG_RETURN_IF_ERROR(parts_.report->Read(s));
  parts_.exported->Read(s);
  parts_.rounds->Read(s);
  parts_.claims->Read(s);
  return (*parts_.source)->Read(s);
}

absl::Status JobJournal::ReadNote(const v1::JobNote& note) {
  EG_RETURN_IF_ERROR((*parts_.source)->ReadNote(note, parts_.phases->ended()));
  EG_RETURN_IF_ERROR(parts_.events->ReadNote(note));
  parts_.rounds->ReadNote(note);
  parts_.rate->ReadNote(note);
  parts_.output->lines().ReadNote(note);
  ReadCounters(note.counters());
  return absl::OkStatus();
}

void JobJournal::ReadCounters(const v1::JobCounters& counters) {
  parts_.closures->ReadCounters(counters);
  parts_.events->ReadCounters(counters);
  parts_.deaths->ReadCounters(counters);
  parts_.epochs->ReadCounters(counters);
  parts_.placer->ReadCounters(counters);
  parts_.output->lines().ReadCounters(counters);
  parts_.rounds->ReadCounters(counters);
}

}  // namespace evergrad::coordinator
