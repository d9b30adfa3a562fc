// Lines 18 and 18a: which term a life of the coordinator takes, when it must take another, and when
// it must not begin. Pure; numbers from outside may be anything.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "common/base/ids.h"

namespace evergrad::coordinator {

// What a task says in its Hello of the lives that it has seen.
struct ReportedLife {
  std::uint64_t highest_term = 0, life = 0;  // of the newest life that registered it; 0: none has
  std::uint64_t held_term = 0;  // highest term of an epoch that it holds: somebody gave it out
};

// The term of a life that has not sent a message yet: above the journal's and above all that tasks
// report.
inline Term FirstTerm(Term journal, std::uint64_t reported) {
  return Term{1 + std::max(journal.value(), reported)};
}

// A task that reports a term >= ours of another life: ours is not above everything that was ever
// numbered. The term to begin anew with; nullopt: the task may be registered in this life.
inline std::optional<Term> BeginAnewWith(Term ours, std::uint64_t our_life, Term journal,
                                         const ReportedLife& task) {
  const std::uint64_t reported = std::max(task.highest_term, task.held_term);
  if (reported <= ours.value() && (task.highest_term != ours.value() || task.life == our_life))
    return std::nullopt;
  return Term{1 + std::max(journal.value(), reported)};
}

// Line 18a: a job whose shard a server holds, as a coordinator sees it.
struct HeldJob {
  bool journaled = false;  // the newest coordinator that registered its holder keeps a journal: the
                           // job's submission was durable before any message
  bool known = false;      // to this coordinator's journal, ended or not
  bool removed = false;    // this coordinator's journal had it and was told to remove it
};

// Whether a coordinator's own journal has lost the job, is another cluster's, or is not there at
// all: the job is in another one, which can be put back. What has lost only its tail knows the job;
// what a coordinator without a journal had begun ended with that coordinator.
inline bool JournalHasLost(const HeldJob& job) {
  return job.journaled && !job.known && !job.removed;
}

}  // namespace evergrad::coordinator
