// Tests some parts of the simulation without a cluster. mutants_test.cc shows that the checks of
// whole walks can fail.
#include <catch2/catch.hpp>

#include <utility>

#include "tests/simulation/coordinator_parts.h"
#include "tests/simulation/network.h"

namespace evergrad::simulation {
namespace {

using coordinator::Record;

constexpr JobUid kJob{1};
constexpr ShardEpoch kEpoch{1, 5};

// The objects that a part needs around it. No fault happens.
struct Surroundings {
  explicit Surroundings(bool torn = false) : walk(OptionsOf(torn)) {}
  static WalkOptions OptionsOf(bool torn) {
    WalkOptions options;
    options.seed = 3;
    options.touch = 1;
    options.fault_events = 0;
    options.evaluate = false;
    options.torn = torn;
    return options;
  }
  const std::string& violation() const { return walk.result.violation; }
  std::unique_ptr<HeldState> NewState() const {
    auto state = HeldState::FromSeed(walk.models[0], kEpoch, MapVersion{1, 2}, {});
    state->job = kJob;
    return state;
  }

  WalkContext walk;
  SnapshotFolder folder{walk};
  InvariantChecker checker{walk};
};

// ---------------------------------------------------------------- the journal

struct JournalFixture : Surroundings {
  explicit JournalFixture(bool torn = false) : Surroundings(torn) {}
  void Commit(std::uint64_t closure) {
    Record record;
    record.succeeded_add = IntervalSet{closure};
    REQUIRE(journal.store().Commit(kJob, record).ok());
  }
  bool Holds(std::uint64_t closure) {
    return journal.store().Load(kJob)->succeeded.Contains(closure);
  }
  SimulatedJournal journal{walk};
};

TEST_CASE(
    "a coordinator that dies loses the commits that are not durable, and "
    "no others") {
  JournalFixture f;
  f.Commit(1);
  f.journal.MakeDurable();
  f.Commit(2);
  CHECK(f.journal.undurable() == 1);
  f.journal.LoseUndurable();
  CHECK(f.journal.all_durable());
  CHECK(f.Holds(1));
  CHECK_FALSE(f.Holds(2));
}

TEST_CASE(
    "a forgotten move comes back with the next life, if a task knows the "
    "newest life") {
  const bool known = GENERATE(false, true);
  JournalFixture f;
  f.Commit(1);
  auto before = f.journal.Copy();
  f.Commit(2);
  f.journal.BeginForgetting(std::move(before), 7, 8);
  CHECK(f.journal.ForgetsNow());
  f.journal.Recover(known);
  CHECK_FALSE(f.journal.ForgetsNow());
  CHECK(f.journal.forgets_a_move() == known);
  CHECK(f.Holds(2) == !known);
}

TEST_CASE(
    "a life's term is above the journal's and above all terms that tasks "
    "report") {
  JournalFixture f;
  CHECK(f.journal.TakeTerm(0) == Term{1});
  CHECK(f.journal.TakeTerm(6) == Term{7});
  CHECK(f.journal.TakeTerm(2) == Term{8});
}

TEST_CASE(
    "a new journal has lost the jobs of the one before, and a removed "
    "job is not lost") {
  JournalFixture f;
  f.Commit(1);
  CHECK_FALSE(f.journal.HasLost(kJob));
  REQUIRE(f.journal.store().Remove(kJob).ok());
  CHECK_FALSE(f.journal.HasLost(kJob));
  CHECK_FALSE(f.journal.may_lack_jobs());
  f.journal.LoseAll();
  CHECK(f.journal.HasLost(kJob));
  CHECK(f.journal.may_lack_jobs());
}

// ---------------------------------------------------------------- the book

TEST_CASE("actions wait for the commits before them, in order") {
  WalkOptions options = Surroundings::OptionsOf(false);
  options.gated = true;
  WalkContext walk(options);
  SnapshotFolder folder(walk);
  InvariantChecker checker(walk);
  Tasks tasks(walk, folder, checker);
  SimulatedJournal journal(walk);
  JournaledBook book(walk, tasks, journal, checker);
  book.Open({});
  checker.BeginBook(book.state());
  std::vector<int> seen;
  book.AfterCommits([&] { seen.push_back(1); });
  CHECK(seen == std::vector<int>{1});
  book.Commit(book->BeginLife(Term{1}));
  book.AfterCommits([&] { seen.push_back(2); });
  book.Tell([&] { seen.push_back(3); });
  CHECK(seen.size() == 1);
  book.Settle();
  CHECK(seen == std::vector<int>{1, 2, 3});
  book.Commit(book->Rollback(ShardId(0), "0").record);
  book.Tell([&] { seen.push_back(4); });
  book.Close();
  CHECK_FALSE(book.open());
  CHECK(seen.size() == 3);
}

// ---------------------------------------------------------------- files

TEST_CASE(
    "a sweep keeps needed and newer files, and may not delete those of a "
    "whole manifest") {
  Surroundings f;
  const Snapshot kept = f.folder.Write(f.NewState(), 0);
  f.folder.AddManifest(kJob, {kept}, 0);
  REQUIRE(f.folder.ResumePoint() != nullptr);
  Sweep sweep;
  f.folder.DeleteFiles(kJob, sweep);  // the file is newer than the newest one that the sweep knows
  sweep.newest[0] = {kept.epoch, kept.lsn};
  sweep.needed = {kept.Uri()};
  f.folder.DeleteFiles(kJob, sweep);
  CHECK(f.folder.Find(kept.Uri()) != nullptr);
  sweep.needed.clear();
  f.folder.DeleteFiles(JobUid(2), sweep);
  CHECK(f.violation() == "");
  f.folder.DeleteFiles(kJob, sweep);
  CHECK(f.folder.Find(kept.Uri()) == nullptr);
  CHECK(f.folder.ResumePoint() == nullptr);
  CHECK_THAT(f.violation(), Catch::StartsWith("30 a file is deleted that a kept manifest names"));
}

TEST_CASE("the folder keeps two manifests of a job, and a name has one content") {
  Surroundings f;
  Snapshot shard = f.folder.Write(f.NewState(), 0);
  std::vector<Snapshot> files;
  for (const char* name : {"a", "b", "c"}) {
    files.push_back(shard);
    files.back().file = name;
  }
  f.walk.result.violation = "kept";  // only the first violation is kept: these files do not exist
  for (const Snapshot& file : files) {
    const auto needed = f.folder.AddManifest(kJob, {file}, 0);
    CHECK(needed.contains(file.Uri()));
    CHECK(needed.contains(files[0].Uri()) == (file.file != "c"));
  }
  f.walk.result.violation.clear();
  f.folder.Write(f.NewState(), 0);
  CHECK(f.violation() == "");
  auto other = f.NewState();
  other->count[0] = 1;
  f.folder.Write(std::move(other), 0);
  CHECK_THAT(f.violation(), Catch::StartsWith("27 one name, two contents"));
}

// ---------------------------------------------------------------- the network

TEST_CASE("a push arrives at its process once, and its answer goes back") {
  Surroundings f;
  Tasks tasks(f.walk, f.folder, f.checker);
  Network network(f.walk, tasks);
  const SimulatedServer& server = *tasks.servers()[0];
  CHECK(network.ServersOf(server.identity()) ==
        std::vector<SimulatedServer*>{tasks.servers()[0].get()});
  Call push;
  push.push = true;
  push.server = server.process;
  network.Send(push);
  network.DeliverOne();  // the push arrives; the server has no shard and answers STALE
  CHECK_FALSE(network.empty());
  network.DeliverOne();  // the answer arrives at the worker
  CHECK(network.empty());
  push.server = -1;  // no process has this number
  network.Send(push);
  network.DeliverOne();
  CHECK(network.empty());
  for (int i = 0; i < 60; ++i) {
    CHECK_FALSE(network.full());
    network.Send(push);
  }
  CHECK(network.full());
}

// ---------------------------------------------------------------- checks

TEST_CASE(
    "a commit may not lower a term, a version or an epoch, nor revive a "
    "closure") {
  DurableState before;
  before.term = Term{2};
  before.version = {2, 7};
  before.map = std::vector<coordinator::ShardOwner>(kShards, {"0", {2, 5}, {2, 4}});
  before.todo = before.lost = std::vector<IntervalSet>(kShards);
  before.succeeded = {1};
  const auto violation = [&](const std::function<void(DurableState&)>& change) {
    Surroundings f;
    f.checker.BeginBook(before);
    DurableState now = before;
    change(now);
    f.checker.OnCommit(now);
    return f.violation();
  };
  CHECK(violation([](DurableState& s) { s.version = {2, 8}; }) == "");
  CHECK(violation([](DurableState& s) { s.version = {2, 6}; }) == "I4 term or map version fell");
  CHECK(violation([](DurableState& s) { s.term = Term{1}; }) == "I4 term or map version fell");
  CHECK(violation([](DurableState& s) {
          s.map[1].epoch = {2, 4};
        }) == "I4 epoch or start fell: p=1");
  CHECK(violation([](DurableState& s) { s.succeeded.Clear(); }) == "P2 an ended closure came back");
  CHECK(violation([](DurableState& s) { s.dead = {1}; }) == "P2 a closure ended twice");
  CHECK(violation([](DurableState& s) { s.todo[0] = {3}; }) == "todo holds what has not succeeded");
}

TEST_CASE(
    "a term may be taken once, and the journal must return the last "
    "durable state") {
  Surroundings f;
  f.checker.OnTermTaken(Term{3});
  f.checker.OnTermReported(5);
  f.checker.OnTermTaken(Term{6});
  CHECK(f.violation() == "");
  f.checker.OnTermTaken(Term{6});
  CHECK(f.violation() == "I4 a term is taken twice: term=6");

  for (const bool torn : {false, true}) {
    Surroundings g(torn);
    DurableState state;
    state.succeeded = {1};
    g.checker.BeginBook(state);
    g.checker.CheckReplayed(state);
    CHECK(g.violation() == "");
    g.checker.CheckReplayed({});
    CHECK(g.violation().empty() == torn);
  }
}

// The test pushes the update (0, 0) to shard 0 at two processes.
TEST_CASE(
    "a second process that applies at one epoch breaks I5, and a sealed "
    "shard breaks 20a") {
  Surroundings f;
  const auto push = [&](HeldState* held, int process, const ps_server::Ledger* sealed) {
    const Call call{.push = true, .job = kJob, .epoch = kEpoch, .attempt = {1, 1}};
    const PushOfCall pushed(f.walk, call);
    const ShardBefore before(*held->shard, call.closure);
    const std::string identity = "0";
    f.checker.OnPush({call, pushed, before, held->shard->Apply(pushed.push).code, *held, process,
                      identity, sealed});
  };
  const auto first = f.NewState(), second = f.NewState();
  push(first.get(), 1, nullptr);
  push(first.get(), 1, nullptr);  // a duplicate
  CHECK(f.violation() == "");
  CHECK(first->log.size() == 1);
  push(second.get(), 2, nullptr);
  CHECK_THAT(f.violation(), Catch::StartsWith("I5 two processes answered APPLIED: p=0"));
  f.walk.result.violation.clear();
  const ps_server::Ledger sealed = second->shard->ledger();
  push(second.get(), 2, &sealed);  // answers DUPLICATE instead of REFUSED
  CHECK(f.violation() == "20a a sealed shard took a push: c=0 p=0");
}

TEST_CASE("a job may end only with every update at its shard, once") {
  Surroundings f;
  EndChecks checks(f.walk, f.checker);
  DurableState state;
  state.todo = state.lost = std::vector<IntervalSet>(kShards);
  std::vector<std::unique_ptr<HeldState>> states;
  std::vector<const HeldState*> held;
  for (std::uint32_t p = 0; p < kShards; ++p) {
    states.push_back(HeldState::FromSeed(f.walk.models[p], kEpoch, MapVersion{1, 2}, {}));
    held.push_back(states.back().get());
  }
  for (std::uint64_t c = 0; c < kClosures; ++c) state.dead.Add(c);
  checks.CheckEnd(state, held);
  CHECK(f.violation() == "");
  state.dead = {};
  for (std::uint64_t c = 0; c < kClosures; ++c) state.succeeded.Add(c);
  checks.CheckEnd(state, held);
  CHECK(f.violation() == "I7 not exactly once: c=0 u=0 p=0 want=1 got=0");
  f.walk.result.violation.clear();
  checks.CheckLastCut(state, 0, *held[0]);
  CHECK(f.violation() == "");
  held[0]->shard->Close(kEpoch, MapVersion{1, 6}, {}, {2});
  checks.CheckLastCut(state, 0, *held[0]);
  CHECK_THAT(f.violation(), Catch::StartsWith("20a the last cut refuses what nobody cancelled"));
}

TEST_CASE("a proof fits the grant for which it was made, and no other") {
  GrantProofs proofs;
  Granted grant{kJob, ClosureId(3), Attempt{1, 4}, "w1", ""};
  grant.proof = proofs.Prove(grant);
  grants::GrantGuard guard(kJob, proofs.KeyOf(kJob));
  REQUIRE(proofs.known().size() == 1);
  CHECK(proofs.Fits(grant));
  CHECK(GrantProofs::FitsAtServer(guard, grant));
  for (const auto& change : std::vector<std::function<void(Granted&)>>{
           [](Granted& g) { g.closure = ClosureId(4); }, [](Granted& g) { g.attempt.n = 5; },
           [](Granted& g) { g.worker = "w2"; }, [](Granted& g) { g.proof.clear(); }}) {
    Granted other = grant;
    change(other);
    CHECK_FALSE(proofs.Fits(other));
    CHECK_FALSE(GrantProofs::FitsAtServer(guard, other));
  }
}

}  // namespace
}  // namespace evergrad::simulation
