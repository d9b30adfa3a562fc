// The facts of a job and its samples of the speed, of which the files of a run are made
// (run_output.h).
#include "coordinator/jobs/job.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {

RunFacts Job::Facts() const {
  RunFacts facts{.id = id_,
                 .times = times_,
                 .started = !phases_.never_started(),
                 .state = std::string(JobStateName(phases_.ending())),
                 .cause = phases_.cause() ? &*phases_.cause() : nullptr,
                 .epochs = epochs_,
                 .rate = rate_,
                 .closures = closure_totals_.Counts(epochs_.succeeded()),
                 .tasks = totals_,
                 .events = events_,
                 .plan = plan_message(),
                 .model_summary = plan_.described().model_summary(),
                 .shards = report_.answer(),
                 .shards_rolled_back = placer_.rolled_back(),
                 .updates_exact = claims_.updates_exact(),
                 .checkpoint = rounds_.status(),
                 .files = export_.files()};
  source_->FillResult(&facts.source);
  return facts;
}

EpochAccount::Context Job::AccountContext() {
  return {host_->Now(), host_->WallMillis(), &output_.lines()};
}

// A stretch of repair, or of waiting, is no slow training: it would make the time that is left look
// endless.
void Job::SampleRate() {
  if (epochs_.examples_done() == rate_.examples() && waits_.TrainingPaused()) return BeginRate();
  if (!rate_.Sample(times_.started_at, host_->Now(), epochs_.examples_done())) return;
  if (v1::JobNote* const note = journal_.writer().Note()) rate_.FillNote(note);
  output_.AddRate(rate_, epochs_);
}

}  // namespace evergrad::coordinator
