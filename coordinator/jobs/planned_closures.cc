#include "coordinator/jobs/planned_closures.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/journal_writer.h"
#include "coordinator/jobs/task_totals.h"
#include "coordinator/jobs/training_rate.h"
#include "coordinator/jobs/worker_claims.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr std::chrono::seconds kWindowSaidAfter{5};
constexpr std::chrono::milliseconds kIdleLong{100};

}  // namespace

// ---------------------------------------------------------------- grants

class PlannedClosures::Policy final : public ClosureGrants {
 public:
  Policy(PlannedClosures* closures, MonoTime now)
      : ClosureGrants(closures->parts_.grants, closures->book_.get(), now),
        closures_(*closures),
        pin_(closures->parts_.grants->PinnedWorker()) {}
  bool MayTake(const JobWorker& worker) override {
    return actions_.Usable(worker, now_) && !pin_.Excludes(worker);
  }
  Given Grant(JobWorker& worker, bool new_ones) override {
    const std::uint64_t newest = book_.next_new();
    const auto granted = book_.NextGrant(worker.task, new_ones);
    if (!granted) {
      if (new_ones) closures_.CheckWindow(now_);
      return Given::kNothing;
    }
    Send(worker, *granted, newest);
    return Given::kGranted;
  }
  // As long as new closures can be granted when other closures end, a worker counts as idle only
  // after some time without work. A recall often arrives after the recalled closure has ended, and
  // then costs more than it gains.
  bool IsIdle(const JobWorker& worker) override {
    const bool all_granted =
        book_.next_new() >= std::min(closures_.plan_->closures(), closures_.Limit());
    return actions_.Usable(worker, now_) && (all_granted || now_ - worker.last_done >= kIdleLong);
  }
  bool CanRun(const JobWorker&, ClosureId) override { return true; }

 private:
  PlannedClosures& closures_;
  const WorkerPin::Choice pin_;
};

void PlannedClosures::Grant(Granter& granter, JobWorkers& workers) {
  Policy policy(this, host_->Now());
  const bool nothing_left = granter.Grant(workers, policy) == Granter::Outcome::kNothingLeft;
  if (nothing_left && !id_.spec.strategy.deterministic) Granter::Recall(workers, policy);
}

// Limits the new closures to a window after the oldest closure that has not ended, because the
// ended closures behind it wait in memory to be summed in order.
void PlannedClosures::UpdateNewLimit() {
  const std::uint64_t window = parts_.epochs->folded() + options_.closures_behind_max;
  const std::uint64_t limit = std::min(Limit(), window);
  book_->SetNewLimit(limit);
  if (window_full_ && book_->next_new() < limit) window_full_ = false;
}

// Called when no new closure could be granted. If the window is full, one closure may block all
// others, and an event reports this closure. In a fast cluster the window is often full for a
// moment, so the event is added only if the window stays full.
void PlannedClosures::CheckWindow(MonoTime now) {
  const std::uint64_t window = parts_.epochs->folded() + options_.closures_behind_max;
  if (book_->next_new() < window || window >= Limit()) return;
  if (!std::exchange(window_full_, true)) {
    window_full_at_ = now;
    window_said_ = false;
    ++window_refusals_;
  }
  if (window_said_ || now - window_full_at_ < kWindowSaidAfter) return;
  window_said_ = true;
  job_.Event("warning", absl::StrCat("closure ", parts_.epochs->folded(),
                                     " has not ended, but later closures have; no new closure is "
                                     "granted until it ends: window=",
                                     options_.closures_behind_max));
}

std::uint64_t PlannedClosures::UsefulWorkers(std::size_t workers) const {
  if (!book_) return 1;
  const std::uint64_t limit = std::min<std::uint64_t>(plan_->closures(), Limit());
  return book_->InFlight() + (limit > book_->next_new() ? limit - book_->next_new() : 0) +
         (book_->regrants_wait() ? workers + 1 : 0);
}

// Until the job is described, one worker is wanted, because a worker must describe the job.
std::uint64_t PlannedClosures::WantedWorkers() const {
  if (!plan_) return 1;
  const std::uint64_t ended = parts_.epochs->folded() + parts_.epochs->waiting();
  const std::uint64_t repairs = book_ ? book_->RepairsLeft() : 0;
  const std::uint64_t left = plan_->closures() - std::min(plan_->closures(), ended) + repairs;
  return std::min({left, parts_.epochs->ClosuresBetweenBarriers(),
                   std::uint64_t{options_.closures_behind_max}});
}

// ---------------------------------------------------------------- ends

absl::Status PlannedClosures::Check(const v1::Done& done) const {
  return parts_.claims->Check(done);
}

void PlannedClosures::OnCounted(const std::string& worker, ClosureId closure,
                                const v1::Done& done) {
  parts_.journal->NoteCounted(worker, closure, done);
  parts_.claims->Count(closure, done.has_touched() ? &done.touched() : nullptr);
  Count(worker, closure, done.metrics().examples(), done.metrics().loss_sum(),
        coordinator::StepsOf(done.metrics().step_records()), parts_.account_context());
}

void PlannedClosures::Count(const std::string& worker, ClosureId closure, std::uint64_t examples,
                            double loss_sum, std::vector<TrainedStep> steps,
                            const EpochAccount::Context& context) {
  const EpochAccount::Counted counted = parts_.epochs->Count(
      closure, examples, loss_sum, std::move(steps), book_->durable().dead, context);
  parts_.totals->CountClosure(worker, counted.steps, counted.examples);
  UpdateNewLimit();
  job_.Touch();
}

std::uint64_t PlannedClosures::StepsOf(ClosureId closure, const v1::Done&) const {
  return plan_->Closure(closure).steps;
}

ClosureSource::OnError PlannedClosures::Judge(bool user_error, bool repair, std::uint32_t) const {
  return user_error && repair && id_.spec.training.on_lost_updates == "report"
             ? OnError::kGiveUpRepair
             : OnError::kRetry;
}

std::string PlannedClosures::NameOf(ClosureId closure) const {
  if (!plan_ || closure.value() >= plan_->closures()) return "";
  const plan::ClosureRange range = plan_->Closure(closure);
  return absl::StrCat(" epoch=", range.epoch + 1, " examples=[", range.begin, ",", range.end, ")");
}

// ---------------------------------------------------------------- phases, views, the journal

std::string PlannedClosures::ReadyText(const v1::DescribeResult& described) const {
  return absl::StrCat("described: ", plan_message_.train_examples(), " examples, ",
                      plan_message_.eval_examples(), " for evaluation, ", described.parameters(),
                      " parameters in ", shards_.size(), " shards, ", plan_->closures(),
                      " closures of up to ", plan_->spec().steps_per_closure, " steps");
}

UpdateAccount::Finding PlannedClosures::CompareUpdates(
    const std::vector<v1::ShardState>& shards) const {
  return parts_.claims->Compare(
      shards, [this](const v1::ShardSpec& shard) { return kind_->IsTouchedByAll(shard); });
}

void PlannedClosures::FillStatus(v1::JobStatus* status) const {
  if (plan_) status->set_closures_total(plan_->closures());
  status->set_epochs(id_.spec.training.epochs);
}

absl::Status PlannedClosures::ReadNote(const v1::JobNote& note, bool ended) {
  if (ended) return absl::OkStatus();
  const EpochAccount::Context context{MonoTime(note.counters().mono_ns())};
  for (const v1::CountedClosure& counted : note.counted()) {
    const ClosureId closure(counted.closure());
    if (!plan_ || closure.value() >= plan_->closures())
      return absl::InvalidArgumentError("the journal has a closure beyond the plan");
    parts_.claims->Count(closure, counted.has_touched() ? &counted.touched() : nullptr);
    Count(counted.worker(), closure, counted.examples(), counted.loss_sum(),
          coordinator::StepsOf(counted.step_records()), context);
  }
  return absl::OkStatus();
}

}  // namespace evergrad::coordinator
