#include "coordinator/jobs/state_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace evergrad::coordinator {

absl::Status MemoryStateStore::CommitTerm(Term term) {
  if (term <= term_) return absl::InvalidArgumentError(absl::StrCat("term does not grow: have=", term_.value(), " got=", term.value()));
  term_ = term;
  for (const auto& [job, record] : tail_) ApplyRecord(record, &settled_[job]);
  tail_.clear();
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
  tail_.emplace_back(job, record);
  if (tail_.size() > options_.torn_max) {
    ApplyRecord(tail_.front().second, &settled_[tail_.front().first]);
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
  for (const auto& [of, record] : tail_) {
    if (of == job) ApplyRecord(record, &state);
  }
  return state;
}

absl::StatusOr<std::vector<JobUid>> MemoryStateStore::ListJobs() const { return order_; }

absl::Status MemoryStateStore::Remove(JobUid job) {
  std::erase(order_, job);
  settled_.erase(job);
  std::erase_if(tail_, [&](const auto& entry) { return entry.first == job; });
  return absl::OkStatus();
}

std::size_t MemoryStateStore::TearTail(std::size_t commits) {
  commits = std::min(commits, tail_.size());
  tail_.resize(tail_.size() - commits);
  std::erase_if(order_, [&](JobUid job) {
    return !settled_.contains(job) && std::none_of(tail_.begin(), tail_.end(), [&](const auto& entry) { return entry.first == job; });
  });
  return commits;
}

}  // namespace evergrad::coordinator
