// What a job leaves in a persistent store, and how it comes back from there. A snapshot holds
// everything; between two snapshots notes ride beside the ledger's records. Reading a note runs the
// same code as the event did.

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/jobs/job.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

// The job file of a job of the journal. If this version refuses it, a living job cannot be resumed,
// and one that has ended is shown with what its snapshot says; `refusal` has the reason.
absl::StatusOr<config::JobSpec> SpecOf(const v1::JobSnapshot& snapshot, std::string* refusal) {
  config::ParsedJob parsed = config::ParseJob(snapshot.yaml(), {.submission = true});
  if (parsed.spec) return *std::move(parsed.spec);
  *refusal = absl::StrCat("its YAML is refused by this version: ",
                          parsed.mistakes.empty() ? "" : parsed.mistakes.front().ToString());
  JobPhases phases;
  if (!phases.Read(snapshot).ok() || !phases.ended()) return absl::InvalidArgumentError(*refusal);
  config::JobSpec spec;
  spec.name = snapshot.name();
  if (snapshot.has_functions()) spec.type = "functions";
  spec.training.epochs = static_cast<std::uint32_t>(snapshot.barrier_epochs());
  return spec;
}

}  // namespace

// ---------------------------------------------------------------- writing

void Job::FillCounters(v1::JobCounters* counters) const {
  counters->set_mono_ns(host_->Now().count());
  closure_totals_.FillCounters(counters);
  events_.FillCounters(counters);
  deaths_.FillCounters(counters);
  epochs_.FillCounters(counters);
  placer_.FillCounters(counters);
  output_.lines().FillCounters(counters);
  rounds_.FillCounters(counters);
}

bool Job::Persist(const Record& record) {
  if (!record.empty()) journal_.Add(record);
  return journal_.full() ? PersistWhole() : journal_.Commit();
}

bool Job::Keep() { return PersistWhole(); }

bool Job::PersistWhole() {
  if (!journals()) return Persist(Record());
  v1::JobSnapshot snapshot;
  FillSnapshot(&snapshot);
  const DurableState nothing;
  if (!journal_.CommitWhole(book_ ? book_->durable() : nothing, snapshot)) return false;
  if (started()) output_.lines().Commit(/*durable=*/false);
  return true;
}

void Job::FillSnapshot(v1::JobSnapshot* s) const {
  s->set_yaml(id_.yaml);
  s->set_runs_folder(id_.runs_folder);
  s->set_name(id_.spec.name);
  phases_.Fill(s);
  times_.Fill(s);
  // While it is looked for what to resume from, the plan has no book yet: after a restart it is
  // described again.
  plan_.Fill(plan_ && !phases_.In(JobPhase::kDescribing), s);
  FillCounters(s->mutable_counters());
  epochs_.Fill(s);
  rate_.Fill(s);
  totals_.Fill(s);
  roster_.Fill(s);
  events_.Fill(s);
  closure_totals_.Fill(s);
  output_.Fill(!started(), ended(), s);
  report_.Fill(s);
  export_.Fill(s);
  rounds_.Fill(s);
  source_->Fill(s);
  if (!ended()) s->set_grant_key(id_.grant_key);
  claims_.Fill(s);
}

// ---------------------------------------------------------------- reading

absl::StatusOr<std::unique_ptr<Job>> Job::Restore(JobHost* host, JobOptions options, JobUid uid,
                                                  const StoredJob& stored) {
  v1::JobSnapshot snapshot;
  const auto named = [&](const absl::Status& status) {
    return absl::Status(
        status.code(),
        absl::StrCat("cannot resume a job of the journal: job=", JobUidString(uid),
                     snapshot.name().empty() ? "" : absl::StrCat(" name=", snapshot.name()),
                     " reason=", status.message()));
  };
  if (stored.snapshot.empty() || !snapshot.ParseFromString(stored.snapshot))
    return named(absl::DataLossError("its snapshot is missing or unreadable"));
  std::string refusal;
  absl::StatusOr<config::JobSpec> spec = SpecOf(snapshot, &refusal);
  if (!spec.ok()) return named(spec.status());
  std::unique_ptr<Job> job(new Job(host, options,
                                   Identity{uid, *std::move(spec), snapshot.yaml(),
                                            snapshot.runs_folder(), snapshot.grant_key()},
                                   Restored{}));
  if (absl::Status status = job->ReadSnapshot(snapshot, stored.state, &refusal); !status.ok())
    return named(status);
  MonoTime last(snapshot.counters().mono_ns());
  for (const std::string& bytes : stored.notes) {
    v1::JobNote note;
    if (!note.ParseFromString(bytes))
      return named(absl::DataLossError("one of its notes is unreadable"));
    if (absl::Status status = job->ReadNote(note); !status.ok()) return named(status);
    last = MonoTime(note.counters().mono_ns());
  }
  // The monotonic clock goes on over a restart of the process; after one of the machine it began
  // again.
  const MonoTime now = host->Now();
  if (now < last) job->ShiftClock(now - last);
  if (!refusal.empty()) job->ShowRefusal(refusal);
  job->phases_.OpenWindow();  // until Resume and CloseWindow nothing moves
  if (job->active()) job->output_.lines().Resume();
  return job;
}

void Job::ReadCounters(const v1::JobCounters& counters) {
  closure_totals_.ReadCounters(counters);
  events_.ReadCounters(counters);
  deaths_.ReadCounters(counters);
  epochs_.ReadCounters(counters);
  placer_.ReadCounters(counters);
  output_.lines().ReadCounters(counters);
  rounds_.ReadCounters(counters);
}

absl::Status Job::RestoreBook(const DurableState& state) {
  const ClosureBook::Options options = BookOptions();
  if (state.map.size() > options.shards) {
    return absl::InvalidArgumentError(absl::StrCat(
        "more shards than the plan has: shards=", state.map.size(), " want=", options.shards));
  }
  book_ = std::make_unique<ClosureBook>(options, state);
  shards_.Restore(*book_);
  return absl::OkStatus();
}

absl::Status Job::ReadSnapshot(const v1::JobSnapshot& s, const DurableState& state,
                               std::string* refusal) {
  EG_RETURN_IF_ERROR(phases_.Read(s));
  SetStages();
  times_.Read(s);
  EG_RETURN_IF_ERROR(plan_.Read(s, ended(), refusal));
  if (plan_ && !ended()) EG_RETURN_IF_ERROR(RestoreBook(state));
  if (active() && (phases_.In(JobPhase::kPlacing) || phases_.In(JobPhase::kTraining)) && !book_)
    return absl::InvalidArgumentError(absl::StrCat("no plan in phase ", s.phase()));
  ReadCounters(s.counters());
  EG_RETURN_IF_ERROR(epochs_.Read(s, ended()));
  rate_.Read(s);
  totals_.Read(s);
  end_taken_ = ended();
  roster_.Read(s);
  EG_RETURN_IF_ERROR(events_.Read(s));
  closure_totals_.Read(s);
  output_.Read(s);
  EG_RETURN_IF_ERROR(report_.Read(s));
  export_.Read(s);
  rounds_.Read(s);
  claims_.Read(s);
  return source_->Read(s);
}

absl::Status Job::ReadNote(const v1::JobNote& note) {
  EG_RETURN_IF_ERROR(source_->ReadNote(note, ended()));
  EG_RETURN_IF_ERROR(events_.ReadNote(note));
  rounds_.ReadNote(note);
  rate_.ReadNote(note);
  output_.lines().ReadNote(note);
  ReadCounters(note.counters());
  return absl::OkStatus();
}

void Job::ShiftClock(std::chrono::nanoseconds by) {
  times_.Shift(by);
  epochs_.ShiftClock(by);
}

}  // namespace evergrad::coordinator
