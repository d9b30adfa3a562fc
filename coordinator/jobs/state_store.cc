#include "coordinator/jobs/state_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace evergrad::coordinator {

void MemoryStateStore::Settle(const Entry& entry) {
  if (entry.is_term) {
    settled_term_ = entry.term;
  } else {
    ApplyRecord(entry.record, &settled_[entry.job]);
  }
}

absl::Status MemoryStateStore::CommitTerm(Term term) {
  if (term <= term_) return absl::InvalidArgumentError(absl::StrCat("term does not grow: have=", term_.value(), " got=", term.value()));
  term_ = term;
  Entry entry;
  entry.is_term = true;
  entry.term = term;
  tail_.push_back(std::move(entry));
  if (tail_.size() > options_.torn_max) {
    Settle(tail_.front());
    tail_.erase(tail_.begin());
  }
  return absl::OkStatus();
}

absl::Status MemoryStateStore::Commit(JobUid job, const Record& record) {
  if (std::find(order_.begin(), order_.end(), job) == order_.end()) {
    if (order_.size() >= options_.jobs_max) {
      return absl::ResourceExhaustedError(absl::StrCat("state store holds too many jobs: max=", options_.jobs_max, " job=", JobUidString(job)));
    }
    order_.push_back(job);
  }
  if (options_.torn_max == 0) {
    ApplyRecord(record, &settled_[job]);
    return absl::OkStatus();
  }
  Entry entry;
  entry.job = job;
  entry.record = record;
  tail_.push_back(std::move(entry));
  if (tail_.size() > options_.torn_max) {
    Settle(tail_.front());
    tail_.erase(tail_.begin());
  }
  return absl::OkStatus();
}

absl::StatusOr<DurableState> MemoryStateStore::Load(JobUid job) const {
  if (std::find(order_.begin(), order_.end(), job) == order_.end()) {
    return absl::NotFoundError(absl::StrCat("no such job in the state store: job=", JobUidString(job)));
  }
  DurableState state;
  if (const auto it = settled_.find(job); it != settled_.end()) state = it->second;
  for (const Entry& entry : tail_) {
    if (!entry.is_term && entry.job == job) ApplyRecord(entry.record, &state);
  }
  return state;
}

absl::StatusOr<std::vector<JobUid>> MemoryStateStore::ListJobs() const { return order_; }

absl::Status MemoryStateStore::Remove(JobUid job) {
  std::erase(order_, job);
  settled_.erase(job);
  std::erase_if(tail_, [&](const Entry& entry) { return !entry.is_term && entry.job == job; });
  return absl::OkStatus();
}

std::size_t MemoryStateStore::TearTail(std::size_t commits) {
  commits = std::min(commits, tail_.size());
  tail_.resize(tail_.size() - commits);
  term_ = settled_term_;
  for (const Entry& entry : tail_) {
    if (entry.is_term) term_ = entry.term;
  }
  std::erase_if(order_, [&](JobUid job) {
    return !settled_.contains(job) &&
           std::none_of(tail_.begin(), tail_.end(), [&](const Entry& entry) { return !entry.is_term && entry.job == job; });
  });
  return commits;
}

}  // namespace evergrad::coordinator
