// The parts of the simulated coordinator, in one object for the classes that use most of them.
#pragma once

#include "tests/simulation/checkpoint_rounds.h"
#include "tests/simulation/early_end.h"
#include "tests/simulation/end_checks.h"
#include "tests/simulation/evaluation_barrier.h"
#include "tests/simulation/grant_proofs.h"
#include "tests/simulation/journaled_book.h"
#include "tests/simulation/map_changes.h"
#include "tests/simulation/simulated_journal.h"

namespace evergrad::simulation {

// The first members are references to objects outside the coordinator. These objects must outlive
// this object.
struct CoordinatorParts {
  CoordinatorParts(WalkContext& w, Tasks& t, SnapshotFolder& f, InvariantChecker& c)
      : walk(w), tasks(t), folder(f), checker(c) {}

  WalkContext& walk;
  Tasks& tasks;
  SnapshotFolder& folder;
  InvariantChecker& checker;

  EndChecks end_checks{walk, checker};
  SimulatedJournal journal{walk};
  GrantProofs proofs;
  JournaledBook book{walk, tasks, journal, checker};
  EvaluationBarrier evaluation{walk, tasks, book};
  CheckpointRounds rounds{walk, tasks, folder, book, evaluation};
  MapChanges changes{walk, tasks, journal, book, evaluation, proofs};
  EarlyEnd early_end{walk, tasks, checker, book, rounds};
};

}  // namespace evergrad::simulation
