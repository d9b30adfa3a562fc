#include "coordinator/jobs/closure_totals.h"

#include <algorithm>

#include "common/client/protocol.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {

void ClosureTotals::OnAdopted(ClosureId closure, Attempt attempt) {
  if (attempt > known_ && attempt.term < host_->term().value() && adopted_.insert(attempt).second) {
    ++attempts_;
    high_ = std::max(high_, attempt);
  }
  granted_before_ = std::max(granted_before_, closure.value() + 1);
}

void ClosureTotals::Close(const std::optional<ClosureSource::Ends>& counted) {
  if (!book_) return;
  scheduled_ = counted ? counted->scheduled : GrantedBelow();
  if (counted) failed_ = counted->failed;
  reruns_ = Reruns();
}

std::uint64_t ClosureTotals::GrantedBelow() const {
  return std::max(granted_before_, book_ ? book_->next_new() : 0);
}

std::uint64_t ClosureTotals::Reruns() const {
  return book_ ? repairs_before_ + book_->repairs_granted() : reruns_;
}

ClosureCounts ClosureTotals::Counts(std::uint64_t succeeded) const {
  const std::uint64_t ended = succeeded + failed_;
  return {.failed = failed_,
          .cancelled = scheduled_ > ended ? scheduled_ - ended : 0,
          .attempts = attempts_,
          .rerun = Reruns(),
          .updates_redone = updates_redone_,
          .lost = closures_lost_,
          .updates_lost = updates_lost_};
}

void ClosureTotals::FillStatus(bool ended, std::uint64_t succeeded, v1::JobStatus* status) const {
  const ClosureCounts counts = Counts(succeeded);
  if (ended) {
    status->set_closures_failed(counts.failed);
    status->set_closures_cancelled(counts.cancelled);
  }
  status->set_attempts(counts.attempts);
  status->set_closures_rerun(counts.rerun);
  status->set_updates_redone(counts.updates_redone);
  status->set_closures_lost(counts.lost);
  status->set_updates_lost(counts.updates_lost);
}

void ClosureTotals::Fill(v1::JobSnapshot* snapshot) const {
  snapshot->set_closures_failed(failed_);
  snapshot->set_scheduled(scheduled_);
}

void ClosureTotals::FillCounters(v1::JobCounters* counters) const {
  counters->set_attempts(attempts_);
  *counters->mutable_attempt_high() = client::ToProto(high_);
  counters->set_granted_below(GrantedBelow());
  counters->set_repairs(Reruns());
  counters->set_updates_redone(updates_redone_);
  counters->set_closures_lost(closures_lost_);
  counters->set_updates_lost(updates_lost_);
}

void ClosureTotals::Read(const v1::JobSnapshot& snapshot) {
  failed_ = snapshot.closures_failed();
  scheduled_ = snapshot.scheduled();
}

void ClosureTotals::ReadCounters(const v1::JobCounters& counters) {
  attempts_ = counters.attempts();
  high_ = known_ = client::FromProto<Attempt>(counters.attempt_high());
  granted_before_ = counters.granted_below();
  repairs_before_ = reruns_ = counters.repairs();
  updates_redone_ = counters.updates_redone();
  closures_lost_ = counters.closures_lost();
  updates_lost_ = counters.updates_lost();
}

}  // namespace evergrad::coordinator
