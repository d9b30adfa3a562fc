// A whole cluster in one thread, walked at random from a seed. It uses the classes of the daemons:
// ps_server::Shard (with its Ledger and optimizers), worker::AttemptBook, coordinator::ClosureBook
// and StateStore. The network between them loses, duplicates and reorders pushes, and drops
// sessions. Every task can die at any event. The README of this room lists the checks.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coordinator/closures/closure_book.h"
#include "coordinator/jobs/state_store.h"
#include "ps_server/optimizer/optimizer.h"
#include "ps_server/shard/shard.h"
#include "tests/simulation/random.h"
#include "worker/runner/attempt_book.h"

namespace evergrad::simulation {

inline constexpr std::uint32_t kShards = 3, kClosures = 14, kUpdates = 4, kServers = 3,
                               kWorkers = 4, kInHand = 2;
inline constexpr std::uint32_t kEvaluations = 4;  // number of closures of an evaluation
inline constexpr std::uint32_t kElementsMax = kClosures * kUpdates;

// The settings of a walk (one run of the simulation). FromSeed draws all of them from the seed, so
// that a walk can be replayed from its seed alone.
struct WalkOptions {
  std::uint64_t seed = 0;
  std::string optimizer = "counting";  // counting, sgd or adam
  double touch = 0.7;                  // fraction of (closure, update, shard) that has rows
  // If false, a lost shard begins from its initial values (LEDGER line 21, "none: the seed").
  bool snapshots = true;
  bool torn = false;  // a restarted coordinator may find that its journal lost the last records
  bool repairs_fail = false;  // a repair may end in a user's error (line 20b)
  bool evaluate = true;       // an evaluation after each `epoch` closures, as a barrier (line 29)
  std::uint32_t epoch = 7;
  bool foreign = false;  // tasks may meet a coordinator with another store, whose term is equal or
                         // higher (line 18)
  // The job is cancelled before its plan ends, and its shards are sealed (line 20a).
  bool ends_early = false;
  bool gated = false;    // commits become durable after a delay, and messages wait for them
  bool damage = false;   // files and manifests are damaged (K6)
  bool tables = false;   // the last shard is a slot of two embedding tables
  bool resumes = false;  // the job is lost with its cluster, or ends early, and a new job resumes
                         // from a manifest (line 28)
  bool loses_journal = false;  // a coordinator may start on an empty journal; then the true journal
                               // is put back (line 18a)
  std::uint32_t open_max = 4;
  int fault_events = 2500;
  int drain_events_max = 20000;
  bool trace = false;  // prints one line per event to stdout
  static WalkOptions FromSeed(std::uint64_t seed);
};

struct WalkResult {
  std::string violation;  // "" if the protocol held
  int events = 0;
  std::map<std::string, std::uint64_t> counts;  // by event, such as "rollback" or "worker killed"
  // Maxima for lines 31 and 32 of LEDGER.md, such as "closures open at a shard".
  std::map<std::string, std::uint64_t> largest;
};

// Makes a walk with the mutant that is active in this thread (tests/mutants/mutant.h).
WalkResult Walk(const WalkOptions& options);

}  // namespace evergrad::simulation
