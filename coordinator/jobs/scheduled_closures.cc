#include "coordinator/jobs/scheduled_closures.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/checkpoint_rounds.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {

ScheduledClosures::ScheduledClosures(const JobPart& part, const ClosureSourceParts& parts)
    : ClosureSource(part, parts),
      closures_(part, {.epochs = parts.epochs,
                       .totals = parts.totals,
                       .rounds = parts.rounds,
                       .revoke = parts.revoke}),
      calls_(part, &closures_, parts.rounds, parts.calls) {}

// ---------------------------------------------------------------- grants

class ScheduledClosures::Policy final : public ClosureGrants {
 public:
  Policy(ScheduledClosures* closures, MonoTime now)
      : ClosureGrants(closures->parts_.grants, closures->book_.get(), now), closures_(*closures) {}
  bool MayTake(const JobWorker& worker) override {
    return actions_.Usable(worker, now_) && !worker.functions.empty();
  }
  Given Grant(JobWorker& worker, bool new_ones) override {
    const std::uint64_t newest = book_.next_new();
    const auto granted = book_.NextGrant(worker.task, new_ones,
                                         [&](ClosureId c) { return closures_.CanRun(worker, c); });
    if (!granted) return Given::kNothingForIt;
    if (!HasArguments(granted->closure))
      actions_.GiveUpRepair(granted->closure, granted->attempt, "its arguments were discarded");
    else
      Send(worker, *granted, newest);
    return Given::kGranted;
  }
  bool IsIdle(const JobWorker& worker) override { return actions_.Usable(worker, now_); }
  bool CanRun(const JobWorker& worker, ClosureId closure) override {
    return HasArguments(closure) && closures_.CanRun(worker, closure);
  }

 private:
  bool HasArguments(ClosureId closure) const {
    return closures_.closures_.queue().Find(closure.value()) != nullptr;
  }
  ScheduledClosures& closures_;
};

void ScheduledClosures::Grant(Granter& granter, JobWorkers& workers) {
  Policy policy(this, host_->Now());
  granter.Grant(workers, policy);
  Granter::Recall(workers, policy);
}

void ScheduledClosures::FillGrant(ClosureId closure, v1::Grant* grant) const {
  const FunctionQueue::ScheduledClosure* entry = closures_.queue().Find(closure.value());
  if (entry == nullptr) return;
  grant->set_function(entry->function);
  grant->set_arguments(entry->arguments);
}

std::uint64_t ScheduledClosures::UsefulWorkers(std::size_t workers) const {
  return closures_.queue().open().size() + (book_ && book_->regrants_wait() ? workers + 1 : 0);
}

std::uint64_t ScheduledClosures::WantedWorkers() const {
  return closures_.queue().open().size() + (book_ ? book_->RepairsLeft() : 0);
}

std::optional<std::set<std::string>> ScheduledClosures::WantedFunctions(
    const JobWorkers& workers) const {
  std::set<std::string> wanted = closures_.WantedFunctions();
  if (book_ && book_->RepairsPending()) {  // Repairs may need any function.
    for (const auto& [task, worker] : workers)
      wanted.insert(worker.functions.begin(), worker.functions.end());
  }
  return wanted;
}

// If the arguments of a closure were discarded, any worker may get it, because its repair is given
// up.
bool ScheduledClosures::CanRun(const JobWorker& worker, ClosureId closure) const {
  const FunctionQueue::ScheduledClosure* entry = closures_.queue().Find(closure.value());
  return entry == nullptr || worker.functions.contains(entry->function);
}

// ---------------------------------------------------------------- ends

void ScheduledClosures::OnCounted(const std::string& worker, ClosureId closure,
                                  const v1::Done& done) {
  closures_.OnSucceeded(worker, closure, done);
}

std::uint64_t ScheduledClosures::StepsOf(ClosureId, const v1::Done& done) const {
  return done.metrics().steps();
}

// A failed closure does not end the job; the client's next call returns the error. If a repair
// fails, its updates are lost, and this loss is also reported (LEDGER line 20b).
ClosureSource::OnError ScheduledClosures::Judge(bool user_error, bool repair,
                                                std::uint32_t failures) const {
  if (!user_error && failures < options_.retries_max) return OnError::kRetry;
  return repair ? OnError::kGiveUpRepair : OnError::kFailClosure;
}

void ScheduledClosures::FailClosure(ClosureId closure, v1::ErrorDetail cause) {
  closures_.OnFailed(closure, std::move(cause));
}

std::uint64_t ScheduledClosures::OnLost(ClosureId closure) {
  closures_.OnLost(closure);
  return 0;
}

std::string ScheduledClosures::NameOf(ClosureId closure) const {
  const FunctionQueue::ScheduledClosure* entry = closures_.queue().Find(closure.value());
  return absl::StrCat(" function=", entry == nullptr ? "?" : entry->function);
}

// ---------------------------------------------------------------- phases

std::string ScheduledClosures::ReadyText(const v1::DescribeResult& described) const {
  return absl::StrCat("ready for closures: ", described.parameters(), " parameters in ",
                      shards_.size(), " shards");
}

std::optional<std::string> ScheduledClosures::IdleText() const {
  if (!closures_.queue().open().empty()) return std::nullopt;
  return Complete() ? "" : "closures to be scheduled";
}

std::string ScheduledClosures::WaitingForWorker(const JobWorkers& workers, MonoTime now) const {
  std::set<std::string> functions;
  for (const auto& [task, worker] : workers) {
    if (parts_.grants->Usable(worker, now))
      functions.insert(worker.functions.begin(), worker.functions.end());
  }
  return closures_.WaitingFor(functions);
}

// The number of updates of a user's closure is in no plan. As in `psctl job audit`, the result
// states only whether updates were lost.
UpdateAccount::Finding ScheduledClosures::CompareUpdates(const std::vector<v1::ShardState>&) const {
  const auto& lost = book_->durable().lost;
  const bool all_kept =
      closures_.queue().lost().empty() &&
      std::all_of(lost.begin(), lost.end(), [](const IntervalSet& of) { return of.empty(); });
  return {all_kept ? UpdateAccount::Verdict::kExact : UpdateAccount::Verdict::kWithin, ""};
}

std::optional<ClosureSource::Ends> ScheduledClosures::CountedEnds() const {
  return Ends{closures_.queue().scheduled(), closures_.queue().failed()};
}

// ---------------------------------------------------------------- views and the journal

void ScheduledClosures::FillStatus(v1::JobStatus* status) const {
  status->set_closures_total(closures_.queue().scheduled());
  status->set_closures_failed(closures_.queue().failed());
  status->set_closures_cancelled(closures_.queue().cancelled());
}

void ScheduledClosures::FillResult(Json* json) const {
  (*json)["functions"] = Json{{"updates_lost_of", closures_.queue().lost().ToString()},
                              {"results_given_up", closures_.queue().results_given_up()}};
}

void ScheduledClosures::Fill(v1::JobSnapshot* snapshot) const {
  closures_.Fill(snapshot->mutable_functions());
}

absl::Status ScheduledClosures::Read(const v1::JobSnapshot& snapshot) {
  return closures_.Read(snapshot.functions());
}

absl::Status ScheduledClosures::ReadNote(const v1::JobNote& note, bool) {
  if (note.has_functions()) closures_.ReadNote(note.functions());
  return absl::OkStatus();
}

}  // namespace evergrad::coordinator
