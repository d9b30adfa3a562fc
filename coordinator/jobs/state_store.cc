#include "coordinator/jobs/state_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace evergrad::coordinator {

void MemoryStateStore::Apply(const StoredCommit& entry, StoredJob* job) {
  if (entry.checkpoint) {
    *job = entry.whole;
    return;
  }
  ApplyRecord(entry.record, &job->state);
  if (!entry.note.empty()) job->notes.push_back(entry.note);
}

absl::Status MemoryStateStore::CommitTerm(Term term) {
  if (term <= term_)
    return absl::InvalidArgumentError(absl::StrCat(
        "the new term of the coordinator is not above its present term: have=", term_.value(),
        " got=", term.value()));
  term_ = term;
  ++accepted_;
  for (const StoredCommit& entry : tail_) Apply(entry, &settled_[entry.job]);
  tail_.clear();
  return absl::OkStatus();
}

absl::Status MemoryStateStore::Add(StoredCommit entry) {
  if (std::find(order_.begin(), order_.end(), entry.job) == order_.end()) {
    if (order_.size() >= options_.jobs_max) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the state store holds too many jobs: max=", options_.jobs_max,
                       " job=", JobUidString(entry.job)));
    }
    order_.push_back(entry.job);
  }
  ++accepted_;
  if (options_.torn_max == 0) {
    Apply(entry, &settled_[entry.job]);
    return absl::OkStatus();
  }
  tail_.push_back(std::move(entry));
  if (tail_.size() > options_.torn_max) {
    Apply(tail_.front(), &settled_[tail_.front().job]);
    tail_.erase(tail_.begin());
  }
  return absl::OkStatus();
}

absl::Status MemoryStateStore::Commit(JobUid job, const Record& record, std::string note) {
  StoredCommit entry;
  entry.job = job;
  entry.record = record;
  entry.note = std::move(note);
  return Add(std::move(entry));
}

absl::Status MemoryStateStore::Checkpoint(JobUid job, const DurableState& state,
                                          std::string snapshot) {
  StoredCommit entry;
  entry.job = job;
  entry.checkpoint = true;
  entry.whole = {state, std::move(snapshot), {}};
  return Add(std::move(entry));
}

absl::StatusOr<StoredJob> MemoryStateStore::LoadJob(JobUid job) const {
  if (std::find(order_.begin(), order_.end(), job) == order_.end()) {
    return absl::NotFoundError(
        absl::StrCat("no such job in the state store: job=", JobUidString(job)));
  }
  StoredJob stored;
  if (const auto it = settled_.find(job); it != settled_.end()) stored = it->second;
  for (const StoredCommit& entry : tail_) {
    if (entry.job == job) Apply(entry, &stored);
  }
  return stored;
}

absl::Status MemoryStateStore::Remove(JobUid job) {
  if (std::find(order_.begin(), order_.end(), job) != order_.end()) removed_.Add(job);
  std::erase(order_, job);
  settled_.erase(job);
  std::erase_if(tail_, [&](const StoredCommit& entry) { return entry.job == job; });
  ++accepted_;
  return absl::OkStatus();
}

std::size_t MemoryStateStore::TearTail(std::size_t commits) {
  commits = std::min(commits, tail_.size());
  tail_.resize(tail_.size() - commits);
  std::erase_if(order_, [&](JobUid job) {
    return !settled_.contains(job) &&
           std::none_of(tail_.begin(), tail_.end(),
                        [&](const StoredCommit& entry) { return entry.job == job; });
  });
  return commits;
}

}  // namespace evergrad::coordinator
