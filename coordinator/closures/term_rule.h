// Line 18: which term a life of the coordinator takes, and when it must take another. Pure; numbers from outside may be anything.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "common/base/ids.h"
#include "common/fault/mutant.h"

namespace evergrad::coordinator {

// What a task says in its Hello of the lives that it has seen.
struct ReportedLife {
  std::uint64_t highest_term = 0, life = 0;  // of the newest life that registered it; 0: none has
  std::uint64_t held_term = 0;               // highest term of an epoch that it holds: somebody gave it out
};

// The term of a life that has not sent a message yet: above the journal's and above all that tasks report.
inline Term FirstTerm(Term journal, std::uint64_t reported, fault::Mutant mutant = fault::Mutant::kNone) {
  return Term{1 + (mutant == fault::Mutant::kTermIgnoresTasks ? journal.value() : std::max(journal.value(), reported))};
}

// A task that reports a term >= ours of another life: ours is not above everything that was ever numbered. The term to begin anew
// with; nullopt: the task may be registered in this life.
inline std::optional<Term> BeginAnewWith(Term ours, std::uint64_t our_life, Term journal, const ReportedLife& task,
                                         fault::Mutant mutant = fault::Mutant::kNone) {
  if (mutant == fault::Mutant::kNoBeginAnew) return std::nullopt;
  const std::uint64_t reported = std::max(task.highest_term, task.held_term);
  if (reported <= ours.value() && (task.highest_term != ours.value() || task.life == our_life)) return std::nullopt;
  return Term{1 + std::max(journal.value(), reported)};
}

}  // namespace evergrad::coordinator
