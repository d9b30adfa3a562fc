#include "tests/simulation/attacker.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"

namespace evergrad::simulation {

using ps_server::PushCode;

Attacker::Attacker(CoordinatorParts& parts)
    : parts_(parts), walk_(parts.walk), random_(parts.walk.options.seed ^ 0x9e3779b97f4a7c15ull) {}

void Attacker::Act() {
  if (random_.Chance(0.05)) Push();
  if (random_.Chance(0.05)) Register();
}

void Attacker::MixProof(Granted* forged, double chance, std::uint64_t ways) {
  const std::vector<Granted>& grants = parts_.proofs.known();
  if (!grants.empty() && random_.Chance(chance)) {
    const Granted& known = grants[random_.Below(grants.size())];
    forged->proof = known.proof;
    const std::uint64_t other = random_.Below(ways);
    if (other != 0) forged->closure = known.closure;
    if (other != 1) forged->attempt = known.attempt;
    if (other != 2) forged->worker = known.worker;
  } else if (random_.Chance(0.5)) {
    forged->proof.clear();
  }
}

bool Attacker::WasGranted(const Granted& forged) const {
  const std::vector<Granted>& grants = parts_.proofs.known();
  return std::any_of(grants.begin(), grants.end(), [&](const Granted& g) {
    return g.job == forged.job && g.closure == forged.closure && g.attempt == forged.attempt &&
           g.worker == forged.worker;
  });
}

Granted Attacker::ForgePush(const HeldState& held) {
  Granted forged{held.job, ClosureId(random_.Below(kClosures)),
                 Attempt{random_.Below(4), random_.Below(100)}, "mallory", std::string(16, 'x')};
  if (random_.Chance(0.2))
    forged.closure =
        ClosureId(random_.Chance(0.5) ? kClosures + random_.Below(9) : std::uint64_t{1} << 63);
  return forged;
}

void Attacker::Push() {
  const auto& servers = parts_.tasks.servers();
  const SimulatedServer& s = *servers[random_.Below(servers.size())];
  const auto p = static_cast<std::uint32_t>(random_.Below(kShards));
  HeldState* held = s.At(p);
  if (held == nullptr) return;
  ps_server::Shard& shard = *held->shard;
  Granted forged = ForgePush(*held);
  const auto update = static_cast<std::uint32_t>(random_.Below(kUpdates));
  if (const auto& open = shard.ledger().open(); !open.empty() && random_.Chance(0.5)) {
    auto it = open.begin();
    std::advance(it, random_.Below(open.size()));
    forged.closure = it->first;
  }
  if (random_.Chance(0.3))
    forged.attempt = random_.Chance(0.5) ? Attempt{9, 9} : Attempt{~0ull, ~0ull};
  MixProof(&forged, 0.7, 4);  // the fourth way uses a proof of another job
  if (WasGranted(forged)) return;
  const ShardModel& model = walk_.models[p];
  const std::uint64_t as = forged.closure.value() % kClosures;
  alignas(64) float gradient[kElementsMax];
  model.Gradient(as, update, forged.attempt, gradient);
  ps_server::Push push;
  push.epoch = shard.epoch();
  push.closure = forged.closure;
  push.update = UpdateIndex(update);
  push.attempt = forged.attempt;
  model.FillPush(as, update, std::span(gradient, model.gradient_floats(as, update)), &push);
  if (!s.Fits(forged)) push.unproved = "not granted";
  const ps_server::Ledger ledger = shard.ledger();
  const std::uint64_t lsn = shard.lsn();
  const PushCode code = shard.Apply(push).code;
  const bool refused =
      code == PushCode::kInvalid || code == PushCode::kStale || code == PushCode::kRefused;
  if (!refused || shard.lsn() != lsn || !(shard.ledger() == ledger))
    walk_.Fail(
        absl::StrCat("I10 a push that its sender was not granted: c=", forged.closure.value(),
                     " attempt=", forged.attempt.ToString(), " p=", p,
                     refused ? " changed the shard" : " was answered as if it had been"));
  walk_.Count("forged push refused");
}

void Attacker::Register() {
  JournaledBook& book = parts_.book;
  if (!book.open() || book->window_open() || parts_.early_end.begun()) return;
  const std::uint64_t term = book.state().term.value();
  Granted forged{book.job(), ClosureId(random_.Below(kClosures)),
                 Attempt{1 + random_.Below(term), random_.Below(100)}, "mallory",
                 std::string(16, 'x')};
  if (const auto& current = book->current(); !current.empty() && random_.Chance(0.7)) {
    auto it = current.begin();
    std::advance(it, random_.Below(current.size()));
    forged.closure = it->first;
    forged.attempt = it->second.attempt;
    if (random_.Chance(0.7)) forged.attempt.n += 1 + random_.Below(9);
  }
  MixProof(&forged, 0.5, 3);
  if (WasGranted(forged)) return;
  ClosureBook::HeldAttempt held{forged.closure, forged.attempt, true, {}, {}};
  held.proved = parts_.proofs.Fits(forged);
  if (!book->RegisterWorker(TaskId(~0ull), {held}).empty())
    walk_.Fail(absl::StrCat("I10 an attempt that nobody granted was adopted: c=",
                            forged.closure.value(), " attempt=", forged.attempt.ToString()));
  walk_.Count("forged Hello refused");
}

}  // namespace evergrad::simulation
