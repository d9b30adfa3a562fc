// The rules of LEDGER lines 18 and 18a: the term of a life of the coordinator, the reports after
// which it must take another term, and the reports after which it must not begin. Pure functions.
// Peers may send any number.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "common/base/ids.h"

namespace evergrad::coordinator {

// The lives of the coordinator that a task has seen, as its Hello reports them.
struct ReportedLife {
  // The term and the id of the newest life that registered the task; 0 if no life did.
  std::uint64_t highest_term = 0, life = 0;
  // the highest term among the epochs of the shards that the task holds
  std::uint64_t held_term = 0;
};

// Returns the term of a life that has not sent a message yet: it is above the journal's term and
// above all terms that tasks report.
inline Term FirstTerm(Term journal, std::uint64_t reported) {
  return Term{1 + std::max(journal.value(), reported)};
}

// Returns the term with which this life must begin again, or nullopt if the task may be registered
// in this life. If a task reports that another life used a term >= ours, our term is not above
// every number that was ever given out, and this life must begin again.
inline std::optional<Term> BeginAnewWith(Term ours, std::uint64_t our_life, Term journal,
                                         const ReportedLife& task) {
  const std::uint64_t reported = std::max(task.highest_term, task.held_term);
  if (reported <= ours.value() && (task.highest_term != ours.value() || task.life == our_life))
    return std::nullopt;
  return Term{1 + std::max(journal.value(), reported)};
}

// The facts that a coordinator has about a job when a server holds a shard of the job (line 18a).
struct HeldJob {
  // True if the newest coordinator that registered the holder of the shard keeps a journal. The
  // job's submission was then durable before any message about it.
  bool journaled = false;
  bool known = false;    // true if this coordinator's journal has the job, ended or not
  bool removed = false;  // true if this coordinator's journal had the job and removed it on purpose
};

// Returns whether the job must be in another journal, which the operator can put back. The journal
// of this coordinator has then lost the job, belongs to another cluster, or is missing. A journal
// that has lost only its tail knows the job. Jobs of a coordinator without a journal ended with
// that coordinator.
inline bool JournalHasLost(const HeldJob& job) {
  return job.journaled && !job.known && !job.removed;
}

}  // namespace evergrad::coordinator
