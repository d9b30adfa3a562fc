#include "tests/simulation/cluster.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/grants/grant_guard.h"
#include "common/grants/grant_proof.h"
#include "common/plan/plan.h"
#include "coordinator/closures/term_rule.h"
#include "coordinator/closures/update_account.h"
#include "tests/mutants/mutant.h"
#include "tests/simulation/ground_truth.h"
#include "tests/support/read_shard.h"

namespace evergrad::simulation {
namespace {

using coordinator::ClosureBook;
using coordinator::DurableState;
using coordinator::MemoryStateStore;
using coordinator::Record;
using coordinator::Snapshot;
using mutants::IsActive;
using mutants::Mutant;
using ps_server::PushCode;
using worker::AttemptBook;
using worker::PushAnswer;
using worker::ShardMap;
using worker::Work;

constexpr std::size_t kCallsMax = 60;        // pushes and answers in flight
constexpr std::size_t kManifestsKept = 2;    // manifests kept of a job
constexpr std::uint64_t kUndurableMax = 48;  // limit of commits that are not durable
// Commits that the store can lose: more than kUndurableMax and those of a tear.
constexpr std::size_t kTailKept = 64;
// Limit of jobs in a walk: the first, and those that resume it.
constexpr std::uint64_t kJobsMax = 3;
constexpr std::size_t kGrantedKept = 64;  // grants that an attacker knows

// [34] The fields that the proof of a grant covers.
struct ProofFields {
  ProofFields(ClosureId c, Attempt a, const std::string& w)
      : closure(IsActive(Mutant::kProofOfAnyClosure) ? ClosureId(0) : c),
        attempt(IsActive(Mutant::kProofOfAnyAttempt) ? Attempt{} : a),
        worker(IsActive(Mutant::kProofOfAnyWorker) ? "" : w) {}
  const ClosureId closure;
  const Attempt attempt;
  const std::string worker;
};

// [18a] Returns whether a coordinator with this journal must end because of a shard of this job.
bool JournalHasLost(const MemoryStateStore& journal, JobUid job) {
  if (IsActive(Mutant::kLostJobDropped)) return false;
  return coordinator::JournalHasLost(
      {.journaled = true,
       .known = journal.Load(job).ok(),
       .removed = journal.Removed(job) && !IsActive(Mutant::kRemovedIsLost)});
}

// A queue that keeps its storage.
template <class T>
class Fifo {
 public:
  bool empty() const { return head_ == items_.size(); }
  void Push(T item) { items_.push_back(std::move(item)); }
  T Pop() {
    T item = std::move(items_[head_++]);
    if (head_ == items_.size()) Clear();
    return item;
  }
  void Clear() {
    items_.clear();
    head_ = 0;
  }
  template <class F>
  bool Any(F f) const {
    return std::any_of(items_.begin() + static_cast<std::ptrdiff_t>(head_), items_.end(), f);
  }

 private:
  std::vector<T> items_;
  std::size_t head_ = 0;
};

// A cut of a shard [27] in the folder that all processes share.
struct File {
  std::uint32_t p = 0;
  std::unique_ptr<HeldState> state;
  enum {
    kWhole,
    kBadInside,
    // Damage shows when a server loads the file or a manifest is chosen.
    kBadAtTheEnds
  } health = kWhole;
};
struct ManifestFile {
  JobUid job;
  std::uint64_t number = 0;
  std::vector<Snapshot> shards;
  std::uint64_t evaluated = 0;  // barriers with a metric
  bool damaged = false;
};
// The files that a sweep must keep, like SweepRequest of coordinator/checkpoints.
struct Sweep {
  std::set<std::string> needed;
  std::array<std::pair<ShardEpoch, std::uint64_t>, kShards> newest{};
};

// A message from the coordinator to a task.
struct Down {
  enum Kind {
    kRegistered,
    kMap,
    kGrant,
    kDoneAnswer,
    kAssign,
    kDrop,
    kClose,
    kWantSnapshot,
    kRelease,
    kSeal,
    kJobEnded
  } kind = kRegistered;
  JobUid job{};
  std::uint32_t p = 0;
  ShardEpoch epoch{};
  MapVersion version{}, start{};
  IntervalSet done{}, refused{};
  std::unique_ptr<HeldState> state{};  // for a move
  std::optional<Snapshot> source{};    // for an Assign without a state; none for the seed
  std::shared_ptr<const ShardMap> map{};
  Work work{};
  Attempt attempt{};
  std::string key{};  // for an Assign [34]
  bool superseded = false;
  Term term{};
  std::uint64_t life = 0;
  std::vector<ClosureBook::HeldAttempt> adopted{};
  std::vector<Attempt> adopted_evaluations{};
};

// The shards that an evaluation closure has read: the tag, the values and the updates of each.
struct Evaluated {
  struct OfShard {
    bool read = false;
    MapVersion start;
    std::uint64_t vlsn = 0;
    std::array<float, kElementsMax> values{};
    std::array<std::uint8_t, kClosures * kUpdates> count{};
  };
  std::array<OfShard, kShards> shards{};
};

// --- messages from a task to the coordinator. An attempt in hand, as in a Hello.
struct HeldAttempt {
  JobUid job;
  ClosureBook::HeldAttempt attempt;
  std::string worker, proof;  // [36], [35] those of its Grant
};

struct Up {
  enum Kind {
    kHello,
    kDone,
    kDropped,
    kFailed,
    kClosed,
    kSnapshot,
    kReleased,
    kSealed,
    kAssigned
  } kind = kHello;
  JobUid job{};
  std::uint32_t p = 0;
  ShardEpoch epoch{};
  ClosureId closure{};
  Attempt attempt{};
  MapVersion v0{}, v1{};
  bool taken = false;
  std::unique_ptr<HeldState> state{};
  std::optional<Snapshot> snapshot{};  // kSnapshot, kSealed: the durable file; kAssigned: the file
                                       // that could not be loaded
  bool ok = true;                      // kAssigned
  std::vector<std::pair<JobUid, ClosureBook::HeldShard>> shards{};
  std::vector<HeldAttempt> attempts{};
  // In hand, in a Hello; two jobs never use one number.
  std::vector<std::pair<ClosureId, Attempt>> evaluations{};
  std::shared_ptr<const Evaluated> evaluated{};            // in the Done of an evaluation closure
  coordinator::UpdateAccount::TouchedLess touched_less{};  // in a Done [38]
  coordinator::ReportedLife reported{};
};

struct Task {
  int process = 0;              // number of the process; never reused
  bool connected = false;       // it has a session
  bool registered = false;      // the coordinator has accepted its Hello
  bool welcomed = false;        // it has read Registered, and may send more than the Hello
  TaskId task;                  // the present registration
  std::vector<TaskId> earlier;  // registrations of this process in this life of the coordinator
  std::uint64_t highest_term = 0, life = 0;  // of the newest life that registered it [18]
  Fifo<Down> in;
  Fifo<Up> out;
};

struct Server : Task {
  std::string identity;
  JobUid version_of{};
  MapVersion version;  // the highest version that it received
  std::array<std::unique_ptr<HeldState>, kShards> shards;
  // Shards of earlier jobs of whose end the server was not told.
  std::vector<std::pair<std::uint32_t, std::unique_ptr<HeldState>>> others;
  // The ledger at the time of the seal [20a].
  std::array<std::optional<ps_server::Ledger>, kShards> sealed;
  struct Loading {
    JobUid job;
    ShardEpoch epoch;
    MapVersion start;
    IntervalSet refused;
    std::optional<Snapshot> source;
  };
  std::array<std::optional<Loading>, kShards> loading;
  std::vector<Up> unsent;  // messages `Assigned` that no session accepted
  struct Order {           // an order to cut a shard
    JobUid job;
    std::uint32_t p = 0;
    ShardEpoch epoch;
    TaskId session;
    std::unique_ptr<HeldState> cut;  // taken and not durable yet
    // For a slot whose moment has been taken and whose rows are being captured, slice by slice.
    struct Slicing {
      ps_server::ShardCut cut;
      std::unique_ptr<HeldState> facts;  // of that moment
    };
    std::optional<Slicing> slicing = std::nullopt;
  };
  std::vector<Order> orders;
  // [35] made at the first Assign of the job.
  std::map<JobUid, std::unique_ptr<grants::GrantGuard>> guards;
  // The newest file of each shard that it holds.
  std::array<std::optional<Snapshot>, kShards> durable_file;
  // The state that answers a push of this job; nullptr: the answer is STALE.
  HeldState* Find(JobUid job, std::uint32_t p) {
    if (shards[p] && shards[p]->job == job) return shards[p].get();
    for (auto& [q, state] : others) {
      if (q == p && state->job == job) return state.get();
    }
    return nullptr;
  }
  HeldState* Holds(JobUid job, std::uint32_t p, ShardEpoch epoch) {
    return shards[p] && shards[p]->job == job && shards[p]->shard->epoch() == epoch
               ? shards[p].get()
               : nullptr;
  }
};

struct Cached {  // a worker's last pull, by reference and as a copy
  ps_server::PullResult read;
  std::vector<float> values;
};

struct Worker : Task {
  Worker() : book(AttemptBook::OverBudget::kPause) {}
  AttemptBook book;
  std::uint32_t declared = 0;          // updates that the running attempt has declared
  std::shared_ptr<Evaluated> reading;  // what the running evaluation closure has read
  std::map<Attempt, std::shared_ptr<const Evaluated>> evaluated;  // for Dones that are not answered
  std::map<Attempt, coordinator::UpdateAccount::TouchedLess> touched_less;  // the same
  std::array<MapVersion, kShards> wait_for{};
  std::array<Cached, kShards> cache;
};

// A push, or its answer, in flight between a worker and a server.
struct Call {
  bool push = false;
  JobUid job{};
  int server = 0, worker = 0;
  std::uint32_t p = 0, update = 0;
  ShardEpoch epoch{};
  ClosureId closure{};
  Attempt attempt{};
  PushAnswer answer = PushAnswer::kApplied;
  MapVersion version{};
  std::string worker_name{}, proof{};  // [35]
};

PushAnswer AnswerOf(PushCode code) {
  switch (code) {
    case PushCode::kApplied: return PushAnswer::kApplied;
    case PushCode::kDuplicate: return PushAnswer::kDuplicate;
    case PushCode::kStale: return PushAnswer::kStale;
    case PushCode::kSuperseded: return PushAnswer::kSuperseded;
    case PushCode::kRefused: return PushAnswer::kRefused;
    case PushCode::kBusy: return PushAnswer::kBusy;
    case PushCode::kOverBudget: return PushAnswer::kOverBudget;
    case PushCode::kInvalid: return PushAnswer::kInvalid;
  }
  return PushAnswer::kInvalid;
}

std::uint64_t UpdatesIn(const ps_server::Shard& shard) {
  std::uint64_t updates = shard.updates_applied();
  for (const auto& [reason, count] : shard.skips()) updates += count;
  return updates;
}

const plan::Plan& PlanOfWalk() {
  plan::PlanSpec spec;
  spec.train_examples = kClosures * kUpdates;
  spec.steps_per_closure = kUpdates;
  spec.shuffle = false;
  static const plan::Plan plan = *plan::Plan::Create(spec);
  return plan;
}

// Compares states of one shard at one lsn. Attempts may differ, since a DUPLICATE that raises an
// attempt is no event [6].
bool SameUpdates(const HeldState& a, const HeldState& b) {
  const ps_server::Ledger &l = a.shard->ledger(), &m = b.shard->ledger();
  const auto same_bits = [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.bits == y.second.bits;
  };
  return a.count == b.count && l.done() == m.done() && l.refused() == m.refused() &&
         std::equal(l.open().begin(), l.open().end(), m.open().begin(), m.open().end(), same_bits);
}

const std::array<ShardModel, kShards>& ModelsOf(const std::string& optimizer, bool tables) {
  using Models = std::array<ShardModel, kShards>;
  const auto make = [](const char* of, bool slot) {
    return Models{ShardModel(of, 0), ShardModel(of, 1), ShardModel(of, 2, slot)};
  };
  static const Models dense[] = {make("counting", false), make("sgd", false), make("adam", false)};
  static const Models slots[] = {make("counting", true), make("sgd", true), make("adam", true)};
  return (tables ? slots : dense)[optimizer == "adam" ? 2 : optimizer == "sgd" ? 1 : 0];
}

class Cluster {
 public:
  explicit Cluster(const WalkOptions& options);
  WalkResult Run();

 private:
  template <class... Args>
  void Trace(const Args&... args) {
    if (options_.trace) std::printf("%6d  %s\n", events_, absl::StrCat(args...).c_str());
  }
  void Fail(const std::string& violation) {
    if (!violation.empty() && violation_.empty()) violation_ = violation;
  }
  void Count(const char* what) { ++counts_[what]; }
  void Largest(const char* what, std::uint64_t n) { largest_[what] = std::max(largest_[what], n); }

  // Processes.
  void NewServer(std::string identity);
  void NewWorker();
  template <class F>
  void EachTask(F f) {
    for (auto& s : servers_) f(*s);
    for (auto& w : workers_) f(*w);
  }
  Server* ServerById(int process);
  Worker* WorkerById(int process);
  Server* ConnectedServer(const std::string& identity, bool registered);
  void StartCoordinator();
  void StartWithoutJournal();
  void CheckUnknownJob(JobUid job);
  void Unmap(ShardId p);
  void BeginAnew(Term term, Task* except);
  void MeetForeignCoordinator(Task* t);
  void KillCoordinator();
  void Disconnect(Task* t);
  void TryConnect(Server* s);
  void TryConnect(Worker* w);

  // One event.
  void Step(bool faults);
  void DataPlane(bool faults);
  void Deliver(bool faults);
  void WorkerActs(Worker* w, bool faults);
  void Sessions(bool faults);
  void CoordinatorActs(bool faults);
  void Fault();

  // Data plane.
  void Serve(const Call& call);
  void Forge();
  void ForgeHello();
  static bool Fits(const Server& s, JobUid job, const std::string& proof, ClosureId closure,
                   Attempt attempt, const std::string& worker);
  bool IsProved(const ClosureBook::HeldAttempt& held, const std::string& worker,
                const std::string& proof) const;
  void Answered(const Call& call);
  void PullOne(Worker* w, std::uint32_t p);
  void FinishIfSettled(Worker* w);
  void Evaluate(Worker* w);

  // Sessions.
  void AtCoordinator(Server* s, Up m);
  void AtCoordinator(Worker* w, Up m);
  void Registered(Task* t, const Down& m);
  void AtTask(Server* s, Down m);
  void AtTask(Worker* w, Down m);
  void OnMap(Worker* w, const ShardMap& map);
  void HandleDone(Worker* w, const Up& m);
  void SendChange(ClosureBook::MapChange change, Server* to, std::unique_ptr<HeldState> moved);
  std::shared_ptr<const ShardMap> CurrentMap();
  void SendMap();
  void SendCloses(Server* s);
  void CloseWindow();
  void RollBack(std::uint32_t p, Server* to);

  // The gate: a message to a task or to the user is sent once the commits before it are durable.
  struct Effect {
    enum Kind { kMessage, kCounted, kTold, kSweep } kind = kMessage;
    std::uint64_t commit = 0;
    TaskId task;
    Down message{};
    std::uint64_t closure = 0;
    Sweep sweep{};
  };
  void Send(Task* t, Down m);
  void Follow(Effect effect);
  void Do(Effect effect);
  void Settle();
  void TellCancelled();

  // Snapshots, manifests, resume [27, 28, 30].
  void Disk();
  void FinishLoading(Server* s, std::uint32_t p);
  void WriteNext(Server* s);
  bool NextSlices(const HeldState& held, Server::Order* order);
  Snapshot Describe(const HeldState& cut, std::uint32_t p) const;
  Snapshot MakeDurable(std::unique_ptr<HeldState> cut, std::uint32_t p);
  void OrderCuts();
  void NextFileWork();
  std::optional<std::vector<Snapshot>> NewestOfAll() const;
  void SaveManifest(std::vector<Snapshot> shards);
  void RunSweep(const Sweep& sweep);
  void Damage();
  void DropJob(Server* s, JobUid job);
  const ManifestFile* ResumePoint() const;
  void Resume(bool cluster_survives);

  // The tasks of coordinator/jobs in addition to the book: evaluation as a barrier [29], and the
  // end before the plan [20a].
  struct Evaluation {
    ClosureId closure;
    Attempt attempt{};  // (0,0): it is not granted
    TaskId worker{};
    bool done = false;
    std::shared_ptr<const Evaluated> result;
  };
  std::uint64_t Barrier() const {
    return options_.evaluate ? std::min<std::uint64_t>(kClosures, (evaluated_ + 1) * options_.epoch)
                             : kClosures;
  }
  void Advance();
  void GrantEvaluation(Worker* w);
  void HandleEvaluated(Worker* w, const Up& m);
  void FinishEvaluation();
  void VoidEvaluation();
  void BeginSeal();
  void SendSeal(Server* s, std::uint32_t p);
  void CheckSealed(bool out_of_time);
  void CheckSealedEnd();

  void Commit(const Record& record);
  bool OwnerIs(const Server& s, std::uint32_t p, ShardEpoch epoch) const;
  void CheckState(const HeldState& state, std::uint32_t p, bool replay);
  void CheckBounds(const HeldState& state, std::uint32_t p);
  bool Finished();
  void CheckEnd();

  const WalkOptions options_;
  const std::array<ShardModel, kShards>& models_;
  Random random_;
  std::array<std::array<std::uint8_t, kClosures>, kShards> touch_{};  // bit per update
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Call> calls_;
  std::unique_ptr<MemoryStateStore> store_, backup_;
  // The store before the term of this life; only a mutant returns to it.
  std::unique_ptr<MemoryStateStore> unsynced_;
  // [22] A move whose record is torn off before its source gets the Drop. By chance alone both
  // happen together once in five thousand walks.
  struct Forgotten {
    // The journal before the move; null if the next life has begun with it.
    std::unique_ptr<MemoryStateStore> journal;
    int at = 0;                // the event at which the coordinator dies
    int source = 0, next = 0;  // processes that are disconnected until the coordinator has died,
                               // and until the next window has closed (0: connected)
  };
  std::optional<Forgotten> forgotten_;
  std::map<std::string, File> files_;    // by URI
  std::set<std::string> given_up_;       // damaged or deleted
  std::vector<ManifestFile> manifests_;  // of all jobs, oldest first
  JobUid job_{1};
  int processes_ = 0, identities_ = 0, lives_ = 0;
  std::uint64_t registrations_ = 0;

  // The coordinator, while it is up.
  std::unique_ptr<ClosureBook> book_;
  // Hellos of workers, until the start-up window closes.
  std::vector<std::pair<TaskId, Up>> waiting_;
  std::shared_ptr<const ShardMap> map_;
  std::uint64_t durable_ = 0;      // commits of the store
  std::deque<Effect> effects_;     // messages that wait for the store
  std::set<std::uint32_t> round_;  // shards for whose cuts the round waits
  std::optional<std::vector<Snapshot>> manifest_due_;
  std::deque<Sweep> sweeps_;
  std::uint64_t life_ = 0;               // each process draws its own
  std::uint64_t newest_term_ = 0;        // the highest term that was ever used
  std::vector<Evaluation> evaluations_;  // the closures of the evaluation in progress
  std::uint64_t evaluation_rounds_ = 0;
  std::set<std::uint32_t> unsealed_;

  // State of the job that is durable and not part of the book. Its record is never torn off.
  std::string KeyOf(JobUid job) const;
  coordinator::UpdateAccount AccountOf(const DurableState& state);
  std::uint64_t evaluated_ = 0;  // barriers whose evaluation is valid
  // As last counted [38].
  std::array<coordinator::UpdateAccount::TouchedLess, kClosures> touched_less_{};
  std::optional<coordinator::UpdateAccount::Before> taken_over_;
  IntervalSet resumed_;
  bool sealing_ = false, end_told_ = false;
  // [18a] the store does not know earlier jobs.
  bool jobs_given_up_ = false, backup_used_ = false;
  std::array<std::string, kShards> cuts_;  // the cuts after the seal, by URI

  // The grants of all jobs, which an attacker may know.
  struct Granted {
    JobUid job;
    ClosureId closure;
    Attempt attempt;
    std::string worker, proof;
  };
  void MixProof(Granted* forged, double chance, std::uint64_t ways);
  bool WasGranted(const Granted& what) const;
  std::vector<Granted> granted_;  // the newest of them
  Random forger_;  // the attacker's own draws: a forged push leaves no trace, so the walk does not
                   // depend on them

  // Checks.
  DurableState before_;   // at the last commit [I4]
  DurableState settled_;  // at the last durable commit
  // Intervals from the files of an earlier job [I6].
  std::array<std::size_t, kShards> resumed_open_{}, resumed_intervals_{};
  std::map<std::string, std::uint64_t> largest_;
  // The process that answered APPLIED at (p, epoch) [I5].
  std::array<std::vector<std::pair<ShardEpoch, int>>, kShards> answered_;
  std::array<std::pair<MapVersion, std::uint64_t>, kShards> lsn_{};  // of the owner, by start [I4]
  std::array<int, kClosures> counted_{};
  IntervalSet cancelled_, told_;
  int events_ = 0;
  std::string violation_;
  std::map<std::string, std::uint64_t> counts_;
};

Cluster::Cluster(const WalkOptions& options)
    : options_(options),
      models_(ModelsOf(options.optimizer, options.tables)),
      random_(options.seed),
      store_(std::make_unique<MemoryStateStore>(
          MemoryStateStore::Options{.jobs_max = 4, .torn_max = kTailKept})),
      forger_(options.seed ^ 0x9e3779b97f4a7c15ull) {
  for (auto& shard : touch_) {
    for (std::uint8_t& bits : shard) {
      for (std::uint32_t u = 0; u < kUpdates; ++u)
        bits = static_cast<std::uint8_t>(bits | (random_.Chance(options.touch) ? 1u << u : 0u));
    }
  }
  for (std::uint32_t k = 0; k < kServers; ++k) NewServer(absl::StrCat(identities_++));
  for (std::uint32_t k = 0; k < kWorkers; ++k) NewWorker();
  StartCoordinator();
}

// ---------------------------------------------------------------- processes

void Cluster::NewServer(std::string identity) {
  auto s = std::make_unique<Server>();
  s->process = ++processes_;
  s->identity = std::move(identity);
  servers_.push_back(std::move(s));
}

void Cluster::NewWorker() {
  auto w = std::make_unique<Worker>();
  w->process = ++processes_;
  workers_.push_back(std::move(w));
}

Server* Cluster::ServerById(int process) {
  for (auto& s : servers_) {
    if (s->process == process) return s.get();
  }
  return nullptr;
}

Worker* Cluster::WorkerById(int process) {
  for (auto& w : workers_) {
    if (w->process == process) return w.get();
  }
  return nullptr;
}

Server* Cluster::ConnectedServer(const std::string& identity, bool registered) {
  for (auto& s : servers_) {
    if (s->connected && s->identity == identity && (s->registered || !registered)) return s.get();
  }
  return nullptr;
}

// Line 18a: a coordinator starts on an empty journal instead of the job's, or without a journal,
// while tasks of the job live. Afterwards an operator puts the journal back.
void Cluster::StartWithoutJournal() {
  const MemoryStateStore empty;
  for (const auto& s : servers_) {
    if (random_.Chance(0.3)) continue;  // it does not reach this coordinator
    for (std::uint32_t p = 0; p < kShards; ++p) {
      if (!s->shards[p] && !s->loading[p]) continue;
      const JobUid job = s->shards[p] ? s->shards[p]->job : s->loading[p]->job;
      if (JournalHasLost(empty, job)) {
        Count("lost journal refused");
        Trace("a coordinator with an empty journal ends: server ", s->process,
              " holds a shard of job ", job.value());
        return;
      }
      if (job == job_)
        Fail(absl::StrCat("18a a shard of a job that the journal has lost is dropped: p=", p));
      DropJob(s.get(), job);
      return;
    }
  }
}

// A server holds a shard of a job that is not the running one.
void Cluster::CheckUnknownJob(JobUid job) {
  if (jobs_given_up_ || backup_used_) return;  // the journal may have lost the job
  if (JournalHasLost(*store_, job))
    Fail(absl::StrCat(
        "18a a job that the journal has removed is taken for one that it has lost: job=",
        job.value()));
}

void Cluster::StartCoordinator() {
  if (options_.loses_journal && lives_ > 0 && random_.Chance(0.5)) StartWithoutJournal();
  if (options_.torn && random_.Chance(0.3)) {
    if (store_->TearTail(1 + random_.Below(4)) > 0) Count("journal torn");
  }
  // A living task must know the newest life; otherwise its numbers would be used again. Line 18
  // assumes this.
  const auto saw_newest = [&](const auto& t) { return t->highest_term >= newest_term_; };
  const bool known = std::any_of(servers_.begin(), servers_.end(), saw_newest) ||
                     std::any_of(workers_.begin(), workers_.end(), saw_newest);
  if (options_.torn && backup_ && known && random_.Chance(0.2)) {
    Count("journal from a backup");
    backup_used_ = true;
    store_ = std::exchange(backup_, nullptr);
  }
  if (forgotten_ && forgotten_->journal && known) {
    Count("journal forgot a move");
    store_ = std::exchange(forgotten_->journal, nullptr);
    forgotten_->source = 0;
  } else {
    forgotten_.reset();
  }
  if (unsynced_ && random_.Chance(0.5)) store_ = std::exchange(unsynced_, nullptr);
  if (options_.torn && random_.Chance(0.2)) backup_ = std::make_unique<MemoryStateStore>(*store_);
  DurableState state;
  if (auto loaded = store_->Load(job_); loaded.ok()) state = *std::move(loaded);
  // The coordinator collects registrations before its first message: every living task reports the
  // lives that it has seen.
  std::uint64_t reported = 0;
  EachTask([&](const Task& t) { reported = std::max(reported, t.highest_term); });
  const Term term =
      coordinator::FirstTerm(store_->term(), IsActive(Mutant::kTermIgnoresTasks) ? 0 : reported);
  if (IsActive(Mutant::kTermNotSynced)) unsynced_ = std::make_unique<MemoryStateStore>(*store_);
  EG_CHECK(store_->CommitTerm(term).ok());
  durable_ = store_->accepted();
  if (term.value() <= newest_term_)
    Fail(absl::StrCat("I4 a term is taken twice: term=", term.value()));
  newest_term_ = std::max(newest_term_, term.value());
  life_ = random_.Next() | 1;
  evaluations_.clear();
  book_ = std::make_unique<ClosureBook>(ClosureBook::Options{kClosures, kShards, options_.open_max},
                                        std::move(state));
  if (lives_ > 0 && !options_.torn && !(book_->durable() == (options_.gated ? settled_ : before_)))
    Fail("the journal does not give back the state that made it");
  ++lives_;
  settled_ = before_ = book_->durable();
  for (const auto& of_shard : before_.snapshots) {
    for (const Snapshot& snapshot : of_shard) {
      if (!options_.torn && !files_.contains(snapshot.Uri()))
        Fail(absl::StrCat("27 the journal names a file that is not there: ", snapshot.Uri()));
    }
  }
  Commit(book_->BeginLife(term));
  book_->SetNewLimit(Barrier());
  unsealed_.clear();
  for (std::uint32_t p = 0; sealing_ && !end_told_ && p < kShards; ++p) {
    if (!before_.map[p].server.empty()) unsealed_.insert(p);
  }
  Trace("coordinator starts: term=", book_->durable().term.value(),
        " V=", book_->durable().version.ToString());
}

// Line 18: all tasks except the one that reported the term register anew.
void Cluster::BeginAnew(Term term, Task* except) {
  Count("begun anew");
  newest_term_ = std::max(newest_term_, term.value());
  Trace("begins anew: term=", term.value());
  EG_CHECK(store_->CommitTerm(term).ok());
  Settle();
  EachTask([&](Task& t) {
    if (&t != except && t.connected) Disconnect(&t);
    t.earlier.clear();
  });
  waiting_.clear();
  for (Evaluation& e : evaluations_) {
    if (!e.done) e.attempt = Attempt{};
  }
  Commit(book_->BeginLife(term));
}

// Another coordinator, with another store, registers a task. It knows no job, so it tells the task
// to drop its shards, if the message arrives.
void Cluster::MeetForeignCoordinator(Task* t) {
  Count("foreign coordinator");
  Disconnect(t);
  t->highest_term =
      std::max(t->highest_term, book_ ? book_->durable().term.value() : 0) + random_.Below(3);
  t->life = random_.Next() & ~1ull;
  Trace("process ", t->process, " meets another coordinator: term=", t->highest_term);
  const bool hears = random_.Chance(0.5);
  for (auto& s : servers_) {
    for (std::uint64_t job = 1; s.get() == t && hears && job <= job_.value(); ++job)
      DropJob(s.get(), JobUid(job));
  }
  for (auto& w : workers_) {
    if (w.get() == t && hears) w->book.OnRegistered(Term{t->highest_term}, {});
  }
}

void Cluster::KillCoordinator() {
  EachTask([&](Task& t) { Disconnect(&t); });
  EachTask([&](Task& t) { t.earlier.clear(); });
  if (const std::uint64_t lost = store_->accepted() - durable_; lost > 0) {
    Count("commits lost with the coordinator");
    EG_CHECK(store_->TearTail(lost) == lost);
    durable_ = store_->accepted();
  }
  effects_.clear();
  round_.clear();
  manifest_due_.reset();
  sweeps_.clear();
  book_.reset();
  waiting_.clear();
  Trace("coordinator dies");
}

void Cluster::Disconnect(Task* t) {
  if (book_ && t->connected) book_->EndServerSession(t->task);
  if (t->connected) t->earlier.push_back(t->task);
  t->connected = t->registered = t->welcomed = false;
  t->in.Clear();
  t->out.Clear();
}

void Cluster::TryConnect(Server* s) {
  // The second process of one identity waits [P7].
  if (ConnectedServer(s->identity, false) != nullptr) return;
  s->connected = true;
  s->task = TaskId(++registrations_);
  Up hello;
  hello.reported = {s->highest_term, s->life, 0};
  const auto holds = [&](std::uint32_t p, const HeldState& held) {
    const ps_server::Shard& shard = *held.shard;
    hello.shards.push_back({held.job,
                            {ShardId(p), shard.epoch(), shard.start(), shard.ledger().done(),
                             shard.ledger().refused(), false, held.stopped_in}});
  };
  for (std::uint32_t p = 0; p < kShards; ++p) {
    if (s->shards[p]) holds(p, *s->shards[p]);
    if (const auto& l = s->loading[p])
      hello.shards.push_back({l->job, {ShardId(p), l->epoch, l->start, {}, l->refused, true}});
  }
  for (const auto& [p, state] : s->others) holds(p, *state);
  for (const auto& [job, shard] : hello.shards)
    hello.reported.held_term = std::max(hello.reported.held_term, shard.epoch.term);
  s->out.Push(std::move(hello));
}

void Cluster::TryConnect(Worker* w) {
  w->connected = true;
  w->task = TaskId(++registrations_);
  Up hello;
  hello.reported = {w->highest_term, w->life, 0};
  for (const AttemptBook::Held& held : w->book.HeldForHello()) {
    if (held.work.kind != worker::WorkKind::kTrain) {
      hello.evaluations.emplace_back(held.work.closure, held.work.attempt);
      continue;
    }
    const ClosureBook::HeldAttempt attempt{held.work.closure, held.work.attempt,
                                           held.work.all_targets, held.work.targets, held.v1};
    hello.attempts.push_back({held.work.job, attempt, held.work.granted_to, held.work.proof});
  }
  w->out.Push(std::move(hello));
}

// ---------------------------------------------------------------- one event

void Cluster::Step(bool faults) {
  if (faults && forger_.Chance(0.05)) Forge();
  if (faults && forger_.Chance(0.05)) ForgeHello();
  const double x = random_.Unit();
  if (book_ && store_->accepted() != durable_ && (!faults || random_.Chance(0.1))) Settle();
  if (x < 0.40) {
    DataPlane(faults);
  } else if (x < 0.50) {
    Disk();
  } else if (x < 0.86) {
    Sessions(faults);
  } else if (x < 0.95) {
    CoordinatorActs(faults);
  } else if (faults && random_.Chance(0.35)) {
    Fault();
  }
  if (forgotten_ && book_) {
    if (!forgotten_->journal) {
      if (!book_->window_open()) forgotten_.reset();
    } else if (forgotten_->at <= events_ || !faults) {
      KillCoordinator();
    }
  }
  if (!book_ && (!faults || random_.Chance(0.05))) StartCoordinator();
}

void Cluster::DataPlane(bool faults) {
  if (!calls_.empty() && random_.Chance(0.6)) {
    Deliver(faults);
    return;
  }
  Worker* w = workers_[random_.Below(workers_.size())].get();
  WorkerActs(w, faults);
}

void Cluster::Deliver(bool faults) {
  const std::size_t i = random_.Below(calls_.size());
  const Call call = calls_[i];
  if (!faults || random_.Chance(0.9)) {  // otherwise the message is delivered now and again later
    calls_[i] = calls_.back();
    calls_.pop_back();
  } else {
    Count("call doubled");
  }
  if (faults && random_.Chance(0.1)) {
    Count("call lost");
    return;
  }
  if (call.push) {
    Serve(call);
  } else {
    Answered(call);
  }
}

void Cluster::WorkerActs(Worker* w, bool faults) {
  if (const Work* next = w->book.NextToBegin()) {
    if (w->book.map().shards.empty() || w->book.map().job != next->job) return;
    Trace("worker ", w->process, " begins c=", next->closure.value(),
          " attempt=", next->attempt.ToString(), " V0=", w->book.map().version.ToString());
    w->book.Begin(next->attempt);
    w->declared = 0;
    w->reading = std::make_shared<Evaluated>();
    return;
  }
  const Work* work = w->book.running();
  if (work == nullptr) return;
  if (work->kind == worker::WorkKind::kEvaluate) {
    Evaluate(w);
    return;
  }
  const ClosureId c = work->closure;
  if (faults && options_.repairs_fail && !work->all_targets && random_.Chance(0.04)) {
    Up failed;
    failed.kind = Up::kFailed;
    failed.job = work->job;
    failed.closure = c;
    failed.attempt = work->attempt;
    if (w->welcomed) w->out.Push(std::move(failed));
    w->book.Drop(work->attempt);
    return;
  }
  // Any unsettled push of any declared update may leave next: pipelines change the order.
  std::array<std::pair<std::uint32_t, std::uint32_t>, kUpdates * kShards> ready{};
  std::size_t n = 0;
  for (std::uint32_t u = 0; u < w->declared; ++u) {
    for (const ShardId p : w->book.Unsettled(UpdateIndex(u))) {
      if (w->book.map().version >= w->wait_for[p.value()]) ready[n++] = {u, p.value()};
    }
  }
  if (w->declared < kUpdates && (n == 0 || random_.Chance(0.3))) {
    const std::uint32_t u = w->declared++;
    std::vector<ShardId> shards;
    for (std::uint32_t p = 0; p < kShards; ++p) {
      if (touch_[p][c.value()] >> u & 1 &&
          (work->all_targets || work->targets.contains(ShardId(p))))
        shards.push_back(ShardId(p));
    }
    if (random_.Chance(0.15)) PullOne(w, static_cast<std::uint32_t>(random_.Below(kShards)));
    w->book.Expect(UpdateIndex(u), shards);
    FinishIfSettled(w);
    return;
  }
  if (n == 0 || calls_.size() >= kCallsMax) return;
  const auto [u, p] = ready[random_.Below(n)];
  // With a mutant, an attempt of an earlier job may continue.
  if (p >= w->book.map().shards.size()) return;
  const worker::ShardPlace& place = w->book.map().shards[p];
  // The old and the new process of an identity listen at different addresses. Either may get the
  // push.
  std::array<int, 8> there{};
  std::size_t listening = 0;
  for (const auto& s : servers_) {
    if (s->identity == place.server && listening < there.size()) there[listening++] = s->process;
  }
  if (listening == 0) return;  // a transport error: the worker sends again later
  Call call;
  call.push = true;
  call.job = work->job;
  call.server = there[random_.Below(listening)];
  call.worker = w->process;
  call.p = p;
  call.update = u;
  call.epoch = place.epoch;
  call.closure = c;
  call.attempt = work->attempt;
  call.worker_name = work->granted_to;
  call.proof = work->proof;
  calls_.push_back(call);
}

void Cluster::Sessions(bool faults) {
  if (!book_) return;
  for (auto& s : servers_) {
    const bool away = faults && forgotten_ &&
                      (forgotten_->source == s->process ||
                       (!forgotten_->journal && forgotten_->next == s->process));
    if (!s->connected && !away && random_.Chance(faults ? 0.1 : 1)) TryConnect(s.get());
  }
  for (auto& w : workers_) {
    if (!w->connected && random_.Chance(faults ? 0.1 : 1)) TryConnect(w.get());
  }
  const std::size_t i = random_.Below(servers_.size() + workers_.size());
  const auto turn = [&](auto* t) {
    if (!t->connected) return;
    if (!t->out.empty() && (t->in.empty() || random_.Chance(0.5))) {
      AtCoordinator(t, t->out.Pop());
    } else if (!t->in.empty()) {
      AtTask(t, t->in.Pop());
    }
  };
  if (i < servers_.size()) {
    turn(servers_[i].get());
  } else {
    turn(workers_[i - servers_.size()].get());
  }
}

void Cluster::CoordinatorActs(bool faults) {
  if (!book_) return;
  if (book_->window_open()) {
    bool all_here = true;
    for (const auto& s : servers_)
      all_here &= s->registered || (!s->connected && ConnectedServer(s->identity, true) != nullptr);
    for (const auto& w : workers_) all_here &= w->connected && w->out.empty();
    if (random_.Chance(0.2) && (faults || all_here)) CloseWindow();
    return;
  }
  const double y = random_.Unit();
  if (sealing_) {
    CheckSealed(y < (faults ? 0.02 : 0.1));
    if (end_told_ && options_.resumes && faults && y > 0.9) Resume(true);
    return;
  }
  if (faults && random_.Chance(0.02)) {
    Count("journal checkpoint");
    EG_CHECK(store_->Checkpoint(job_, book_->durable(), "").ok());
    if (!options_.gated) Settle();
  }
  if (y < 0.5) {
    Worker* w = workers_[random_.Below(workers_.size())].get();
    if (!w->registered) return;
    Advance();
    if (!evaluations_.empty()) {
      GrantEvaluation(w);
      return;
    }
    std::size_t in_hand = 0;
    for (const auto& [c, current] : book_->current()) in_hand += current.worker == w->task;
    if (in_hand >= kInHand) return;
    const auto granted = book_->NextGrant(w->task);
    if (!granted) return;
    Trace("grant c=", granted->closure.value(), " attempt=", granted->attempt.ToString(),
          granted->repair ? " repair" : "", " to worker ", w->process);
    if (granted->repair) Count("repair granted");
    Down m;
    m.kind = Down::kGrant;
    m.work = Work{job_,
                  granted->closure,
                  granted->attempt,
                  worker::WorkKind::kTrain,
                  granted->all_targets,
                  granted->targets};
    m.work.granted_to = absl::StrCat("w", w->process);
    const ProofFields proved(granted->closure, granted->attempt, m.work.granted_to);
    m.work.proof =
        grants::MakeProof(KeyOf(job_), job_, proved.closure, proved.attempt, proved.worker);
    if (granted_.size() >= kGrantedKept) granted_.erase(granted_.begin());
    granted_.push_back({job_, granted->closure, granted->attempt, m.work.granted_to, m.work.proof});
    Send(w, std::move(m));
  } else if (y < 0.6) {
    for (auto& s : servers_) {
      if (s->registered) SendCloses(s.get());
    }
  } else if (y < 0.7) {
    if (options_.snapshots) OrderCuts();
  } else if (y < 0.8) {
    // The leases of disconnected workers end, and sometimes that of a connected one.
    std::vector<std::pair<ClosureId, Attempt>> out;
    for (const auto& [c, current] : book_->current()) {
      const TaskId runs = current.worker;
      const bool here = std::any_of(workers_.begin(), workers_.end(),
                                    [&](const auto& w) { return w->connected && w->task == runs; });
      if (!here || (faults && random_.Chance(0.05))) out.emplace_back(c, current.attempt);
    }
    for (const auto& [c, attempt] : out) book_->ReleaseAttempt(c, attempt);
    for (Evaluation& e : evaluations_) {
      const bool here = std::any_of(workers_.begin(), workers_.end(), [&](const auto& w) {
        return w->connected && w->task == e.worker;
      });
      if (!e.done && (!here || (faults && random_.Chance(0.05)))) e.attempt = Attempt{};
    }
  } else if (y < 0.95) {
    for (std::uint32_t p = 0; p < kShards; ++p) {
      const std::string& identity = book_->durable().map[p].server;
      if (!identity.empty() && ConnectedServer(identity, false) != nullptr) continue;
      const bool lives = std::any_of(servers_.begin(), servers_.end(),
                                     [&](const auto& s) { return s->identity == identity; });
      if (!random_.Chance(!lives ? 0.5 : faults ? 0.15 : 1)) continue;
      Server* to = servers_[random_.Below(servers_.size())].get();
      if (to->registered) RollBack(p, to);
    }
  } else if (faults) {
    const auto p = static_cast<std::uint32_t>(random_.Below(kShards));
    const coordinator::ShardOwner& owner = book_->durable().map[p];
    Server* s = owner.server.empty() ? nullptr : ConnectedServer(owner.server, true);
    if (s == nullptr) return;
    Down m;
    m.kind = Down::kRelease;
    m.p = p;
    m.epoch = owner.epoch;
    Send(s, std::move(m));
  }
}

void Cluster::Fault() {
  const double y = random_.Unit();
  if (y < 0.25) {
    const std::size_t i = random_.Below(workers_.size());
    Count("worker killed");
    Trace("worker ", workers_[i]->process, " dies");
    Disconnect(workers_[i].get());
    workers_.erase(workers_.begin() + static_cast<std::ptrdiff_t>(i));
    NewWorker();
  } else if (y < 0.45) {
    const std::size_t i = random_.Below(servers_.size());
    Count("server killed");
    Trace("server ", servers_[i]->process, " of identity ", servers_[i]->identity, " dies");
    const std::string identity = servers_[i]->identity;
    Disconnect(servers_[i].get());
    servers_.erase(servers_.begin() + static_cast<std::ptrdiff_t>(i));
    if (servers_.size() < kServers)
      NewServer(random_.Chance(0.6) ? identity : absl::StrCat(identities_++));
  } else if (y < 0.72) {
    const std::size_t i = random_.Below(servers_.size() + workers_.size());
    Task* t = i < servers_.size() ? static_cast<Task*>(servers_[i].get())
                                  : workers_[i - servers_.size()].get();
    Count("session cut");
    Trace("session of process ", t->process, " is cut");
    Disconnect(t);
  } else if (y < 0.77) {
    // Starts a second process with the identity of a disconnected one that continues to serve.
    for (const auto& s : servers_) {
      if (s->connected || servers_.size() >= kServers + 1) continue;
      Count("server doubled");
      NewServer(s->identity);
      break;
    }
  } else if (y < 0.87) {
    if (!book_) return;
    Count("coordinator killed");
    KillCoordinator();
  } else if (y < 0.90 && book_) {
    if (options_.ends_early && !sealing_ && events_ > 300 && random_.Chance(0.6)) {
      BeginSeal();
      return;
    }
    const std::uint64_t c = random_.Below(kClosures);
    if (cancelled_.size() >= 2 || sealing_) return;
    const Record record = book_->Cancel(ClosureId(c));
    if (record.empty()) return;
    Count("closure cancelled");
    Trace("cancel c=", c);
    cancelled_.Add(c);
    Commit(record);
  } else if (y < 0.93 && options_.foreign) {
    const std::size_t i = random_.Below(servers_.size() + workers_.size());
    MeetForeignCoordinator(i < servers_.size() ? static_cast<Task*>(servers_[i].get())
                                               : workers_[i - servers_.size()].get());
  } else if (y >= 0.93 && y < 0.96) {
    if (options_.damage) Damage();
  } else if (y >= 0.96 && options_.resumes && events_ > 300) {
    Resume(false);
  }
}

// ---------------------------------------------------------------- data plane

void Cluster::Serve(const Call& call) {
  Server* s = ServerById(call.server);
  if (s == nullptr) return;
  Call answer = call;
  answer.push = false;
  answer.version = s->version_of == call.job ? s->version : MapVersion{};
  answer.answer = PushAnswer::kStale;
  HeldState* held = s->Find(call.job, call.p);
  const bool faults = events_ < options_.fault_events;
  if (faults && random_.Chance(0.02)) {
    const PushAnswer answers[] = {PushAnswer::kBusy, PushAnswer::kTransport,
                                  PushAnswer::kOverBudget};
    answer.answer = answers[random_.Below(3)];
    Count(answer.answer == PushAnswer::kOverBudget ? "over budget" : "busy");
  } else if (held != nullptr) {
    const std::uint64_t c = call.closure.value();
    alignas(64) float gradient[kElementsMax];
    // The tables refuse a push as a whole if its rows exceed their budget.
    const bool beyond = faults && models_[call.p].slot() && random_.Chance(0.05);
    const bool skip = !beyond && ShardModel::Skips(c, call.update, call.attempt);
    models_[call.p].Gradient(c, call.update, call.attempt, gradient);
    ps_server::Push push;
    push.epoch = call.epoch;
    push.closure = call.closure;
    push.update = UpdateIndex(call.update);
    push.attempt = call.attempt;
    if (skip) {
      push.kind = ps_server::UpdateKind::kSkip;
      push.skip_reason = "overflow";
    } else {
      models_[call.p].FillPush(c, call.update,
                               std::span(gradient, models_[call.p].gradient_floats(c, call.update)),
                               &push);
    }
    SlotSection section;
    std::vector<float> more;
    if (beyond) {
      section = models_[call.p].BeyondBudget(c, call.update, &more);
      push.rows = section.ids.size();
      push.rows_of = section.of();
      push.payload = std::as_bytes(std::span(more));
    }
    if (faults && random_.Chance(0.02)) push.defect = "a byte changed on the way";
    if (!Fits(*s, call.job, call.proof, call.closure, call.attempt, call.worker_name))
      push.unproved = "not granted";
    if (skip && IsActive(Mutant::kSkipApplies)) {
      std::fill(std::begin(gradient), std::end(gradient), 0.0f);
      models_[call.p].FillPush(c, call.update,
                               std::span(gradient, models_[call.p].gradient_floats(c, call.update)),
                               &push);
      push.kind = ps_server::UpdateKind::kGradient;
    }
    const std::uint64_t lsn = held->shard->lsn(), vlsn = held->shard->vlsn();
    const bool open = held->shard->ledger().open().contains(call.closure);
    const PushCode code = held->shard->Apply(push).code;
    if (held->shard->sealed() && IsActive(Mutant::kSealEntersRefused))
      held->shard->Close(held->shard->epoch(), held->shard->start(), {}, IntervalSet{c});
    answer.answer = AnswerOf(code);
    if (held->shard->lsn() < lsn) Fail("I4 lsn fell");
    if (beyond && code == PushCode::kApplied) Fail("11 a push beyond the budget was admitted");
    if (code == PushCode::kOverBudget) {
      Count("push of two tables over the budget");
      if (held->shard->lsn() != lsn || held->shard->ledger().Has(call.closure, push.update))
        Fail("11 a push over the budget is in the ledger");
      Fail(held->CheckValues(models_[call.p]));
      if (random_.Chance(0.1)) Fail(held->CheckReplay(models_[call.p]));
    }
    if (s->sealed[call.p] && held == s->shards[call.p].get() &&
        call.epoch == held->shard->epoch()) {
      Count("refused by a sealed shard");
      // A shard that was stopped for a move answers STALE before [8]. It accepts nothing, either.
      if (code != PushCode::kRefused && !(held->shard->stopped() && code == PushCode::kStale))
        Fail(absl::StrCat("20a a sealed shard took a push: c=", c, " p=", call.p));
      if (!(*s->sealed[call.p] == held->shard->ledger()))
        Fail(
            absl::StrCat("20a what a sealed shard refused is in its ledger: c=", c, " p=", call.p));
    }
    if (code == PushCode::kApplied) {
      Count(skip ? "skip recorded" : "applied");
      if (skip && held->shard->vlsn() != vlsn) Fail("13 a SKIP moved vlsn");
      const bool owner = held->job == job_ && OwnerIs(*s, call.p, held->shard->epoch());
      if (end_told_ && owner)
        Fail(absl::StrCat("20a applied after the user was told of the end: c=", c, " p=", call.p));
      Trace("server ", s->process, " p=", call.p, " applies c=", c, " u=", call.update,
            " attempt=", call.attempt.ToString(), " epoch=", call.epoch.ToString());
      if (skip) {
        held->FoldSkip(c, call.update, call.attempt);
      } else {
        held->Fold(models_[call.p], c, call.update, call.attempt, gradient);
      }
      if (held->count[c * kUpdates + call.update] > 1)
        Fail(absl::StrCat("I1 applied twice: c=", c, " u=", call.update, " p=", call.p));
      if (call.attempt < held->seen[c])
        Fail(absl::StrCat("I9 a lower attempt was applied: c=", c, " u=", call.update,
                          " p=", call.p));
      Fail(held->CheckValues(models_[call.p]));
      if (!held->shard->ledger().Has(call.closure, push.update))
        Fail("I2 an applied update is not in the ledger");
      auto& answered = answered_[call.p];
      const auto it = std::find_if(answered.rbegin(), answered.rend(),
                                   [&](const auto& a) { return a.first == call.epoch; });
      if (held->job != job_) {  // belongs to an ended job, at a server that was not told
        Count("applied to an earlier job");
      } else if (it == answered.rend()) {
        answered.emplace_back(call.epoch, s->process);
      } else if (it->second != s->process) {
        Fail(absl::StrCat("I5 two processes answered APPLIED: p=", call.p,
                          " epoch=", call.epoch.ToString()));
      }
      if (owner) {
        if (told_.Contains(c) && !options_.torn)
          Fail(absl::StrCat("20 applied after the user was told of the cancel: c=", c,
                            " p=", call.p));
        CheckBounds(*held, call.p);
      }
    } else if (code == PushCode::kDuplicate) {
      Count("duplicate");
    } else if (code == PushCode::kInvalid && !push.defect.empty()) {
      Count("broken push refused");
      answer.answer = PushAnswer::kTransport;
    } else if (code == PushCode::kInvalid || (code == PushCode::kOverBudget && !beyond)) {
      Fail("a good push was refused as invalid");
    }
    if (code == PushCode::kApplied || (code == PushCode::kDuplicate && open))
      held->seen[c] = std::max(held->seen[c], call.attempt);
  }
  if (calls_.size() < 2 * kCallsMax) calls_.push_back(answer);
}

// Gives `forged` a proof. With probability `chance` it is the proof of a known grant, and `forged`
// gets all but one of the grant's fields (closure, attempt, worker); with `ways` above three it may
// get all. Otherwise the proof belongs to no grant, or there is none.
void Cluster::MixProof(Granted* forged, double chance, std::uint64_t ways) {
  if (!granted_.empty() && forger_.Chance(chance)) {
    const Granted& known = granted_[forger_.Below(granted_.size())];
    forged->proof = known.proof;
    const std::uint64_t other = forger_.Below(ways);
    if (other != 0) forged->closure = known.closure;
    if (other != 1) forged->attempt = known.attempt;
    if (other != 2) forged->worker = known.worker;
  } else if (forger_.Chance(0.5)) {
    forged->proof.clear();
  }
}

bool Cluster::WasGranted(const Granted& what) const {
  return std::any_of(granted_.begin(), granted_.end(), [&](const Granted& g) {
    return g.job == what.job && g.closure == what.closure && g.attempt == what.attempt &&
           g.worker == what.worker;
  });
}

// Line 35: a push without a grant, with everything that an attacker can know: true epochs, open
// closures, proofs of other workers, and proofs of a worker's other work.
void Cluster::Forge() {
  const Server& s = *servers_[forger_.Below(servers_.size())];
  const auto p = static_cast<std::uint32_t>(forger_.Below(kShards));
  if (!s.shards[p]) return;
  HeldState& held = *s.shards[p];
  ps_server::Shard& shard = *held.shard;
  Granted forged{held.job, ClosureId(forger_.Below(kClosures)),
                 Attempt{forger_.Below(4), forger_.Below(100)}, "mallory", std::string(16, 'x')};
  if (forger_.Chance(0.2))
    forged.closure =
        ClosureId(forger_.Chance(0.5) ? kClosures + forger_.Below(9) : std::uint64_t{1} << 63);
  std::uint32_t update = static_cast<std::uint32_t>(forger_.Below(kUpdates));
  if (const auto& open = shard.ledger().open(); !open.empty() && forger_.Chance(0.5)) {
    auto it = open.begin();
    std::advance(it, forger_.Below(open.size()));
    forged.closure = it->first;
  }
  if (forger_.Chance(0.3))
    forged.attempt = forger_.Chance(0.5) ? Attempt{9, 9} : Attempt{~0ull, ~0ull};
  MixProof(&forged, 0.7, 4);  // the fourth way: the proof is of another job
  if (WasGranted(forged)) return;
  const std::uint64_t as = forged.closure.value() % kClosures;
  alignas(64) float gradient[kElementsMax];
  models_[p].Gradient(as, update, forged.attempt, gradient);
  ps_server::Push push;
  push.epoch = shard.epoch();
  push.closure = forged.closure;
  push.update = UpdateIndex(update);
  push.attempt = forged.attempt;
  models_[p].FillPush(as, update, std::span(gradient, models_[p].gradient_floats(as, update)),
                      &push);
  if (!Fits(s, forged.job, forged.proof, forged.closure, forged.attempt, forged.worker))
    push.unproved = "not granted";
  const ps_server::Ledger ledger = shard.ledger();
  const std::uint64_t lsn = shard.lsn();
  const PushCode code = shard.Apply(push).code;
  const bool refused =
      code == PushCode::kInvalid || code == PushCode::kStale || code == PushCode::kRefused;
  if (!refused || shard.lsn() != lsn || !(shard.ledger() == ledger))
    Fail(absl::StrCat("I10 a push that its sender was not granted: c=", forged.closure.value(),
                      " attempt=", forged.attempt.ToString(), " p=", p,
                      refused ? " changed the shard" : " was answered as if it had been"));
  Count("forged push refused");
}

// [35] A server's check of the proof in a push.
bool Cluster::Fits(const Server& s, JobUid job, const std::string& proof, ClosureId closure,
                   Attempt attempt, const std::string& worker) {
  const ProofFields proved(closure, attempt, worker);
  return s.guards.at(job)->Fits(proof, proved.closure, proved.attempt, proved.worker);
}

bool Cluster::IsProved(const ClosureBook::HeldAttempt& held, const std::string& worker,
                       const std::string& proof) const {
  const ProofFields proved(held.closure, held.attempt, worker);
  return IsActive(Mutant::kAdoptsUnproved) ||
         grants::ProofFits(proof, KeyOf(job_), job_, proved.closure, proved.attempt, proved.worker);
}

// Line 26: a Hello with an attempt that its sender was not granted. It is above the running
// attempt, below it, or of a future closure.
void Cluster::ForgeHello() {
  if (!book_ || book_->window_open() || sealing_) return;
  const std::uint64_t term = book_->durable().term.value();
  Granted forged{job_, ClosureId(forger_.Below(kClosures)),
                 Attempt{1 + forger_.Below(term), forger_.Below(100)}, "mallory",
                 std::string(16, 'x')};
  if (const auto& current = book_->current(); !current.empty() && forger_.Chance(0.7)) {
    auto it = current.begin();
    std::advance(it, forger_.Below(current.size()));
    forged.closure = it->first;
    forged.attempt = it->second.attempt;
    if (forger_.Chance(0.7)) forged.attempt.n += 1 + forger_.Below(9);
  }
  MixProof(&forged, 0.5, 3);
  if (WasGranted(forged)) return;
  ClosureBook::HeldAttempt held{forged.closure, forged.attempt, true, {}, {}};
  held.proved = IsProved(held, forged.worker, forged.proof);
  if (!book_->RegisterWorker(TaskId(~0ull), {held}).empty())
    Fail(absl::StrCat("I10 an attempt that nobody granted was adopted: c=", forged.closure.value(),
                      " attempt=", forged.attempt.ToString()));
  Count("forged Hello refused");
}

void Cluster::Answered(const Call& call) {
  Worker* w = WorkerById(call.worker);
  if (w == nullptr) return;
  // Each job has its own attempt numbers.
  if (w->book.running() == nullptr || w->book.running()->job != call.job) return;
  const bool current = w->book.running()->attempt == call.attempt;
  const worker::Disposition d = w->book.OnPushAnswer(call.attempt, UpdateIndex(call.update),
                                                     ShardId(call.p), call.answer, call.version);
  if (!current) return;
  switch (d.next) {
    case worker::Next::kSettled: FinishIfSettled(w); break;
    case worker::Next::kWaitForMap:
      w->wait_for[call.p] = std::max(w->wait_for[call.p], d.wait_for);
      break;
    case worker::Next::kBackoff: break;
    case worker::Next::kDropAttempt: {
      Count("attempt superseded");
      Up m;
      m.kind = Up::kDropped;
      m.job = call.job;
      m.closure = call.closure;
      m.attempt = call.attempt;
      if (w->welcomed) w->out.Push(std::move(m));
      break;
    }
    case worker::Next::kFail: Fail("a push failed"); break;
  }
}

// Line 13: a pull changes nothing, (start, vlsn) identifies the values that it returns, and
// returned values never change.
void Cluster::PullOne(Worker* w, std::uint32_t p) {
  const worker::ShardPlace& place = w->book.map().shards[p];
  for (const auto& s : servers_) {
    if (s->identity != place.server || !s->shards[p] || s->shards[p]->job != w->book.map().job)
      continue;
    Cached& cached = w->cache[p];
    if (cached.read.code == ps_server::PullCode::kValues) {
      std::size_t at = 0;
      for (const tensor::SharedBytes& chunk : cached.read.chunks) {
        if (std::memcmp(chunk.bytes.data(), cached.values.data() + at, chunk.bytes.size()) != 0)
          Fail("13 values changed under a reader");
        at += chunk.bytes.size() / sizeof(float);
      }
    }
    const HeldState& held = *s->shards[p];
    const std::uint64_t lsn = held.shard->lsn();
    ps_server::PullResult read = ps_server::ReadShard(
        *held.shard,
        models_[p].PullOf(place.epoch, cached.read.code == ps_server::PullCode::kValues,
                          cached.read.start, cached.read.vlsn));
    if (held.shard->lsn() != lsn) Fail("13 a pull changed the state");
    if (read.code == ps_server::PullCode::kUnchanged) {
      Count("pull unchanged");
      if (std::memcmp(cached.values.data(), held.values.data(),
                      cached.values.size() * sizeof(float)) != 0)
        Fail("13 a pull said unchanged, but values differ");
    } else if (read.code == ps_server::PullCode::kValues) {
      cached.read = std::move(read);
      cached.values.assign(held.values.begin(), held.values.begin() + models_[p].elements());
    }
    return;
  }
}

// An evaluation closure reads the present values of one shard, from the process at the map's
// address.
void Cluster::Evaluate(Worker* w) {
  std::array<std::uint32_t, kShards> left{};
  std::size_t n = 0;
  for (std::uint32_t p = 0; p < kShards; ++p) {
    if (!w->reading->shards[p].read) left[n++] = p;
  }
  if (random_.Chance(0.5)) return;  // it is still computing
  if (n > 0) {
    const std::uint32_t p = left[random_.Below(n)];
    const worker::ShardPlace& place = w->book.map().shards[p];
    std::vector<const HeldState*> there;
    for (const auto& s : servers_) {
      if (s->identity == place.server && s->shards[p] && s->shards[p]->job == w->book.map().job)
        there.push_back(s->shards[p].get());
    }
    if (there.empty()) return;
    const HeldState& held = *there[random_.Below(there.size())];
    const ps_server::PullResult read =
        ps_server::ReadShard(*held.shard, models_[p].PullOf(place.epoch));
    if (read.code != ps_server::PullCode::kValues)
      return;  // STALE: it reads again under a newer map
    Evaluated::OfShard& of = w->reading->shards[p];
    of.read = true;
    of.start = read.start;
    of.vlsn = read.vlsn;
    of.count = held.count;
    std::size_t at = 0;
    for (const tensor::SharedBytes& chunk : read.chunks) {
      std::memcpy(of.values.data() + at, chunk.bytes.data(), chunk.bytes.size());
      at += chunk.bytes.size() / sizeof(float);
    }
    if (n > 1) return;
  }
  const worker::DoneReport report = w->book.Finish();
  w->evaluated[report.work.attempt] = w->reading;
  Trace("worker ", w->process, " evaluated ", report.work.closure.value() & 0xff,
        " attempt=", report.work.attempt.ToString());
  if (!w->welcomed) return;
  Up m;
  m.kind = Up::kDone;
  m.job = report.work.job;
  m.closure = report.work.closure;
  m.attempt = report.work.attempt;
  m.evaluated = w->reading;
  w->out.Push(std::move(m));
}

void Cluster::FinishIfSettled(Worker* w) {
  if (!w->book.MayFinish(w->declared == kUpdates)) return;
  coordinator::UpdateAccount::TouchedLess less = w->book.TouchedLess();
  const worker::DoneReport report = w->book.Finish();
  w->touched_less[report.work.attempt] = less;
  Trace("worker ", w->process, " done c=", report.work.closure.value(),
        " attempt=", report.work.attempt.ToString(), " V0=", report.v0.ToString(),
        " V1=", report.v1.ToString());
  if (!w->welcomed) return;
  Up m;
  m.kind = Up::kDone;
  m.job = report.work.job;
  m.closure = report.work.closure;
  m.attempt = report.work.attempt;
  m.v0 = report.v0;
  m.v1 = report.v1;
  m.touched_less = std::move(less);
  w->out.Push(std::move(m));
}

// ---------------------------------------------------------------- sessions: at the coordinator

// [34], [36] The key of the job, in the first of its records, which is never torn off.
std::string Cluster::KeyOf(JobUid job) const {
  return absl::StrCat("the key of job ", job.value(),
                      IsActive(Mutant::kKeyOfEachLife) ? absl::StrCat(" in life ", lives_) : "");
}

// [20a] A silent owner no longer owns the shard.
void Cluster::Unmap(ShardId p) {
  if (!IsActive(Mutant::kSilentOwnerKept)) Commit(book_->Unmap(p).record);
}

void Cluster::Commit(const Record& record) {
  if (record.empty()) return;
  EG_CHECK(store_->Commit(job_, record).ok());
  const DurableState& now = book_->durable();
  const bool same_life = now.term == before_.term;
  if (same_life || !options_.torn) {
    if (now.term < before_.term || now.version < before_.version)
      Fail("I4 term or map version fell");
    for (std::uint32_t p = 0; p < kShards && p < before_.map.size(); ++p) {
      if (now.map[p].epoch < before_.map[p].epoch || now.map[p].start < before_.map[p].start)
        Fail(absl::StrCat("I4 epoch or start fell: p=", p));
    }
    if (!now.succeeded.ContainsAll(before_.succeeded) || !now.dead.ContainsAll(before_.dead))
      Fail("P2 an ended closure came back");
  }
  if (!now.succeeded.Intersect(now.dead).empty()) Fail("P2 a closure ended twice");
  for (std::uint32_t p = 0; p < kShards; ++p) {
    if (!now.succeeded.ContainsAll(now.todo[p])) Fail("todo holds what has not succeeded");
    Largest("intervals of a todo", now.todo[p].interval_count());
  }
  Largest("intervals of succeeded", now.succeeded.interval_count());
  before_ = now;
  if (!options_.gated || store_->accepted() - durable_ >= kUndurableMax) Settle();
  TellCancelled();
}

void Cluster::TellCancelled() {
  for (const IntervalSet::Interval& i : cancelled_.Intervals()) {
    for (std::uint64_t c = i.begin; c < i.end; ++c) {
      if (told_.Contains(c) || !book_->durable().dead.Contains(c) ||
          !book_->RefusedEverywhere(ClosureId(c)))
        continue;
      Effect effect;
      effect.kind = Effect::kTold;
      effect.closure = c;
      Follow(std::move(effect));
    }
  }
}

void Cluster::Send(Task* t, Down m) {
  if (m.job == JobUid{}) m.job = job_;
  Effect effect;
  effect.task = t->task;
  effect.message = std::move(m);
  Follow(std::move(effect));
}

void Cluster::Follow(Effect effect) {
  const bool early = IsActive(Mutant::kAckBeforeCommit) && effect.kind != Effect::kSweep;
  if (early || (effects_.empty() && store_->accepted() == durable_)) {
    Do(std::move(effect));
    return;
  }
  effect.commit = store_->accepted();
  effects_.push_back(std::move(effect));
}

void Cluster::Do(Effect effect) {
  switch (effect.kind) {
    case Effect::kMessage:
      EachTask([&](Task& t) {
        if (t.connected && t.task == effect.task) t.in.Push(std::move(effect.message));
      });
      break;
    case Effect::kCounted: ++counted_[effect.closure]; break;
    case Effect::kTold: told_.Add(effect.closure); break;
    case Effect::kSweep: sweeps_.push_back(std::move(effect.sweep)); break;
  }
}

// All accepted commits become durable; the effects that waited for them happen in order.
void Cluster::Settle() {
  durable_ = store_->accepted();
  if (options_.gated) {
    settled_ = before_;
  }
  while (!effects_.empty()) {
    Effect effect = std::move(effects_.front());
    effects_.pop_front();
    Do(std::move(effect));
  }
}

bool Cluster::OwnerIs(const Server& s, std::uint32_t p, ShardEpoch epoch) const {
  return p < before_.map.size() && before_.map[p].server == s.identity &&
         before_.map[p].epoch == epoch;
}

std::shared_ptr<const ShardMap> Cluster::CurrentMap() {
  const DurableState& state = book_->durable();
  if (map_ && map_->version == state.version && map_->job == job_) return map_;
  auto map = std::make_shared<ShardMap>();
  map->version = state.version;
  map->job = job_;
  for (const coordinator::ShardOwner& owner : state.map)
    map->shards.push_back({owner.epoch, owner.start, owner.server});
  return map_ = std::move(map);
}

void Cluster::SendMap() {
  for (auto& w : workers_) {
    if (!w->registered) continue;
    Down m;
    m.kind = Down::kMap;
    m.map = CurrentMap();
    Send(w.get(), std::move(m));
  }
}

void Cluster::SendCloses(Server* s) {
  if (sealing_) return;
  for (ClosureBook::CloseOrder& order : book_->MakeCloses(s->task, s->identity)) {
    Down m;
    m.kind = Down::kClose;
    m.p = order.shard.value();
    m.epoch = order.epoch;
    m.version = order.version;
    m.done = std::move(order.done);
    m.refused = std::move(order.refused);
    Send(s, std::move(m));
  }
}

// Sends the messages of a change of the map. `moved` is the state that a move hands over.
void Cluster::SendChange(ClosureBook::MapChange change, Server* to,
                         std::unique_ptr<HeldState> moved) {
  Commit(change.record);
  for (const auto& [shard, epoch] : change.drops) {
    Down m;
    m.kind = Down::kDrop;
    m.p = shard.value();
    m.epoch = epoch;
    Send(to, std::move(m));
  }
  for (const auto& [identity, what] : change.former) {
    Server* holder = ConnectedServer(identity, true);
    if (holder == nullptr) continue;  // it learns of the change when it registers
    Down m;
    m.kind = Down::kDrop;
    m.p = what.first.value();
    m.epoch = what.second;
    Send(holder, std::move(m));
  }
  for (ClosureBook::AssignOrder& order : change.assigns) {
    Down m;
    m.kind = Down::kAssign;
    m.p = order.shard.value();
    m.version = order.version;
    m.epoch = order.epoch;
    m.start = order.start;
    m.key = KeyOf(job_);
    if (moved) {
      m.state = std::move(moved);
      m.state->shard->BecomeOwned(order.epoch, order.start, order.refused);
    } else {
      Count("rollback");
      Count(!order.snapshot           ? "rolled back to the seed"
            : order.snapshot->resumed ? "resumed from a file"
                                      : "rolled back to a file");
      if (order.snapshot && !options_.torn) {
        const IntervalSet lacks =
            book_->durable().succeeded.Minus(order.snapshot->done).Minus(order.snapshot->refused);
        if (!book_->durable().todo[m.p].ContainsAll(lacks.Minus(book_->durable().lost[m.p])) &&
            IsActive(Mutant::kNone))
          Fail(absl::StrCat("21 todo lacks what the snapshot lacks: p=", m.p));
      }
      m.refused = std::move(order.refused);
      m.source = std::move(order.snapshot);
    }
    Trace("assign p=", m.p, " epoch=", m.epoch.ToString(), " start=", m.start.ToString(),
          " to server ", to->process, " from=",
          m.state    ? "a move"
          : m.source ? m.source->Uri()
                     : "the seed",
          " todo=", book_->durable().todo[m.p].ToString());
    Send(to, std::move(m));
  }
  if (change.map_changed) SendMap();
}

// Line 21: begins from the newest durable snapshot, or from the seed.
void Cluster::RollBack(std::uint32_t p, Server* to) {
  VoidEvaluation();
  SendChange(book_->Rollback(ShardId(p), to->identity), to, nullptr);
}

void Cluster::CloseWindow() {
  book_->CloseWindow();
  Trace("start-up window closes");
  for (auto& [task, hello] : std::exchange(waiting_, {})) {
    for (auto& w : workers_) {
      if (w->connected && w->task == task) AtCoordinator(w.get(), std::move(hello));
    }
  }
}

void Cluster::HandleDone(Worker* w, const Up& m) {
  ClosureBook::DoneResult result = book_->OnDone(m.closure, m.attempt, m.v0, m.v1);
  Commit(result.record);
  Trace("Done c=", m.closure.value(), " attempt=", m.attempt.ToString(),
        result.acknowledged ? " acknowledged" : " superseded");
  if (result.counted) {
    touched_less_[m.closure.value()] = m.touched_less;
    Effect effect;
    effect.kind = Effect::kCounted;
    effect.closure = m.closure.value();
    Follow(std::move(effect));
  }
  Down answer;
  answer.kind = Down::kDoneAnswer;
  answer.attempt = m.attempt;
  answer.superseded = !result.acknowledged;
  Send(w, std::move(answer));
  for (auto& s : servers_) {
    if (s->registered && random_.Chance(0.7)) SendCloses(s.get());
  }
}

void Cluster::AtCoordinator(Worker* w, Up m) {
  if (m.kind != Up::kHello && m.job != job_) return;
  switch (m.kind) {
    case Up::kHello: {
      if (const auto term =
              coordinator::BeginAnewWith(book_->durable().term, life_, store_->term(), m.reported);
          term && !IsActive(Mutant::kNoBeginAnew)) {
        BeginAnew(*term, w);
      }
      if (book_->window_open()) {  // no worker gets a map while a shard that the journal forgot may
                                   // be adopted
        waiting_.emplace_back(w->task, std::move(m));
        break;
      }
      w->registered = true;
      Down answer;
      if (!sealing_) {
        std::vector<ClosureBook::HeldAttempt> held;
        for (HeldAttempt& h : m.attempts) {
          if (h.job != job_) continue;
          h.attempt.proved = IsProved(h.attempt, h.worker, h.proof);
          if (!h.attempt.proved)
            Fail(absl::StrCat("26 a granted attempt is not believed: c=",
                              h.attempt.closure.value()));
          held.push_back(std::move(h.attempt));
        }
        answer.adopted = book_->RegisterWorker(w->task, held);
        for (const auto& [closure, attempt] : m.evaluations) {
          for (Evaluation& e : evaluations_) {
            if (e.closure != closure || e.attempt != attempt || e.done) continue;
            e.worker = w->task;
            answer.adopted_evaluations.push_back(attempt);
          }
        }
      }
      for (const TaskId earlier : w->earlier) {
        book_->ReleaseWorker(earlier);
        for (Evaluation& e : evaluations_) {
          if (!e.done && e.worker == earlier) e.attempt = Attempt{};
        }
      }
      w->earlier.clear();
      answer.term = book_->durable().term;
      answer.life = life_;
      answer.map = CurrentMap();
      Send(w, std::move(answer));
      break;
    }
    case Up::kDone:
      if (m.evaluated != nullptr) {
        HandleEvaluated(w, m);
      } else {
        HandleDone(w, m);
      }
      break;
    case Up::kDropped:
      book_->ReleaseAttempt(m.closure, m.attempt);
      for (Evaluation& e : evaluations_) {
        if (!e.done && e.closure == m.closure && e.attempt == m.attempt) e.attempt = Attempt{};
      }
      break;
    case Up::kFailed: {
      const Record record = book_->FailRepair(m.closure, m.attempt);
      if (!record.empty()) Count("repair failed");
      Commit(record);
      break;
    }
    default: break;
  }
}

void Cluster::AtCoordinator(Server* s, Up m) {
  if (m.kind != Up::kHello && m.job != job_) return;
  switch (m.kind) {
    case Up::kHello: {
      if (const auto term =
              coordinator::BeginAnewWith(book_->durable().term, life_, store_->term(), m.reported);
          term && !IsActive(Mutant::kNoBeginAnew)) {
        BeginAnew(*term, s);
      }
      s->registered = true;
      Down answer;
      answer.version = book_->durable().version;
      answer.term = book_->durable().term;
      answer.life = life_;
      Send(s, std::move(answer));
      std::set<JobUid> ended;  // jobs that do not exist, so the server drops their shards
      std::vector<ClosureBook::HeldShard> held;
      std::vector<std::pair<std::uint32_t, ShardEpoch>> stopped;
      for (auto& [job, shard] : m.shards) {
        if (job != job_ || end_told_) {
          if (job != job_) CheckUnknownJob(job);
          ended.insert(job);
        } else {
          if (shard.stopped_in != 0) stopped.emplace_back(shard.shard.value(), shard.epoch);
          held.push_back(std::move(shard));
        }
      }
      for (const JobUid job : ended) {
        Down m2;
        m2.kind = Down::kJobEnded;
        m2.job = job;
        Send(s, std::move(m2));
      }
      if (end_told_) break;
      ClosureBook::ServerRegistration registration =
          book_->RegisterServer(s->identity, held, !sealing_ && !IsActive(Mutant::kRegisterOneWay));
      if (IsActive(Mutant::kRegisterOneWay)) registration.unheld.clear();
      if (IsActive(Mutant::kNoDrop)) {
        registration.change.drops.clear();
        registration.change.former.clear();
      }
      // Adopted or rolled back: its todo may not be empty.
      if (registration.change.map_changed) VoidEvaluation();
      for (std::size_t i = 0; i < registration.change.assigns.size(); ++i) Count("shard not held");
      SendChange(std::move(registration.change), s, nullptr);
      for (const ShardId p : registration.unheld) {
        // Another process of the identity may live, disconnected. It no longer owns the shard, so
        // the updates that it applies are void (seed 6880).
        if (unsealed_.erase(p.value()) > 0) Unmap(p);
      }
      for (const std::uint32_t p : unsealed_) SendSeal(s, p);
      SendCloses(s);
      // The server is leaving. The move that its last session had begun begins again.
      for (const auto& [p, epoch] : stopped) {
        const coordinator::ShardOwner& owner = book_->durable().map[p];
        if (sealing_ || owner.server != s->identity) continue;
        if (owner.epoch != epoch) {
          Count("stopped by a former life");
          continue;
        }
        Count("move begun again");
        Down again;
        again.kind = Down::kRelease;
        again.p = p;
        again.epoch = epoch;
        Send(s, std::move(again));
      }
      break;
    }
    case Up::kAssigned: {
      const coordinator::ShardOwner& owner = book_->durable().map[m.p];
      if (m.ok || owner.server != s->identity || owner.epoch != m.epoch) break;
      if (sealing_) {
        unsealed_.erase(m.p);
        break;
      }
      Count("snapshot given up");
      Trace("gives up ", m.snapshot->Uri());
      Commit(book_->RemoveSnapshots(ShardId(m.p), {m.snapshot->Uri()}));
      RollBack(m.p, s);
      break;
    }
    case Up::kSealed:
      if (!sealing_ || end_told_ || book_->durable().map[m.p].epoch != m.epoch) break;
      if (m.snapshot) {
        cuts_[m.p] = m.snapshot->Uri();
        Commit(book_->AddSnapshot(ShardId(m.p), *std::move(m.snapshot)));
      }
      unsealed_.erase(m.p);
      CheckSealed(false);
      break;
    case Up::kClosed:
      book_->OnClosed(s->task, ShardId(m.p), m.epoch, m.taken);
      TellCancelled();
      break;
    case Up::kSnapshot:
      if (end_told_) break;
      Count("snapshot");
      Commit(book_->AddSnapshot(ShardId(m.p), *std::move(m.snapshot)));
      if (round_.erase(m.p) > 0 && round_.empty()) manifest_due_ = NewestOfAll();
      break;
    case Up::kReleased: {
      // Moves end when sealing begins: the source answers Seal, and an image from before the seal
      // has no owner.
      if (sealing_) break;
      Server* to = servers_[random_.Below(servers_.size())].get();
      if (!to->registered) to = s;
      std::unique_ptr<MemoryStateStore> journal;
      if (options_.torn && !forgotten_ && to != s && random_.Chance(0.1))
        journal = std::make_unique<MemoryStateStore>(*store_);
      ClosureBook::MapChange change = book_->Move(ShardId(m.p), m.epoch, to->identity);
      if (change.record.empty()) break;
      Count("move");
      if (m.state->shard->start() != change.assigns.front().start)
        Fail(absl::StrCat("5 a move changed start: p=", m.p));
      SendChange(std::move(change), to, std::move(m.state));
      Down freed;  // the source drops the state that it has kept
      freed.kind = Down::kDrop;
      freed.p = m.p;
      freed.epoch = m.epoch;
      Send(s, std::move(freed));
      if (journal) {
        forgotten_ = Forgotten{std::move(journal), events_ + static_cast<int>(random_.Below(200)),
                               s->process, random_.Chance(0.5) ? to->process : 0};
        Disconnect(s);
      }
      break;
    }
    default: break;
  }
}

// ---------------------------------------------------------------- sessions: at a task

void Cluster::AtTask(Server* s, Down m) {
  if (m.kind != Down::kJobEnded && m.kind != Down::kRegistered && s->version_of != m.job) {
    s->version_of = m.job;
    s->version = MapVersion{};
  }
  s->version = std::max(s->version, m.version);
  HeldState* const held = s->Holds(m.job, m.p, m.epoch);
  std::optional<Server::Loading>& loading = s->loading[m.p];
  const bool is_loading = loading && loading->job == m.job && loading->epoch == m.epoch;
  Up answer;
  answer.job = m.job;
  answer.p = m.p;
  answer.epoch = m.epoch;
  switch (m.kind) {
    case Down::kRegistered:
      s->welcomed = true;
      Registered(s, m);
      for (Up& assigned : std::exchange(s->unsent, {})) s->out.Push(std::move(assigned));
      break;
    case Down::kAssign: {
      std::unique_ptr<HeldState>& place = s->shards[m.p];
      if (place && place->job != m.job) s->others.emplace_back(m.p, std::move(place));
      place.reset();
      loading.reset();
      s->sealed[m.p].reset();
      s->durable_file[m.p].reset();
      s->guards.try_emplace(m.job, std::make_unique<grants::GrantGuard>(m.job, m.key));
      if (m.state) {
        place = std::move(m.state);
        CheckState(*place, m.p, random_.Chance(0.25));
      } else {
        loading =
            Server::Loading{m.job, m.epoch, m.start, std::move(m.refused), std::move(m.source)};
      }
      break;
    }
    case Down::kDrop:
      if (is_loading) loading.reset();
      if (held == nullptr) break;
      s->shards[m.p].reset();
      s->sealed[m.p].reset();
      break;
    case Down::kSeal:
      answer.kind = Up::kSealed;
      if (is_loading) loading.reset();  // the file that it loads is the last cut
      if (held != nullptr) {
        Count("sealed");
        Trace("server ", s->process, " p=", m.p, " is sealed");
        held->shard->Seal();
        s->sealed[m.p] = held->shard->ledger();
        answer.snapshot = MakeDurable(
            held->Restored(models_[m.p], m.epoch, held->shard->start(), {}, false), m.p);
        CheckState(*files_.at(answer.snapshot->Uri()).state, m.p, true);
      }
      s->out.Push(std::move(answer));
      break;
    case Down::kJobEnded: DropJob(s, m.job); break;
    case Down::kClose: {
      answer.kind = Up::kClosed;
      HeldState* const closes =
          IsActive(Mutant::kCloseOfAnyTime) && s->shards[m.p] ? s->shards[m.p].get() : held;
      answer.taken =
          closes != nullptr && closes->shard->Close(m.epoch, m.version, m.done, m.refused);
      if (answer.taken) {
        Trace("server ", s->process, " p=", m.p, " closes done=", m.done.ToString(),
              " refused=", m.refused.ToString());
        CheckState(*closes, m.p, false);
        if (m.job == job_ && OwnerIs(*s, m.p, m.epoch)) CheckBounds(*closes, m.p);
      }
      s->out.Push(std::move(answer));
      break;
    }
    case Down::kWantSnapshot: {
      if (held == nullptr) break;
      for (Server::Order& order : s->orders) {
        if (order.p != m.p || order.job != m.job || order.epoch != m.epoch) continue;
        order.session = s->task;
        return;
      }
      s->orders.push_back({m.job, m.p, m.epoch, s->task, nullptr});
      break;
    }
    case Down::kRelease:
      if (held == nullptr) break;
      answer.kind = Up::kReleased;
      // The source stops and keeps the state until a Drop; an image like that of a file travels
      // [22].
      held->shard->Stop();
      if (held->stopped_in == 0) held->stopped_in = s->highest_term;
      answer.state = held->Restored(models_[m.p], m.epoch, held->shard->start(), {}, false);
      s->out.Push(std::move(answer));
      break;
    default: break;
  }
}

void Cluster::DropJob(Server* s, JobUid job) {
  for (std::uint32_t p = 0; p < kShards; ++p) {
    if (s->shards[p] && s->shards[p]->job == job) {
      s->shards[p].reset();
      s->sealed[p].reset();
    }
    if (s->loading[p] && s->loading[p]->job == job) s->loading[p].reset();
  }
  std::erase_if(s->others, [&](const auto& other) { return other.second->job == job; });
  std::erase_if(s->orders, [&](const Server::Order& order) { return order.job == job; });
}

// ---------------------------------------------------------------- files [27, 28, 30]

// Does slow work: one step of a server's I/O thread, or of the coordinator's file thread.
void Cluster::Disk() {
  const std::size_t i = random_.Below(servers_.size() + 1);
  if (i == servers_.size()) {
    if (book_) NextFileWork();
    return;
  }
  Server* s = servers_[i].get();
  const std::size_t first = random_.Below(kShards);
  for (std::uint32_t k = 0; k < kShards; ++k) {
    const auto p = static_cast<std::uint32_t>((first + k) % kShards);
    if (s->loading[p]) {
      FinishLoading(s, p);
      return;
    }
  }
  if (!s->orders.empty()) WriteNext(s);
}

void Cluster::FinishLoading(Server* s, std::uint32_t p) {
  const Server::Loading loading = *std::exchange(s->loading[p], std::nullopt);
  Up answer;
  answer.kind = Up::kAssigned;
  answer.job = loading.job;
  answer.p = p;
  answer.epoch = loading.epoch;
  answer.snapshot = loading.source;
  std::unique_ptr<HeldState>& held = s->shards[p];
  if (!loading.source) {
    held = HeldState::FromSeed(models_[p], loading.epoch, loading.start, loading.refused);
  } else if (const auto file = files_.find(loading.source->Uri());
             file == files_.end() || file->second.health != File::kWhole) {
    Count(file == files_.end() ? "file not there" : "file damaged");
    answer.ok = false;
  } else {
    held = file->second.state->Restored(models_[p], loading.epoch, loading.start, loading.refused,
                                        loading.source->resumed);
  }
  if (held) {
    held->job = loading.job;
    CheckState(*held, p, random_.Chance(0.25));
  }
  Trace("server ", s->process, " p=", p, " epoch=", loading.epoch.ToString(),
        answer.ok ? " is loaded" : " cannot be loaded");
  if (s->welcomed) {
    s->out.Push(std::move(answer));
  } else {
    s->unsent.push_back(std::move(answer));
  }
}

// Each call advances an order by one step: the cut is taken; then its file becomes durable and is
// reported in the session of the order.
void Cluster::WriteNext(Server* s) {
  Server::Order& order = s->orders.front();
  const std::uint32_t p = order.p;
  const HeldState* held = s->Holds(order.job, p, order.epoch);
  const auto report = [&](const Snapshot& snapshot) {
    Up m;
    m.kind = Up::kSnapshot;
    m.job = order.job;
    m.p = p;
    m.snapshot = snapshot;
    if (s->connected && s->task == order.session) s->out.Push(std::move(m));
  };
  if (!order.cut) {
    std::optional<Snapshot>& last = s->durable_file[p];
    if (held != nullptr && last && last->epoch == order.epoch && last->lsn == held->shard->lsn()) {
      Count("snapshot of an unchanged shard");
      if (const auto file = files_.find(last->Uri());
          file != files_.end() && !SameUpdates(*file->second.state, *held))
        Fail(absl::StrCat("27 a shard changed and its lsn did not: p=", p));
      report(*last);
    } else if (held != nullptr) {
      if (!models_[p].slot()) {
        order.cut = held->Restored(models_[p], order.epoch, held->shard->start(), {}, false);
      } else if (!order.slicing) {
        // Some cuts are too small for the rows that pushes change between their slices.
        order.slicing = Server::Order::Slicing{
            held->shard->Cut(random_.Chance(0.2) ? 100 : ps_server::kPreimageBytesMax),
            held->Facts()};
        order.slicing->cut.tables = models_[p].NewTables(order.slicing->cut);
        return;
      } else if (!NextSlices(*held, &order)) {
        return;
      }
      CheckState(*order.cut, p, random_.Chance(0.25));
      if (IsActive(Mutant::kReportedBeforeDurable)) report(Describe(*order.cut, p));
      return;
    }
    s->orders.erase(s->orders.begin());
    return;
  }
  if (IsActive(Mutant::kCutInTwoTurns) && held != nullptr) {
    const ps_server::Ledger ledger = order.cut->shard->ledger();
    order.cut = held->Restored(models_[p], order.epoch, held->shard->start(), {}, false, &ledger);
    CheckState(*order.cut, p, false);
  }
  const Snapshot snapshot = MakeDurable(std::move(order.cut), p);
  if (held != nullptr) s->durable_file[p] = snapshot;
  if (!IsActive(Mutant::kReportedBeforeDurable)) report(snapshot);
  s->orders.erase(s->orders.begin());
}

// Captures a few slices of a slot's cut. Returns true after the last one: the cut is whole. A cut
// that was dropped (pushes changed too many rows, or another cut was taken for a move or at the
// end) begins again.
bool Cluster::NextSlices(const HeldState& held, Server::Order* order) {
  Server::Order::Slicing& slicing = *order->slicing;
  for (std::uint64_t n = 1 + random_.Below(3); n > 0; --n) {
    const auto slice = held.shard->NextSlice(slicing.cut.serial, 1 + random_.Below(200));
    if (!slice.ok()) {
      Count("cut of a slot overtaken");
      order->slicing.reset();
      return false;
    }
    if (!slice->end) {
      ShardModel::TakeSlice(*slice, slicing.cut.tables);
      continue;
    }
    Count(held.shard->lsn() == slicing.cut.lsn ? "cut of a slot"
                                               : "cut of a slot with pushes meanwhile");
    order->cut = slicing.facts->RestoredFrom(models_[order->p], std::move(slicing.cut),
                                             order->epoch, held.shard->start(), {}, false);
    order->slicing.reset();
    return true;
  }
  return false;
}

Snapshot Cluster::Describe(const HeldState& cut, std::uint32_t p) const {
  const ps_server::Shard& shard = *cut.shard;
  Snapshot snapshot;
  snapshot.folder = absl::StrCat("job-", cut.job.value());
  snapshot.file = absl::StrCat(p, "-", shard.epoch().ToString(), "-", shard.lsn());
  snapshot.job = cut.job;
  snapshot.epoch = shard.epoch();
  snapshot.start = shard.start();
  snapshot.lsn = shard.lsn();
  snapshot.vlsn = shard.vlsn();
  snapshot.done = shard.ledger().done();
  snapshot.refused = shard.ledger().refused();
  return snapshot;
}

Snapshot Cluster::MakeDurable(std::unique_ptr<HeldState> cut, std::uint32_t p) {
  Snapshot snapshot = Describe(*cut, p);
  Trace("file ", snapshot.Uri(), " is durable");
  File& file = files_[snapshot.Uri()];
  if (file.state && !SameUpdates(*file.state, *cut))
    Fail(absl::StrCat("27 one name, two contents: ", snapshot.Uri()));
  file.p = p;
  file.state = std::move(cut);
  file.health = File::kWhole;
  return snapshot;
}

// A checkpoint: orders a cut from each owner, and orders it again from each owner that has not
// answered.
void Cluster::OrderCuts() {
  if (manifest_due_) return;
  if (round_.empty()) {
    for (std::uint32_t p = 0; p < kShards; ++p) round_.insert(p);
  }
  for (const std::uint32_t p : round_) {
    const coordinator::ShardOwner& owner = book_->durable().map[p];
    Server* s = owner.server.empty() ? nullptr : ConnectedServer(owner.server, true);
    if (s == nullptr || !random_.Chance(0.8)) continue;
    Down m;
    m.kind = Down::kWantSnapshot;
    m.p = p;
    m.epoch = owner.epoch;
    Send(s, std::move(m));
  }
}

std::optional<std::vector<Snapshot>> Cluster::NewestOfAll() const {
  std::vector<Snapshot> newest;
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const Snapshot* snapshot = book_->NewestSnapshot(ShardId(p));
    if (snapshot == nullptr) return std::nullopt;
    newest.push_back(*snapshot);
  }
  return newest;
}

void Cluster::NextFileWork() {
  if (!sweeps_.empty()) {
    const Sweep sweep = std::move(sweeps_.front());
    sweeps_.pop_front();
    RunSweep(sweep);
  } else if (manifest_due_) {
    SaveManifest(*std::exchange(manifest_due_, std::nullopt));
  }
}

// Saves a manifest (line 27), and sweeps files (line 30).
void Cluster::SaveManifest(std::vector<Snapshot> shards) {
  std::uint64_t number = 1;
  for (const ManifestFile& m : manifests_) {
    if (m.job == job_) number = std::max(number, m.number + 1);
  }
  for (const Snapshot& snapshot : shards) {
    if (!options_.torn && !files_.contains(snapshot.Uri()) && !given_up_.contains(snapshot.Uri()))
      Fail(absl::StrCat("27 a manifest names a file that is not there: ", snapshot.Uri()));
  }
  Count("manifest");
  Trace("manifest ", number, " is durable");
  manifests_.push_back({job_, number, std::move(shards), evaluated_, false});
  std::size_t kept = 0;
  std::set<std::string> needed;
  for (std::size_t i = manifests_.size(); i-- > 0;) {
    const ManifestFile& m = manifests_[i];
    if (m.job != job_) continue;
    if (kept >= kManifestsKept) {
      manifests_.erase(manifests_.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (!m.damaged) {
      ++kept;
      for (const Snapshot& snapshot : m.shards) needed.insert(snapshot.Uri());
    }
  }
  if (IsActive(Mutant::kDeletesNamed)) needed.clear();
  Effect effect;
  effect.kind = Effect::kSweep;
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const std::vector<Snapshot>& known = book_->durable().snapshots[p];
    std::set<std::string> remove;
    for (std::size_t i = 0; i + 1 < known.size(); ++i) {
      if (!needed.contains(known[i].Uri())) remove.insert(known[i].Uri());
    }
    if (!remove.empty()) Commit(book_->RemoveSnapshots(ShardId(p), remove));
    for (const Snapshot& snapshot : book_->durable().snapshots[p]) {
      needed.insert(snapshot.Uri());
      if (snapshot.job == job_)
        effect.sweep.newest[p] = std::max(effect.sweep.newest[p], {snapshot.epoch, snapshot.lsn});
    }
  }
  effect.sweep.needed = std::move(needed);
  if (IsActive(Mutant::kDeletesBeforeDurable)) {
    RunSweep(effect.sweep);
  } else {
    Follow(std::move(effect));
  }
}

void Cluster::RunSweep(const Sweep& sweep) {
  for (auto it = files_.begin(); it != files_.end();) {
    const auto here = it++;
    const HeldState& state = *here->second.state;
    if (state.job != job_ || sweep.needed.contains(here->first)) continue;
    if (std::pair(state.shard->epoch(), state.shard->lsn()) > sweep.newest[here->second.p])
      continue;  // it is being reported
    for (const ManifestFile& m : manifests_) {
      const bool names = std::any_of(m.shards.begin(), m.shards.end(),
                                     [&](const Snapshot& s) { return s.Uri() == here->first; });
      if (names && !m.damaged && here->second.health == File::kWhole)
        Fail(absl::StrCat("30 a file is deleted that a kept manifest names: ", here->first,
                          " manifest=", m.number));
    }
    Count("file deleted");
    Trace("file ", here->first, " is deleted");
    if (here->second.health != File::kWhole) given_up_.insert(here->first);
    files_.erase(here);
  }
}

void Cluster::Damage() {
  if (!manifests_.empty() && random_.Chance(0.4)) {
    manifests_[random_.Below(manifests_.size())].damaged = true;
    Count("manifest damaged");
    return;
  }
  if (files_.empty()) return;
  auto it = files_.begin();
  std::advance(it, random_.Below(files_.size()));
  it->second.health = random_.Chance(0.5) ? File::kBadInside : File::kBadAtTheEnds;
  Trace("file ", it->first, " is damaged");
}

const ManifestFile* Cluster::ResumePoint() const {
  const auto looks_whole = [&](const Snapshot& snapshot) {
    const auto file = files_.find(snapshot.Uri());
    return file != files_.end() && file->second.health != File::kBadAtTheEnds;
  };
  for (auto m = manifests_.rbegin(); m != manifests_.rend(); ++m) {
    if (!m->damaged && std::all_of(m->shards.begin(), m->shards.end(), looks_whole)) return &*m;
  }
  return nullptr;
}

// Line 28: a new job continues from a manifest alone. Either the cluster was lost with its store
// (some tasks survive and keep their state), or the cluster survives and the job had ended.
void Cluster::Resume(bool cluster_survives) {
  if (job_.value() >= kJobsMax) return;
  const ManifestFile* from = ResumePoint();
  if (from == nullptr) return;
  Count(cluster_survives ? "resumed after the end" : "resumed after the loss of the cluster");
  Trace("resumes from manifest ", from->number, " of job ", from->job.value());
  std::vector<Snapshot> snapshots = from->shards;
  // A barrier with a metric in the manifest is not evaluated again, although closures before it may
  // be granted again: the files may hold a part of the updates after it.
  evaluated_ = from->evaluated;
  Term term;
  if (cluster_survives) {
    Settle();
    term = book_->durable().term;
    EG_CHECK(store_->Remove(job_).ok());
    durable_ = store_->accepted();
  } else {
    if (book_) KillCoordinator();
    EachTask([&](Task& t) { Disconnect(&t); });
    for (auto& s : servers_) {
      if (random_.Chance(0.7)) s = nullptr;
    }
    std::erase(servers_, nullptr);
    while (servers_.size() < kServers) NewServer(absl::StrCat(identities_++));
    for (auto& w : workers_) {
      if (random_.Chance(0.7)) w = nullptr;
    }
    std::erase(workers_, nullptr);
    while (workers_.size() < kWorkers) NewWorker();
    store_ = std::make_unique<MemoryStateStore>(
        MemoryStateStore::Options{.jobs_max = 4, .torn_max = kTailKept});
    jobs_given_up_ = true;  // an operator passes --forget-unknown-jobs
    backup_.reset();
    forgotten_.reset();
    unsynced_.reset();
    lives_ = 0;
    newest_term_ = 0;
    EachTask([&](Task& t) {
      t.earlier.clear();
      newest_term_ = std::max(newest_term_, t.highest_term);
    });
  }
  job_ = JobUid(job_.value() + 1);
  sealing_ = end_told_ = false;
  evaluations_.clear();
  unsealed_.clear();
  cuts_ = {};
  round_.clear();
  manifest_due_.reset();
  sweeps_.clear();
  answered_ = {};
  lsn_ = {};
  if (cluster_survives) {
    book_ = std::make_unique<ClosureBook>(
        ClosureBook::Options{kClosures, kShards, options_.open_max}, DurableState{});
    settled_ = before_ = book_->durable();
    Commit(book_->BeginLife(term));
  } else {
    StartCoordinator();
  }
  book_->CloseWindow();  // nobody holds anything of this job
  taken_over_ = coordinator::UpdateAccount::Before{std::vector<std::uint64_t>{}, true, false};
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const ps_server::Shard& shard = *files_.at(snapshots[p].Uri()).state->shard;
    taken_over_->updates->push_back(UpdatesIn(shard));
    taken_over_->whole = taken_over_->whole && shard.ledger().open().empty() &&
                         snapshots[p].done == snapshots[0].done;
    const ps_server::Ledger& ledger = shard.ledger();
    resumed_open_[p] = ledger.open().size();
    resumed_intervals_[p] = ledger.done().interval_count();
    snapshots[p].resumed = true;
  }
  Commit(book_->ResumeFrom(std::move(snapshots)));
  Settle();
  const DurableState& state = book_->durable();
  book_->SetNewLimit(Barrier());
  cancelled_ = state.dead;
  resumed_ = state.succeeded;
  told_.Clear();
  for (std::uint32_t c = 0; c < kClosures; ++c) counted_[c] = state.succeeded.Contains(c) ? 1 : 0;
}

void Cluster::AtTask(Worker* w, Down m) {
  switch (m.kind) {
    case Down::kRegistered: {
      w->welcomed = true;
      Registered(w, m);
      std::set<Attempt> adopted(m.adopted_evaluations.begin(), m.adopted_evaluations.end());
      for (const Attempt attempt : m.adopted_evaluations) {
        if (w->book.Holds(attempt)) continue;
        Up dropped;
        dropped.kind = Up::kDropped;
        dropped.job = m.job;
        dropped.attempt = attempt;
        w->out.Push(std::move(dropped));
      }
      for (const ClosureBook::HeldAttempt& held : m.adopted) adopted.insert(held.attempt);
      w->book.OnRegistered(m.term, adopted);
      for (const ClosureBook::HeldAttempt& held : m.adopted) {
        if (w->book.Holds(held.attempt)) continue;
        Up dropped;  // the attempt was dropped since the Hello
        dropped.kind = Up::kDropped;
        dropped.job = m.job;
        dropped.closure = held.closure;
        dropped.attempt = held.attempt;
        w->out.Push(std::move(dropped));
      }
      OnMap(w, *m.map);
      for (const worker::DoneReport& report : w->book.Unanswered()) {
        Up done;
        done.kind = Up::kDone;
        done.job = report.work.job;
        done.closure = report.work.closure;
        done.attempt = report.work.attempt;
        done.v0 = report.v0;
        done.v1 = report.v1;
        if (report.work.kind == worker::WorkKind::kEvaluate)
          done.evaluated = w->evaluated.at(report.work.attempt);
        if (report.work.kind == worker::WorkKind::kTrain)
          done.touched_less = w->touched_less.at(report.work.attempt);
        w->out.Push(std::move(done));
      }
      break;
    }
    case Down::kMap: OnMap(w, *m.map); break;
    case Down::kGrant: w->book.OnGrant(std::move(m.work)); break;
    case Down::kDoneAnswer:
      w->book.OnDoneAnswer(m.attempt, m.superseded);
      w->evaluated.erase(m.attempt);
      w->touched_less.erase(m.attempt);
      break;
    case Down::kJobEnded:
      w->book.DropJob(m.job);
      w->evaluated.clear();
      w->touched_less.clear();
      break;
    default: break;
  }
}

// Versions and tags of two jobs cannot be compared.
void Cluster::OnMap(Worker* w, const ShardMap& map) {
  if (map.job != w->book.map().job) {
    w->wait_for = {};
    w->cache = {};
  }
  w->book.OnMap(map);
}

// Checks I4 for the lives that a task has seen.
void Cluster::Registered(Task* t, const Down& m) {
  if (m.term.value() < t->highest_term ||
      (m.term.value() == t->highest_term && m.life != t->life && t->life != 0)) {
    Fail(absl::StrCat("I4 the term fell for a task: seen=", t->highest_term,
                      " got=", m.term.value()));
  }
  t->highest_term = m.term.value();
  t->life = m.life;
}

// ---------------------------------------------------------------- evaluation, a barrier [29]

void Cluster::Advance() {
  if (!options_.evaluate || !evaluations_.empty() || evaluated_ * options_.epoch >= kClosures ||
      !book_->BarrierReached(Barrier()))
    return;
  ++evaluation_rounds_;
  for (std::uint32_t i = 0; i < kEvaluations; ++i) {
    evaluations_.push_back({ClosureId((evaluation_rounds_ << 32) + i), {}, {}, false, nullptr});
  }
  Trace("evaluation begins: round=", evaluation_rounds_, " closures=", Barrier());
}

void Cluster::GrantEvaluation(Worker* w) {
  std::size_t in_hand = 0;
  for (const Evaluation& e : evaluations_)
    in_hand += !e.done && e.attempt != Attempt{} && e.worker == w->task;
  if (in_hand >= kInHand) return;
  for (Evaluation& e : evaluations_) {
    if (e.done || e.attempt != Attempt{}) continue;
    e.attempt = book_->NextAttempt();
    e.worker = w->task;
    Down m;
    m.kind = Down::kGrant;
    m.work = Work{job_, e.closure, e.attempt, worker::WorkKind::kEvaluate, true, {}};
    Send(w, std::move(m));
    return;
  }
}

void Cluster::HandleEvaluated(Worker* w, const Up& m) {
  Down answer;
  answer.kind = Down::kDoneAnswer;
  answer.attempt = m.attempt;
  answer.superseded = true;
  bool all = !evaluations_.empty();
  for (Evaluation& e : evaluations_) {
    if (!e.done && !sealing_ && e.closure == m.closure && e.attempt == m.attempt &&
        e.worker == w->task) {
      e.done = true;
      e.result = m.evaluated;
      answer.superseded = false;
    }
    all &= e.done;
  }
  Send(w, std::move(answer));
  if (all) FinishEvaluation();
}

// Checks that the evaluation read all updates of the closures before the barrier, and no others.
void Cluster::FinishEvaluation() {
  const DurableState& state = book_->durable();
  for (std::uint32_t p = 0; p < kShards; ++p) {
    for (const Evaluation& e : evaluations_) {
      const Evaluated::OfShard& of = e.result->shards[p];
      for (std::uint32_t c = 0; c < kClosures; ++c) {
        for (std::uint32_t u = 0; u < kUpdates; ++u) {
          const int n = of.count[c * kUpdates + u],
                    want = c < Barrier() ? touch_[p][c] >> u & 1 : 0;
          const bool at_most = state.dead.Contains(c) || state.lost[p].Contains(c);
          if (at_most ? n > 1 : n != want) {
            Fail(absl::StrCat(
                "29 an evaluation read values without an update, or with one too many: c=", c,
                " u=", u, " p=", p, " want=", want, " got=", n));
          }
        }
      }
      if (state.dead.empty() && of.values != evaluations_.front().result->shards[p].values)
        Fail("29 two closures of an evaluation read different values");
    }
  }
  Count("evaluation");
  Trace("evaluation ends: closures=", Barrier());
  evaluations_.clear();
  Settle();
  ++evaluated_;
  book_->SetNewLimit(Barrier());
}

void Cluster::VoidEvaluation() {
  if (evaluations_.empty() || IsActive(Mutant::kEvalSurvivesRollback)) return;
  Count("evaluation void");
  for (const Evaluation& e : evaluations_) {
    for (auto& w : workers_) {
      if (e.attempt == Attempt{} || !w->registered || w->task != e.worker) continue;
      Down m;
      m.kind = Down::kDoneAnswer;
      m.attempt = e.attempt;
      m.superseded = true;
      Send(w.get(), std::move(m));
    }
  }
  evaluations_.clear();
}

// ---------------------------------------------------------------- the end before the plan [20a]

void Cluster::BeginSeal() {
  Count("ended early");
  Trace("the user cancels the job");
  Settle();
  sealing_ = true;
  evaluations_.clear();
  for (auto& w : workers_) {
    if (!w->registered) continue;
    Down m;
    m.kind = Down::kJobEnded;
    Send(w.get(), std::move(m));
  }
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const std::string& identity = book_->durable().map[p].server;
    if (identity.empty()) continue;
    unsealed_.insert(p);
    if (Server* s = ConnectedServer(identity, true)) SendSeal(s, p);
  }
}

void Cluster::SendSeal(Server* s, std::uint32_t p) {
  const coordinator::ShardOwner& owner = book_->durable().map[p];
  if (owner.server != s->identity) return;
  Down m;
  m.kind = Down::kSeal;
  m.p = p;
  m.epoch = owner.epoch;
  Send(s, std::move(m));
}

// Unmaps silent owners, whose later updates are void, and tells the user of the end.
void Cluster::CheckSealed(bool out_of_time) {
  if (end_told_) return;
  if (out_of_time) {
    for (const std::uint32_t p : unsealed_) {
      Count("silent owner unmapped");
      Unmap(ShardId(p));
    }
    unsealed_.clear();
  }
  if (!unsealed_.empty() || book_->window_open()) return;
  Trace("the user is told of the end");
  // Of earlier files, because manifests are saved in the order of their rounds.
  manifest_due_.reset();
  if (auto newest = NewestOfAll()) SaveManifest(*std::move(newest));
  Settle();
  end_told_ = true;
  for (auto& s : servers_) {
    if (!s->registered) continue;
    Down m;
    m.kind = Down::kJobEnded;
    Send(s.get(), std::move(m));
  }
}

// Checks the files that a resume would find (line 28): they are whole cuts, and refuse only
// closures that the user cancelled or the job lost.
void Cluster::CheckSealedEnd() {
  const DurableState& state = book_->durable();
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const auto cut = files_.find(cuts_[p]);
    if (cuts_[p].empty() || cut == files_.end()) continue;
    CheckState(*cut->second.state, p, true);
    if (options_.torn) continue;  // the journal may have forgotten the reason
    const IntervalSet refused =
        cut->second.state->shard->ledger().refused().Minus(state.dead).Minus(state.lost[p]);
    if (!refused.empty())
      Fail(absl::StrCat("20a the last cut refuses what nobody cancelled: p=", p,
                        " refused=", refused.ToString()));
  }
}

// ---------------------------------------------------------------- checks

void Cluster::CheckState(const HeldState& state, std::uint32_t p, bool replay) {
  Fail(state.CheckValues(models_[p]));
  Fail(state.CheckLedger(touch_[p]));
  if (replay) Fail(state.CheckReplay(models_[p]));
}

// Checks I6, and I4 for the state of an owner.
void Cluster::CheckBounds(const HeldState& state, std::uint32_t p) {
  const MapVersion start = state.shard->start();
  if (start == lsn_[p].first && state.shard->lsn() < lsn_[p].second)
    Fail(absl::StrCat("I4 lsn fell within one start: p=", p));
  if (start < lsn_[p].first && !options_.torn) Fail(absl::StrCat("I4 start fell: p=", p));
  lsn_[p] = {start, state.shard->lsn()};
  // A journal that forgot the end of closures has more open than it knows.
  if (options_.torn) return;
  std::size_t open = 0;
  for (const auto& [c, bits] : state.shard->ledger().open())
    open += !before_.succeeded.Contains(c.value()) && !before_.dead.Contains(c.value());
  Largest("closures open at a shard", open);
  Largest("intervals of done", state.shard->ledger().done().interval_count());
  Largest("bytes of a ledger", state.shard->ledger().MemoryBytes());
  if (open > options_.open_max + resumed_open_[p])
    Fail(absl::StrCat("I6 more closures are open than were ever granted together: p=", p,
                      " open=", open));
  const std::size_t intervals = state.shard->ledger().done().interval_count();
  // The holes of `done` are closures that are granted and not ended, dead, in todo or lost here, or
  // ended since the Close. There is one interval more than holes.
  IntervalSet holes = before_.succeeded.Minus(state.shard->ledger().done()).Union(before_.dead);
  if (intervals > options_.open_max + holes.interval_count() + 1 + resumed_intervals_[p])
    Fail(absl::StrCat("I6 done has more intervals than its holes explain: p=", p));
}

bool Cluster::Finished() {
  if (sealing_) return end_told_ && book_ && calls_.empty();
  if (!book_ || !book_->Quiet() || (options_.evaluate && evaluated_ * options_.epoch < kClosures))
    return false;
  bool here = true;
  EachTask([&](Task& t) { here &= t.registered || !t.connected; });
  if (!here) return false;
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const coordinator::ShardOwner& owner = book_->durable().map[p];
    Server* s = ConnectedServer(owner.server, true);
    const HeldState* held = s == nullptr ? nullptr : s->Holds(job_, p, owner.epoch);
    if (held == nullptr) return false;
    // Ended closures are closed at their owner [24].
    const DurableState& state = book_->durable();
    if (!held->shard->ledger().done().ContainsAll(state.succeeded.Minus(state.lost[p])))
      return false;
    if (!held->shard->ledger().refused().ContainsAll(state.dead)) return false;
  }
  // No server with a session holds a shard of another owner [25].
  for (const auto& s : servers_) {
    if (!s->registered) continue;
    if (!s->others.empty()) return false;
    for (std::uint32_t p = 0; p < kShards; ++p) {
      if (s->loading[p] || (s->shards[p] && !OwnerIs(*s, p, s->shards[p]->shard->epoch())))
        return false;
    }
  }
  return true;
}

// [38] Returns the account at the end of a job, from the reports that were counted.
coordinator::UpdateAccount Cluster::AccountOf(const DurableState& state) {
  coordinator::UpdateAccount account;
  for (std::uint64_t c = 0; c < kClosures; ++c) {
    if (!state.succeeded.Contains(c) || resumed_.Contains(c)) continue;
    if (const absl::Status status =
            coordinator::UpdateAccount::Check(touched_less_[c], kShards, kUpdates);
        !status.ok())
      Fail(absl::StrCat("I11 a worker's report is refused: ", status.message()));
    account.Count(kUpdates, touched_less_[c]);
  }
  if (taken_over_) account.TakeOver(*taken_over_);
  return account;
}

// Checks I7, and once more I1 to I3.
void Cluster::CheckEnd() {
  const DurableState& state = book_->durable();
  if (state.succeeded.size() + state.dead.size() != kClosures) Fail("P2 a closure has not ended");
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const HeldState& held = *ConnectedServer(state.map[p].server, true)->shards[p];
    CheckState(held, p, true);
    for (std::uint32_t c = 0; c < kClosures; ++c) {
      for (std::uint32_t u = 0; u < kUpdates; ++u) {
        const int n = held.count[c * kUpdates + u];
        const int want = touch_[p][c] >> u & 1;
        const bool at_most = state.dead.Contains(c) || state.lost[p].Contains(c);
        if (at_most ? n > want : n != want)
          Fail(absl::StrCat("I7 not exactly once: c=", c, " u=", u, " p=", p, " want=", want,
                            " got=", n));
      }
    }
  }
  for (std::uint32_t c = 0; c < kClosures; ++c) {
    if (!options_.torn && counted_[c] != (state.succeeded.Contains(c) ? 1 : 0))
      Fail(absl::StrCat("P2 metrics counted ", counted_[c], " times: c=", c));
  }
  std::vector<coordinator::UpdateAccount::Shard> shards;
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const bool by_plan = std::all_of(touch_[p].begin(), touch_[p].end(), [](std::uint8_t bits) {
      return bits == (1u << kUpdates) - 1;
    });
    shards.push_back({p, absl::StrCat("shard ", p), by_plan,
                      UpdatesIn(*ConnectedServer(state.map[p].server, true)->shards[p]->shard)});
  }
  const auto finding = AccountOf(state).Compare(
      PlanOfWalk(), {state.succeeded, state.dead, resumed_, state.lost}, shards);
  const bool unharmed =
      state.dead.empty() && !taken_over_ &&
      std::all_of(state.lost.begin(), state.lost.end(), [](const auto& l) { return l.empty(); });
  if (finding.verdict == coordinator::UpdateAccount::Verdict::kDifferent)
    Fail(absl::StrCat("I11 an honest job would fail: ", finding.difference));
  if (unharmed && finding.verdict != coordinator::UpdateAccount::Verdict::kExact)
    Fail("I11 an honest job that lost nothing is not called exact");
  Count(finding.verdict == coordinator::UpdateAccount::Verdict::kExact
            ? "updates compared: exact"
            : "updates compared: within bounds");
  if (!options_.torn) {
    const auto stored = store_->Load(job_);
    if (!stored.ok() || !(*stored == state)) Fail("the store does not hold the state");
  }
}

WalkResult Cluster::Run() {
  for (int i = 0; i < options_.fault_events && violation_.empty(); ++i, ++events_) Step(true);
  int drained = 0;
  for (; drained < options_.drain_events_max && violation_.empty(); ++drained, ++events_) {
    Step(false);
    if (drained % 16 == 0 && Finished()) break;
  }
  if (violation_.empty()) {
    if (drained < options_.drain_events_max) {
      sealing_ ? CheckSealedEnd() : CheckEnd();
    } else {
      std::string todo;
      for (const IntervalSet& set : before_.todo) absl::StrAppend(&todo, "[", set.ToString(), "]");
      Fail(absl::StrCat("I8 not quiet: succeeded=", before_.succeeded.ToString(),
                        " dead=", before_.dead.ToString(), " todo=", todo));
    }
  }
  if (!violation_.empty()) {
    for (std::uint32_t p = 0; p < before_.map.size(); ++p) {
      Trace("map p=", p, " server of identity ", before_.map[p].server,
            " epoch=", before_.map[p].epoch.ToString(), " start=", before_.map[p].start.ToString());
    }
    for (const auto& s : servers_) {
      Trace("server ", s->process, " of identity ", s->identity,
            s->registered  ? " registered"
            : s->connected ? " connected"
                           : " cut");
      for (std::uint32_t p = 0; p < kShards; ++p) {
        if (s->shards[p])
          Trace("  holds p=", p, " epoch=", s->shards[p]->shard->epoch().ToString());
      }
    }
    for (const auto& w : workers_) {
      Trace("worker ", w->process,
            w->registered  ? " registered"
            : w->connected ? " connected"
                           : " cut",
            " V=", w->book.map().version.ToString());
      if (const Work* work = w->book.running())
        Trace("  runs c=", work->closure.value(), " attempt=", work->attempt.ToString(),
              " declared=", w->declared);
      for (std::uint32_t p = 0; p < kShards; ++p) {
        if (w->wait_for[p] > w->book.map().version)
          Trace("  waits for map ", w->wait_for[p].ToString());
      }
    }
    Trace("VIOLATION ", violation_);
  }
  return {violation_, events_, std::move(counts_), std::move(largest_)};
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
