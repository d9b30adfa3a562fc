#include "tests/simulation/simulated_worker.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/simulation/network.h"
#include "tests/support/read_shard.h"

namespace evergrad::simulation {

using worker::AttemptBook;

SimulatedWorker::SimulatedWorker(WalkContext& walk, int number)
    : Task(walk, number), book_(AttemptBook::OverBudget::kPause) {}

// ---------------------------------------------------------------- the session

void SimulatedWorker::SendHello() {
  Up hello;
  hello.reported = {highest_term, life, 0};
  for (const AttemptBook::Held& held : book_.HeldForHello()) {
    if (held.work.kind != worker::WorkKind::kTrain) {
      hello.evaluations.emplace_back(held.work.closure, held.work.attempt);
      continue;
    }
    const ClosureBook::HeldAttempt attempt{held.work.closure, held.work.attempt,
                                           held.work.all_targets, held.work.targets, held.v1};
    hello.attempts.push_back({held.work.job, attempt, held.work.granted_to, held.work.proof});
  }
  out.Push(std::move(hello));
}

void SimulatedWorker::Handle(Down m) {
  switch (m.kind) {
    case Down::kRegistered: OnAdopted(std::move(m)); break;
    case Down::kMap: OnMap(*m.map); break;
    case Down::kGrant: book_.OnGrant(std::move(m.work)); break;
    case Down::kDoneAnswer:
      book_.OnDoneAnswer(m.attempt, m.superseded);
      evaluated_.erase(m.attempt);
      touched_less_.erase(m.attempt);
      break;
    case Down::kJobEnded:
      book_.DropJob(m.job);
      evaluated_.clear();
      touched_less_.clear();
      break;
    default: break;
  }
}

// Called when the coordinator has adopted some of the attempts in the Hello.
void SimulatedWorker::OnAdopted(Down m) {
  OnRegistered(m);
  // The worker may have dropped an adopted attempt after it sent the Hello.
  const auto drop_if_gone = [&](ClosureId closure, Attempt attempt) {
    if (!book_.Holds(attempt)) out.Push(Up::AboutAttempt(Up::kDropped, m.job, closure, attempt));
  };
  std::set<Attempt> adopted(m.adopted_evaluations.begin(), m.adopted_evaluations.end());
  for (const Attempt attempt : m.adopted_evaluations) drop_if_gone(ClosureId{}, attempt);
  for (const ClosureBook::HeldAttempt& held : m.adopted) adopted.insert(held.attempt);
  book_.OnRegistered(m.term, adopted);
  for (const ClosureBook::HeldAttempt& held : m.adopted) drop_if_gone(held.closure, held.attempt);
  OnMap(*m.map);
  for (const worker::DoneReport& report : book_.Unanswered()) out.Push(DoneOf(report));
}

Up SimulatedWorker::DoneOf(const worker::DoneReport& report) const {
  Up done = Up::AboutAttempt(Up::kDone, report.work.job, report.work.closure, report.work.attempt);
  done.v0 = report.v0;
  done.v1 = report.v1;
  if (report.work.kind == worker::WorkKind::kEvaluate)
    done.evaluated = evaluated_.at(report.work.attempt);
  if (report.work.kind == worker::WorkKind::kTrain)
    done.touched_less = touched_less_.at(report.work.attempt);
  return done;
}

void SimulatedWorker::OnMap(const ShardMap& map) {
  if (map.job != book_.map().job) {
    wait_for_ = {};
    cache_ = {};
  }
  book_.OnMap(map);
}

void SimulatedWorker::ForgetJobs(JobUid) { book_.OnRegistered(Term{highest_term}, {}); }

// ---------------------------------------------------------------- training

void SimulatedWorker::Act(Network& network) {
  if (const Work* next = book_.NextToBegin()) {
    if (book_.map().shards.empty() || book_.map().job != next->job) return;
    walk_.Trace("worker ", process, " begins c=", next->closure.value(),
                " attempt=", next->attempt.ToString(), " V0=", book_.map().version.ToString());
    book_.Begin(next->attempt);
    declared_ = 0;
    reading_ = std::make_shared<Evaluated>();
  } else if (const Work* work = book_.running()) {
    if (work->kind == worker::WorkKind::kEvaluate) {
      Evaluate(network);
    } else {
      Train(*work, network);
    }
  }
}

void SimulatedWorker::Train(const Work& work, Network& network) {
  if (walk_.faults() && walk_.options.repairs_fail && !work.all_targets &&
      walk_.random.Chance(0.04)) {
    Tell(Up::AboutAttempt(Up::kFailed, work.job, work.closure, work.attempt));
    book_.Drop(work.attempt);
    return;
  }
  // Any push that no shard has answered yet, of any declared update, may be sent next. With a
  // pipeline, pushes leave in any order.
  std::array<std::pair<std::uint32_t, std::uint32_t>, kUpdates * kShards> ready{};
  std::size_t n = 0;
  for (std::uint32_t u = 0; u < declared_; ++u) {
    for (const ShardId p : book_.Unsettled(UpdateIndex(u))) {
      if (book_.map().version >= wait_for_[p.value()]) ready[n++] = {u, p.value()};
    }
  }
  if (declared_ < kUpdates && (n == 0 || walk_.random.Chance(0.3))) {
    DeclareUpdate(work, network);
    return;
  }
  if (n == 0 || network.full()) return;
  const auto [u, p] = ready[walk_.random.Below(n)];
  SendPush(work, u, p, network);
}

void SimulatedWorker::DeclareUpdate(const Work& work, const Network& network) {
  const std::uint32_t u = declared_++;
  std::vector<ShardId> shards;
  for (std::uint32_t p = 0; p < kShards; ++p) {
    if (walk_.Touches(p, work.closure.value(), u) &&
        (work.all_targets || work.targets.contains(ShardId(p))))
      shards.push_back(ShardId(p));
  }
  if (walk_.random.Chance(0.15)) PullOne(walk_.AnyShard(), network);
  book_.Expect(UpdateIndex(u), shards);
  FinishIfSettled();
}

void SimulatedWorker::SendPush(const Work& work, std::uint32_t update, std::uint32_t p,
                               Network& network) {
  // If a mutant is active, an attempt of an earlier job may still run.
  if (p >= book_.map().shards.size()) return;
  const worker::ShardPlace& place = book_.map().shards[p];
  const std::vector<SimulatedServer*> listening = network.ServersOf(place.server);
  if (listening.empty()) return;  // the worker sends it again later, as after a transport error
  Call call;
  call.push = true;
  call.job = work.job;
  call.server = listening[walk_.random.Below(listening.size())]->process;
  call.worker = process;
  call.p = p;
  call.update = update;
  call.epoch = place.epoch;
  call.closure = work.closure;
  call.attempt = work.attempt;
  call.worker_name = work.granted_to;
  call.proof = work.proof;
  network.Send(std::move(call));
}

void SimulatedWorker::HandleAnswer(const Call& call) {
  // Attempt numbers of different jobs cannot be compared.
  if (book_.running() == nullptr || book_.running()->job != call.job) return;
  const bool current = book_.running()->attempt == call.attempt;
  const worker::Disposition d = book_.OnPushAnswer(call.attempt, UpdateIndex(call.update),
                                                   ShardId(call.p), call.answer, call.version);
  if (!current) return;
  switch (d.next) {
    case worker::Next::kSettled: FinishIfSettled(); break;
    case worker::Next::kWaitForMap:
      wait_for_[call.p] = std::max(wait_for_[call.p], d.wait_for);
      break;
    case worker::Next::kBackoff: break;
    case worker::Next::kDropAttempt:
      walk_.Count("attempt superseded");
      Tell(Up::AboutAttempt(Up::kDropped, call.job, call.closure, call.attempt));
      break;
    case worker::Next::kFail: walk_.Fail("a push failed"); break;
  }
}

void SimulatedWorker::FinishIfSettled() {
  if (!book_.MayFinish(declared_ == kUpdates)) return;
  coordinator::UpdateAccount::TouchedLess less = book_.TouchedLess();
  const worker::DoneReport report = book_.Finish();
  touched_less_[report.work.attempt] = std::move(less);
  walk_.Trace("worker ", process, " done c=", report.work.closure.value(),
              " attempt=", report.work.attempt.ToString(), " V0=", report.v0.ToString(),
              " V1=", report.v1.ToString());
  Tell(DoneOf(report));
}

// ---------------------------------------------------------------- pulls

void SimulatedWorker::CheckCachedValues(const Cached& cached) {
  if (cached.read.code != ps_server::PullCode::kValues) return;
  std::size_t at = 0;
  for (const tensor::SharedBytes& chunk : cached.read.chunks) {
    if (std::memcmp(chunk.bytes.data(), cached.values.data() + at, chunk.bytes.size()) != 0)
      walk_.Fail("13 values changed under a reader");
    at += chunk.bytes.size() / sizeof(float);
  }
}

void SimulatedWorker::PullOne(std::uint32_t p, const Network& network) {
  const worker::ShardPlace& place = book_.map().shards[p];
  for (const SimulatedServer* s : network.ServersOf(place.server)) {
    const HeldState* held = s->At(p);
    if (held == nullptr || held->job != book_.map().job) continue;
    Cached& cached = cache_[p];
    CheckCachedValues(cached);
    const std::uint64_t lsn = held->shard->lsn();
    ps_server::PullResult read = ps_server::ReadShard(
        *held->shard,
        walk_.models[p].PullOf(place.epoch, cached.read.code == ps_server::PullCode::kValues,
                               cached.read.start, cached.read.vlsn));
    if (held->shard->lsn() != lsn) walk_.Fail("13 a pull changed the state");
    if (read.code == ps_server::PullCode::kUnchanged) {
      walk_.Count("pull unchanged");
      if (std::memcmp(cached.values.data(), held->values.data(),
                      cached.values.size() * sizeof(float)) != 0)
        walk_.Fail("13 a pull said unchanged, but values differ");
    } else if (read.code == ps_server::PullCode::kValues) {
      cached.read = std::move(read);
      cached.values.assign(held->values.begin(), held->values.begin() + walk_.models[p].elements());
    }
    return;
  }
}

void SimulatedWorker::Evaluate(const Network& network) {
  std::array<std::uint32_t, kShards> left{};
  std::size_t n = 0;
  for (std::uint32_t p = 0; p < kShards; ++p) {
    if (!reading_->shards[p].read) left[n++] = p;
  }
  if (walk_.random.Chance(0.5)) return;  // the worker is still computing
  if (n > 0 && (!ReadForEvaluation(left[walk_.random.Below(n)], network) || n > 1)) return;
  const worker::DoneReport report = book_.Finish();
  evaluated_[report.work.attempt] = reading_;
  walk_.Trace("worker ", process, " evaluated ", report.work.closure.value() & 0xff,
              " attempt=", report.work.attempt.ToString());
  Tell(DoneOf(report));
}

bool SimulatedWorker::ReadForEvaluation(std::uint32_t p, const Network& network) {
  const worker::ShardPlace& place = book_.map().shards[p];
  std::vector<const HeldState*> serving;
  for (const SimulatedServer* s : network.ServersOf(place.server)) {
    const HeldState* held = s->At(p);
    if (held != nullptr && held->job == book_.map().job) serving.push_back(held);
  }
  if (serving.empty()) return false;
  const HeldState& held = *serving[walk_.random.Below(serving.size())];
  const ps_server::PullResult read =
      ps_server::ReadShard(*held.shard, walk_.models[p].PullOf(place.epoch));
  if (read.code != ps_server::PullCode::kValues) return false;
  Evaluated::OfShard& of = reading_->shards[p];
  of.read = true;
  of.start = read.start;
  of.vlsn = read.vlsn;
  of.count = held.count;
  std::size_t at = 0;
  for (const tensor::SharedBytes& chunk : read.chunks) {
    std::memcpy(of.values.data() + at, chunk.bytes.data(), chunk.bytes.size());
    at += chunk.bytes.size() / sizeof(float);
  }
  return true;
}

void SimulatedWorker::TraceState() const {
  walk_.Trace("worker ", process,
              registered  ? " registered"
              : connected ? " connected"
                          : " cut",
              " V=", book_.map().version.ToString());
  if (const Work* work = book_.running())
    walk_.Trace("  runs c=", work->closure.value(), " attempt=", work->attempt.ToString(),
                " declared=", declared_);
  for (std::uint32_t p = 0; p < kShards; ++p) {
    if (wait_for_[p] > book_.map().version)
      walk_.Trace("  waits for map ", wait_for_[p].ToString());
  }
}

}  // namespace evergrad::simulation
