#include "tests/simulation/cluster.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "tests/simulation/attacker.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/network.h"

namespace evergrad::simulation {
namespace {

// Draws one event after another, and calls the part of the cluster that the event concerns.
class Cluster {
 public:
  explicit Cluster(const WalkOptions& options) : walk_(options) { coordinator_.Start(); }
  WalkResult Run();

 private:
  void Step();
  void ActAtDataPlane();
  void DoFileWork();
  void ActAtSession();
  bool Finished();
  bool OwnersAreComplete();
  void CheckEnd();
  void TraceState();

  WalkContext walk_;
  SnapshotFolder folder_{walk_};
  InvariantChecker checker_{walk_};
  Tasks tasks_{walk_, folder_, checker_};
  Network network_{walk_, tasks_};
  CoordinatorParts parts_{walk_, tasks_, folder_, checker_};
  SimulatedCoordinator coordinator_{parts_};
  JobResume resume_{parts_, coordinator_};
  Attacker attacker_{parts_};
  Faults faults_{parts_, coordinator_, resume_};
};

void Cluster::Step() {
  const bool faults = walk_.faults();
  Random& random = walk_.random;
  if (faults) attacker_.Act();
  const double x = random.Unit();
  if (coordinator_.running() && !parts_.journal.all_durable() && (!faults || random.Chance(0.1)))
    parts_.book.Settle();
  if (x < 0.40) {
    ActAtDataPlane();
  } else if (x < 0.50) {
    DoFileWork();
  } else if (x < 0.86) {
    ActAtSession();
  } else if (x < 0.95) {
    if (coordinator_.Act()) resume_.AfterEnd();
  } else if (faults && random.Chance(0.35)) {
    faults_.MakeOne();
  }
  coordinator_.DieToForgetMove();
  if (!coordinator_.running() && (!faults || random.Chance(0.05))) coordinator_.Start();
}

void Cluster::ActAtDataPlane() {
  if (!network_.empty() && walk_.random.Chance(0.6)) {
    network_.DeliverOne();
  } else {
    tasks_.AnyWorker().Act(network_);
  }
}

// Does one step of a server's I/O thread, or of the coordinator's file thread.
void Cluster::DoFileWork() {
  const std::size_t i = walk_.random.Below(tasks_.servers().size() + 1);
  if (i == tasks_.servers().size()) {
    coordinator_.DoFileWork();
  } else {
    tasks_.servers()[i]->DoFileWork();
  }
}

void Cluster::ActAtSession() {
  if (!coordinator_.running()) return;
  const double connects = walk_.faults() ? 0.1 : 1;
  for (const auto& s : tasks_.servers()) {
    if (!s->connected && !parts_.journal.KeepsDisconnected(s->process) &&
        walk_.random.Chance(connects))
      tasks_.TryConnect(*s);
  }
  for (const auto& w : tasks_.workers()) {
    if (!w->connected && walk_.random.Chance(connects)) tasks_.TryConnect(*w);
  }
  tasks_.WithAny([&](auto& t) {
    if (!t.connected) return;
    if (!t.out.empty() && (t.in.empty() || walk_.random.Chance(0.5))) {
      coordinator_.Handle(t, t.out.Pop());
    } else if (!t.in.empty()) {
      t.Handle(t.in.Pop());
    }
  });
}

bool Cluster::Finished() {
  const JournaledBook& book = parts_.book;
  if (parts_.early_end.begun()) return parts_.early_end.told() && book.open() && network_.empty();
  if (!book.open() || !book->Quiet() || !parts_.evaluation.AllCompleted()) return false;
  bool here = true;
  tasks_.Each([&](Task& t) { here &= t.registered || !t.connected; });
  if (!here || !OwnersAreComplete()) return false;
  // Checks that no server with a session holds a shard that another server owns [25].
  for (const auto& s : tasks_.servers()) {
    if (s->registered && !s->HoldsOnlyItsOwn()) return false;
  }
  return true;
}

// Returns whether each owner holds its shard, and has closed all closures that have ended [24].
bool Cluster::OwnersAreComplete() {
  const DurableState& state = parts_.book.state();
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const coordinator::ShardOwner& owner = state.map[p];
    const SimulatedServer* s = tasks_.ConnectedServer(owner.server, true);
    const HeldState* held = s == nullptr ? nullptr : s->At(p, parts_.book.job(), owner.epoch);
    if (held == nullptr) return false;
    const ps_server::Ledger& ledger = held->shard->ledger();
    if (!ledger.done().ContainsAll(state.succeeded.Minus(state.lost[p])) ||
        !ledger.refused().ContainsAll(state.dead))
      return false;
  }
  return true;
}

void Cluster::CheckEnd() {
  if (parts_.early_end.begun()) {
    parts_.early_end.CheckLastCuts(folder_, parts_.end_checks);
    return;
  }
  const DurableState& state = parts_.book.state();
  std::vector<const HeldState*> held;
  for (std::uint32_t p = 0; p < kShards; ++p)
    held.push_back(tasks_.ConnectedServer(state.map[p].server, true)->At(p));
  parts_.end_checks.CheckEnd(state, held);
  if (walk_.options.torn) return;
  const auto stored = parts_.journal.store().Load(parts_.book.job());
  if (!stored.ok() || !(*stored == state)) walk_.Fail("the store does not hold the state");
}

void Cluster::TraceState() {
  const DurableState& state = checker_.committed();
  for (std::uint32_t p = 0; p < state.map.size(); ++p) {
    walk_.Trace("map p=", p, " server of identity ", state.map[p].server,
                " epoch=", state.map[p].epoch.ToString(), " start=", state.map[p].start.ToString());
  }
  for (const auto& s : tasks_.servers()) s->TraceState();
  for (const auto& w : tasks_.workers()) w->TraceState();
  walk_.Trace("VIOLATION ", walk_.result.violation);
}

WalkResult Cluster::Run() {
  const WalkOptions& options = walk_.options;
  WalkResult& result = walk_.result;
  for (int i = 0; i < options.fault_events && result.violation.empty(); ++i, ++result.events)
    Step();
  int drained = 0;
  for (; drained < options.drain_events_max && result.violation.empty();
       ++drained, ++result.events) {
    Step();
    if (drained % 16 == 0 && Finished()) break;
  }
  if (result.violation.empty() && drained < options.drain_events_max) {
    CheckEnd();
  } else if (result.violation.empty()) {
    const DurableState& state = checker_.committed();
    std::string todo;
    for (const IntervalSet& set : state.todo) absl::StrAppend(&todo, "[", set.ToString(), "]");
    walk_.Fail(absl::StrCat("I8 not quiet: succeeded=", state.succeeded.ToString(),
                            " dead=", state.dead.ToString(), " todo=", todo));
  }
  if (!result.violation.empty()) TraceState();
  return std::move(result);
}

}  // namespace

WalkOptions WalkOptions::FromSeed(std::uint64_t seed) {
  WalkOptions options;
  options.seed = seed;
  const char* const optimizers[] = {"counting", "sgd", "adam"};
  options.optimizer = optimizers[seed % 3];
  const double touches[] = {0.7, 0.7, 1.0, 0.4, 0.7};
  options.touch = touches[seed % 5];
  options.snapshots = seed % 4 != 0;
  options.torn = seed % 4 == 3;
  options.repairs_fail = seed / 4 % 7 < 2;
  options.evaluate = seed / 4 % 3 != 0;
  options.epoch = seed / 12 % 2 == 0 ? 2 : 7;
  options.foreign = seed / 4 % 4 == 1;
  options.ends_early = seed % 11 == 5 || seed % 12 == 1;
  options.gated = seed / 5 % 2 == 0;
  options.damage = seed / 7 % 2 == 0;
  options.resumes = seed / 2 % 3 == 0;
  options.tables = seed / 8 % 2 == 0;
  options.loses_journal = seed % 13 == 6;
  options.open_max = 3 + static_cast<std::uint32_t>(seed / 3 % 10);
  return options;
}

WalkResult Walk(const WalkOptions& options) { return Cluster(options).Run(); }

}  // namespace evergrad::simulation
