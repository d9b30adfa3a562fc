#include "tests/simulation/simulated_server.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/mutants/mutant.h"
#include "tests/simulation/served_push.h"

namespace evergrad::simulation {
namespace {

using mutants::IsActive;
using mutants::Mutant;
using ps_server::PushCode;
using worker::PushAnswer;

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

}  // namespace

SimulatedServer::SimulatedServer(WalkContext& walk, SnapshotFolder& folder,
                                 InvariantChecker& checker, int number, std::string identity)
    : Task(walk, number),
      folder_(folder),
      checker_(checker),
      identity_(std::move(identity)),
      writer_(walk, folder, checker) {}

HeldState* SimulatedServer::At(std::uint32_t p, JobUid job, ShardEpoch epoch) const {
  HeldState* held = At(p);
  return held != nullptr && held->job == job && held->shard->epoch() == epoch ? held : nullptr;
}

HeldState* SimulatedServer::Find(JobUid job, std::uint32_t p) const {
  if (shards_[p] && shards_[p]->job == job) return shards_[p].get();
  for (const auto& [q, state] : others_) {
    if (q == p && state->job == job) return state.get();
  }
  return nullptr;
}

std::optional<JobUid> SimulatedServer::JobAt(std::uint32_t p) const {
  if (shards_[p]) return shards_[p]->job;
  if (loading_[p]) return loading_[p]->job;
  return std::nullopt;
}

bool SimulatedServer::HoldsOnlyItsOwn() const {
  if (!others_.empty()) return false;
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const HeldState* held = At(p);
    if (loading_[p] ||
        (held != nullptr && !checker_.IsOwner(identity_, held->job, p, held->shard->epoch())))
      return false;
  }
  return true;
}

void SimulatedServer::TraceState() const {
  walk_.Trace("server ", process, " of identity ", identity_,
              registered  ? " registered"
              : connected ? " connected"
                          : " cut");
  for (std::uint32_t p = 0; p < kShards; ++p) {
    if (const HeldState* held = At(p))
      walk_.Trace("  holds p=", p, " epoch=", held->shard->epoch().ToString());
  }
}

// ---------------------------------------------------------------- the session

void SimulatedServer::SendHello() {
  Up hello;
  hello.reported = {highest_term, life, 0};
  const auto holds = [&](std::uint32_t p, const HeldState& held) {
    const ps_server::Shard& shard = *held.shard;
    hello.shards.push_back({held.job,
                            {ShardId(p), shard.epoch(), shard.start(), shard.ledger().done(),
                             shard.ledger().refused(), false, held.stopped_in}});
  };
  for (std::uint32_t p = 0; p < kShards; ++p) {
    if (shards_[p]) holds(p, *shards_[p]);
    if (const auto& l = loading_[p])
      hello.shards.push_back({l->job, {ShardId(p), l->epoch, l->start, {}, l->refused, true}});
  }
  for (const auto& [p, state] : others_) holds(p, *state);
  for (const auto& [job, shard] : hello.shards)
    hello.reported.held_term = std::max(hello.reported.held_term, shard.epoch.term);
  out.Push(std::move(hello));
}

void SimulatedServer::Handle(Down m) {
  if (m.kind != Down::kJobEnded && m.kind != Down::kRegistered && version_of_ != m.job) {
    version_of_ = m.job;
    version_ = MapVersion{};
  }
  version_ = std::max(version_, m.version);
  switch (m.kind) {
    case Down::kRegistered:
      OnRegistered(m);
      for (Up& assigned : std::exchange(unsent_, {})) out.Push(std::move(assigned));
      break;
    case Down::kAssign: OnAssign(std::move(m)); break;
    case Down::kDrop: OnDrop(m); break;
    case Down::kSeal: OnSeal(m); break;
    case Down::kJobEnded: DropJob(m.job); break;
    case Down::kClose: OnClose(m); break;
    case Down::kWantSnapshot:
      if (At(m.p, m.job, m.epoch) != nullptr) writer_.Add(m.job, m.p, m.epoch, task);
      break;
    case Down::kRelease: OnRelease(m); break;
    default: break;
  }
}

bool SimulatedServer::Loads(const Down& m) const {
  const std::optional<Loading>& loading = loading_[m.p];
  return loading && loading->job == m.job && loading->epoch == m.epoch;
}

void SimulatedServer::OnAssign(Down m) {
  std::unique_ptr<HeldState>& place = shards_[m.p];
  if (place && place->job != m.job) others_.emplace_back(m.p, std::move(place));
  place.reset();
  loading_[m.p].reset();
  sealed_[m.p].reset();
  writer_.ForgetFile(m.p);
  guards_.try_emplace(m.job, std::make_unique<grants::GrantGuard>(m.job, m.key));
  if (m.state) {
    place = std::move(m.state);
    checker_.CheckState(*place, m.p, walk_.random.Chance(0.25));
  } else {
    loading_[m.p] = Loading{m.job, m.epoch, m.start, std::move(m.refused), std::move(m.source)};
  }
}

void SimulatedServer::OnDrop(const Down& m) {
  if (Loads(m)) loading_[m.p].reset();
  if (At(m.p, m.job, m.epoch) == nullptr) return;
  shards_[m.p].reset();
  sealed_[m.p].reset();
}

void SimulatedServer::OnSeal(const Down& m) {
  Up answer = Up::AboutShard(Up::kSealed, m.job, m.p, m.epoch);
  if (Loads(m)) loading_[m.p].reset();  // the file that is being loaded is already the last cut
  if (const HeldState* held = At(m.p, m.job, m.epoch)) {
    walk_.Count("sealed");
    walk_.Trace("server ", process, " p=", m.p, " is sealed");
    held->shard->Seal();
    sealed_[m.p] = held->shard->ledger();
    answer.snapshot = folder_.Write(
        held->Restored(walk_.models[m.p], m.epoch, held->shard->start(), {}, false), m.p);
    checker_.CheckState(*folder_.Find(answer.snapshot->Uri())->state, m.p, true);
  }
  out.Push(std::move(answer));
}

void SimulatedServer::OnClose(const Down& m) {
  Up answer = Up::AboutShard(Up::kClosed, m.job, m.p, m.epoch);
  HeldState* held = IsActive(Mutant::kCloseOfAnyTime) ? At(m.p) : At(m.p, m.job, m.epoch);
  answer.taken = held != nullptr && held->shard->Close(m.epoch, m.version, m.done, m.refused);
  if (answer.taken) {
    walk_.Trace("server ", process, " p=", m.p, " closes done=", m.done.ToString(),
                " refused=", m.refused.ToString());
    checker_.CheckState(*held, m.p, false);
    if (checker_.IsOwner(identity_, m.job, m.p, m.epoch)) checker_.CheckBounds(*held, m.p);
  }
  out.Push(std::move(answer));
}

// The source of a move stops the shard, and keeps the state until it gets a Drop. It sends a copy
// of the state in the form in which a file restores it [22].
void SimulatedServer::OnRelease(const Down& m) {
  HeldState* held = At(m.p, m.job, m.epoch);
  if (held == nullptr) return;
  Up answer = Up::AboutShard(Up::kReleased, m.job, m.p, m.epoch);
  held->shard->Stop();
  if (held->stopped_in == 0) held->stopped_in = highest_term;
  answer.state = held->Restored(walk_.models[m.p], m.epoch, held->shard->start(), {}, false);
  out.Push(std::move(answer));
}

void SimulatedServer::DropJob(JobUid job) {
  for (std::uint32_t p = 0; p < kShards; ++p) {
    if (shards_[p] && shards_[p]->job == job) {
      shards_[p].reset();
      sealed_[p].reset();
    }
    if (loading_[p] && loading_[p]->job == job) loading_[p].reset();
  }
  std::erase_if(others_, [&](const auto& other) { return other.second->job == job; });
  writer_.DropJob(job);
}

void SimulatedServer::ForgetJobs(JobUid newest) {
  for (std::uint64_t job = 1; job <= newest.value(); ++job) DropJob(JobUid(job));
}

// ---------------------------------------------------------------- pushes

bool SimulatedServer::Fits(const Granted& claimed) const {
  return GrantProofs::FitsAtServer(*guards_.at(claimed.job), claimed);
}

Call SimulatedServer::Serve(const Call& push) {
  Call answer = push;
  answer.push = false;
  answer.version = version_of_ == push.job ? version_ : MapVersion{};
  answer.answer = PushAnswer::kStale;
  HeldState* held = Find(push.job, push.p);
  if (walk_.faults() && walk_.random.Chance(0.02)) {
    const PushAnswer answers[] = {PushAnswer::kBusy, PushAnswer::kTransport,
                                  PushAnswer::kOverBudget};
    answer.answer = answers[walk_.random.Below(3)];
    walk_.Count(answer.answer == PushAnswer::kOverBudget ? "over budget" : "busy");
  } else if (held != nullptr) {
    answer.answer = Apply(push, *held);
  }
  return answer;
}

PushAnswer SimulatedServer::Apply(const Call& call, HeldState& held) {
  PushOfCall pushed(walk_, call);
  if (!Fits({call.job, call.closure, call.attempt, call.worker_name, call.proof}))
    pushed.push.unproved = "not granted";
  const ShardBefore before(*held.shard, call.closure);
  const PushCode code = held.shard->Apply(pushed.push).code;
  if (held.shard->sealed() && IsActive(Mutant::kSealEntersRefused))
    held.shard->Close(held.shard->epoch(), held.shard->start(), {},
                      IntervalSet{call.closure.value()});
  const bool newest = &held == At(call.p);
  checker_.OnPush({call, pushed, before, code, held, process, identity_,
                   newest && sealed_[call.p] ? &*sealed_[call.p] : nullptr});
  return code == PushCode::kInvalid && !pushed.push.defect.empty() ? PushAnswer::kTransport
                                                                   : AnswerOf(code);
}

// ---------------------------------------------------------------- files [27]

void SimulatedServer::DoFileWork() {
  const std::uint32_t first = walk_.AnyShard();
  for (std::uint32_t k = 0; k < kShards; ++k) {
    const std::uint32_t p = (first + k) % kShards;
    if (loading_[p]) {
      Load(p);
      return;
    }
  }
  if (writer_.next() != nullptr) WriteSnapshot();
}

void SimulatedServer::Load(std::uint32_t p) {
  const Loading loading = *std::exchange(loading_[p], std::nullopt);
  const ShardModel& model = walk_.models[p];
  Up answer = Up::AboutShard(Up::kAssigned, loading.job, p, loading.epoch);
  answer.snapshot = loading.source;
  std::unique_ptr<HeldState>& held = shards_[p];
  if (!loading.source) {
    held = HeldState::FromSeed(model, loading.epoch, loading.start, loading.refused);
  } else if (const File* file = folder_.Find(loading.source->Uri());
             file == nullptr || file->health != File::kWhole) {
    walk_.Count(file == nullptr ? "file not there" : "file damaged");
    answer.ok = false;
  } else {
    held = file->state->Restored(model, loading.epoch, loading.start, loading.refused,
                                 loading.source->resumed);
  }
  if (held) {
    held->job = loading.job;
    checker_.CheckState(*held, p, walk_.random.Chance(0.25));
  }
  walk_.Trace("server ", process, " p=", p, " epoch=", loading.epoch.ToString(),
              answer.ok ? " is loaded" : " cannot be loaded");
  if (welcomed) {
    out.Push(std::move(answer));
  } else {
    unsent_.push_back(std::move(answer));
  }
}

void SimulatedServer::WriteSnapshot() {
  const SnapshotWriter::Order& order = *writer_.next();
  auto report = writer_.Advance(At(order.p, order.job, order.epoch));
  if (!report || !connected || task != report->session) return;
  Up m = Up::AboutShard(Up::kSnapshot, report->job, report->p, {});
  m.snapshot = std::move(report->snapshot);
  out.Push(std::move(m));
}

}  // namespace evergrad::simulation
