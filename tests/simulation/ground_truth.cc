#include "tests/simulation/ground_truth.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace evergrad::simulation {

ShardModel::ShardModel(const std::string& optimizer, std::uint32_t p)
    : elements_(optimizer == "counting" ? kElementsMax : 8), counting_(optimizer == "counting") {
  settings_.job = JobUid(1);
  settings_.shard = ShardId(p);
  settings_.variable = "weights";
  settings_.variable_shape = tensor::Shape{std::uint64_t{elements_} * kShards};
  settings_.row_begin = std::uint64_t{p} * elements_;
  settings_.row_end = settings_.row_begin + elements_;
  settings_.initializer.type = counting_ ? "zeros" : "truncated_normal";
  settings_.initializer.seed = 7;
  settings_.optimizer.type = optimizer;
  settings_.optimizer.learning_rate = 0.05;
  if (optimizer == "sgd") settings_.optimizer.momentum = 0.9;
  auto made = ps_server::optimizer::Optimizer::Create(settings_.optimizer);
  EG_CHECK(made.ok());
  optimizer_ = *made;
  const std::vector<float> values = Seed({}, {}, {}, fault::Mutant::kNone)->Values();
  std::copy(values.begin(), values.end(), seed_values_.begin());
}

std::unique_ptr<ps_server::Shard> ShardModel::Seed(ShardEpoch epoch, MapVersion start, const IntervalSet& refused, fault::Mutant mutant) const {
  auto shard = ps_server::Shard::FromSeed(settings_, epoch, start, refused, mutant);
  EG_CHECK_MSG(shard.ok(), shard.status().ToString());
  return *std::move(shard);
}

bool ShardModel::Skips(std::uint64_t c, std::uint32_t u, Attempt attempt) {
  return Random((c * kUpdates + u) * 69069 + attempt.term * 104729 + attempt.n * 13).Chance(0.1);
}

void ShardModel::Gradient(std::uint64_t c, std::uint32_t u, Attempt attempt, float* out) const {
  if (counting_) {
    std::fill(out, out + elements_, 0.0f);
    out[c * kUpdates + u] = 1.0f;
    return;
  }
  Random random((c * kUpdates + u) * 1000003 + attempt.term * 7919 + attempt.n * 31 + settings_.shard.value());
  for (std::uint32_t i = 0; i < elements_; ++i) out[i] = static_cast<float>(random.Unit() * 2 - 1);
}

std::unique_ptr<HeldState> HeldState::FromSeed(const ShardModel& model, ShardEpoch epoch, MapVersion start, const IntervalSet& refused,
                                               fault::Mutant mutant) {
  auto held = std::make_unique<HeldState>();
  held->shard = model.Seed(epoch, start, refused, mutant);
  held->values = model.seed_values();
  return held;
}

std::unique_ptr<HeldState> HeldState::Copy() const {
  auto copy = Facts();
  copy->shard = shard->Snapshot();
  return copy;
}

std::unique_ptr<HeldState> HeldState::Restored(const ShardModel& model, ShardEpoch epoch, MapVersion start, const IntervalSet& refused, bool resumed,
                                               fault::Mutant mutant, const ps_server::Ledger* other_ledger) const {
  auto restored = Facts();
  ps_server::ShardCut cut = shard->Cut();
  if (other_ledger != nullptr) cut.ledger = *other_ledger;
  if (resumed) {
    cut.ledger = cut.ledger.WithoutAttempts();
    restored->seen = {};
  }
  auto made = ps_server::Shard::Restore(model.settings(), std::move(cut), epoch, start, refused, mutant);
  EG_CHECK_MSG(made.ok(), made.status().ToString());
  restored->shard = *std::move(made);
  return restored;
}

std::unique_ptr<HeldState> HeldState::Facts() const {
  auto copy = std::make_unique<HeldState>();
  copy->job = job;
  copy->count = count;
  copy->gradients = gradients;
  copy->seen = seen;
  copy->log = log;
  copy->values = values;
  copy->slots = slots;
  return copy;
}

void HeldState::Fold(const ShardModel& model, std::uint64_t c, std::uint32_t u, Attempt attempt, const float* gradient) {
  ++count[c * kUpdates + u];
  ++gradients;
  log.push_back({static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(u), false, attempt});
  ps_server::optimizer::Run run{model.elements(), gradient, values.data(), values.data(), {}, {}};
  for (int k = 0; k < model.optimizer().slots(); ++k) {
    run.slot_from[k] = slots[static_cast<std::size_t>(k)].data();
    run.slot_to[k] = slots[static_cast<std::size_t>(k)].data();
  }
  model.optimizer().Apply(model.optimizer().Begin(gradients), run);
}

void HeldState::FoldSkip(std::uint64_t c, std::uint32_t u, Attempt attempt) {
  ++count[c * kUpdates + u];
  log.push_back({static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(u), true, attempt});
}

std::string HeldState::CheckValues(const ShardModel& model) const {
  const ps_server::PullResult read = shard->Read({shard->epoch(), false, {}, 0});
  std::size_t at = 0;
  for (const tensor::SharedBytes& chunk : read.chunks) {
    const std::size_t n = chunk.bytes.size() / sizeof(float);
    if (at + n > model.elements() || std::memcmp(chunk.bytes.data(), values.data() + at, chunk.bytes.size()) != 0)
      return "I2 values differ from the fold of the updates";
    at += n;
  }
  if (at != model.elements()) return "I2 a pull is short";
  if (shard->updates_applied() != gradients) return "I2 updates_applied differs from the updates applied";
  std::uint64_t skips = 0;
  for (const auto& [reason, n] : shard->skips()) skips += n;
  if (skips != log.size() - gradients) return "13 skips are not counted as often as they were recorded";
  return "";
}

std::string HeldState::CheckLedger(const std::array<std::uint8_t, kClosures>& touch) const {
  const ps_server::Ledger& ledger = shard->ledger();
  for (std::uint32_t c = 0; c < kClosures; ++c) {
    const bool done = ledger.done().Contains(c), refused = ledger.refused().Contains(c);
    const auto open = ledger.open().find(ClosureId(c));
    if ((done || refused) && open != ledger.open().end()) return absl::StrCat("I6 open[c] is kept although c has ended: c=", c);
    for (std::uint32_t u = 0; u < kUpdates; ++u) {
      const int n = count[c * kUpdates + u];
      const bool touches = touch[c] >> u & 1;
      if (n > 1) return absl::StrCat("I1 applied twice: c=", c, " u=", u);
      if (n != 0 && !touches) return absl::StrCat("applied where it has no rows: c=", c, " u=", u);
      if (done && !refused && touches && n == 0) return absl::StrCat("I3 done but missing: c=", c, " u=", u);
      const bool recorded = open != ledger.open().end() && open->second.Test(u);
      if (!done && !refused && recorded != (n != 0)) return absl::StrCat("I2 the ledger and the state disagree: c=", c, " u=", u, " applied=", n);
    }
  }
  return "";
}

std::string HeldState::CheckReplay(const ShardModel& model) const {
  alignas(64) float gradient[kElementsMax];
  const auto fresh = model.Seed(shard->epoch(), shard->start(), {}, fault::Mutant::kNone);
  for (const Applied& a : log) {
    model.Gradient(a.closure, a.update, a.attempt, gradient);
    ps_server::Push push;
    push.epoch = fresh->epoch();
    push.closure = ClosureId(a.closure);
    push.update = UpdateIndex(a.update);
    push.attempt = {~0ull, fresh->lsn()};
    if (a.skip) {
      push.kind = ps_server::UpdateKind::kSkip;
      push.skip_reason = "overflow";
    } else {
      push.rows = model.elements();
      push.payload = std::as_bytes(std::span(gradient, model.elements()));
    }
    if (fresh->Apply(push).code != ps_server::PushCode::kApplied)
      return absl::StrCat("I1 the log has an update twice: c=", a.closure, " u=", a.update);
  }
  if (fresh->Digest() != shard->Digest()) return "I2 digest of the values differs from that of the replayed log";
  if (fresh->SlotDigest() != shard->SlotDigest()) return "I2 digest of the slots differs from that of the replayed log";
  return "";
}

}  // namespace evergrad::simulation
