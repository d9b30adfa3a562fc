#include "tests/simulation/ground_truth.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "tests/mutants/mutant.h"
#include "tests/support/read_shard.h"

namespace evergrad::simulation {

namespace {

constexpr std::uint32_t kTables = 2, kIds = 6;
constexpr std::uint32_t kDimensions[kTables] = {2, 3};
constexpr std::uint32_t kRowsMax = 4;  // the most rows of one table in a push

std::int64_t IdOf(std::uint32_t table, std::uint32_t k) {
  return static_cast<std::int64_t>((k + 1) * 0x9e3779b97f4a7c15ull * (table + 1));
}

// Returns a memory budget without a limit. All tables share it. Thread-safe.
const std::shared_ptr<ps_server::storage::MemoryBudget>& Budget() {
  static const auto budget = std::make_shared<ps_server::storage::MemoryBudget>(0);
  return budget;
}

}  // namespace

ShardModel::ShardModel(const std::string& optimizer, std::uint32_t p, bool slot)
    : elements_(optimizer == "counting" ? kElementsMax : 8), counting_(optimizer == "counting") {
  settings_.job = JobUid(1);
  settings_.shard = ShardId(p);
  settings_.initializer.type = counting_ ? "zeros" : "truncated_normal";
  settings_.initializer.seed = 7;
  settings_.optimizer.type = optimizer;
  settings_.optimizer.learning_rate = 0.05;
  if (optimizer == "sgd") settings_.optimizer.momentum = 0.9;
  auto made = ps_server::optimizer::Optimizer::Create(settings_.optimizer);
  EG_CHECK(made.ok());
  optimizer_ = *made;
  if (slot) {
    settings_.variable = "slot 0 of 1";
    settings_.slot = ps_server::SlotSettings{0, 1, {}};
    for (std::uint32_t t = 0; t < kTables; ++t) {
      ps_server::storage::TableSettings& table = settings_.slot->tables.emplace_back();
      table.name = absl::StrCat("table", t);
      table.dimension = kDimensions[t];
      table.initializer = settings_.initializer;
      table.optimizer = settings_.optimizer;
      // Each of the six rows may need up to 500 bytes, so the table does not have memory for all of
      // them.
      if (t + 1 == kTables) table.bytes_max = 2000;
    }
    MakeSections();
  } else {
    settings_.variable = "weights";
    settings_.variable_shape = tensor::Shape{std::uint64_t{elements_} * kShards};
    settings_.row_begin = std::uint64_t{p} * elements_;
    settings_.row_end = settings_.row_begin + elements_;
  }
  const mutants::Activated honest(mutants::Mutant::kNone);
  const auto seed = Seed({}, {}, {});
  const ps_server::PullResult read = ps_server::ReadShard(*seed, PullOf({}));
  std::size_t at = 0;
  for (const tensor::SharedBytes& chunk : read.chunks) {
    std::memcpy(seed_values_.data() + at, chunk.bytes.data(), chunk.bytes.size());
    at += chunk.bytes.size() / sizeof(float);
  }
  EG_CHECK(at == elements_);
}

void ShardModel::MakeSections() {
  const auto add = [](SlotSection* section, std::uint32_t table,
                      const std::vector<std::uint32_t>& which) {
    if (which.empty()) return;
    section->tables.push_back(table);
    section->rows.push_back(static_cast<std::uint32_t>(which.size()));
    for (const std::uint32_t k : which) {
      section->ids.push_back(IdOf(table, k));
      section->at.push_back((table == 0 ? 0 : kIds * kDimensions[0]) + k * kDimensions[table]);
      section->dimension.push_back(kDimensions[table]);
      section->floats += kDimensions[table];
    }
  };
  for (std::uint32_t t = 0; t < kTables; ++t) add(&all_, t, {0, 1, 2, 3, 4, 5});
  elements_ = static_cast<std::uint32_t>(all_.floats);
  for (std::uint32_t n = 0; n < kClosures * kUpdates; ++n) {
    Random random(n * 977 + 5);
    SlotSection& section = sections_.emplace_back();
    while (section.ids.empty()) {
      for (std::uint32_t t = 0; t < kTables; ++t) {
        std::vector<std::uint32_t> which(random.Below(kRowsMax + 1));
        for (std::uint32_t& k : which) k = static_cast<std::uint32_t>(random.Below(kIds));
        if (random.Chance(0.7)) add(&section, t, which);
      }
    }
  }
}

SlotSection ShardModel::BeyondBudget(std::uint64_t c, std::uint32_t u,
                                     std::vector<float>* gradient) const {
  SlotSection section = SectionOf(c, u);
  if (section.tables.back() != kTables - 1) {
    section.tables.push_back(kTables - 1);
    section.rows.push_back(0);
  }
  constexpr std::uint32_t kMore = 100;
  for (std::uint32_t k = 0; k < kMore; ++k) section.ids.push_back(IdOf(kTables - 1, kIds + k));
  section.rows.back() += kMore;
  gradient->resize(section.floats + kMore * kDimensions[kTables - 1], 1.0f);
  return section;
}

void ShardModel::FillPush(std::uint64_t c, std::uint32_t u, std::span<const float> gradient,
                          ps_server::Push* push) const {
  push->rows = elements_;
  push->payload = std::as_bytes(gradient);
  if (!slot()) return;
  push->rows = SectionOf(c, u).ids.size();
  push->rows_of = SectionOf(c, u).of();
  push->global_step = c * kUpdates + u;
}

ps_server::Pull ShardModel::PullOf(ShardEpoch epoch, bool has, MapVersion have_start,
                                   std::uint64_t have_vlsn) const {
  ps_server::Pull pull{epoch, has, have_start, have_vlsn};
  if (slot()) pull.rows_of = all_.of();
  return pull;
}

std::vector<std::shared_ptr<ps_server::storage::EmbeddingTable>> ShardModel::NewTables(
    const ps_server::ShardCut& cut) const {
  std::vector<std::shared_ptr<ps_server::storage::EmbeddingTable>> tables;
  if (!slot()) return tables;
  for (std::size_t t = 0; t < kTables; ++t) {
    auto made = ps_server::storage::EmbeddingTable::Create(settings_.slot->tables[t], Budget());
    EG_CHECK_MSG(made.ok(), made.status().ToString());
    tables.push_back(*std::move(made));
    EG_CHECK(cut.table_steps.size() == kTables);
  }
  return tables;
}

void ShardModel::TakeSlice(
    const ps_server::SlotSlice& slice,
    const std::vector<std::shared_ptr<ps_server::storage::EmbeddingTable>>& tables) {
  const ps_server::storage::TableSlice& rows = slice.rows;
  EG_CHECK(rows.waiting_ids.empty());
  if (rows.ids.empty()) return;
  const std::vector<std::uint64_t> stamps(rows.stamps.begin(), rows.stamps.end()),
      counts(rows.counts.begin(), rows.counts.end());
  const absl::Status status = tables[slice.table]->Restore(
      ps_server::storage::RestoredRows{rows.ids, stamps, counts, rows.values, rows.state});
  EG_CHECK_MSG(status.ok(), status.ToString());
}

std::unique_ptr<ps_server::Shard> ShardModel::Seed(ShardEpoch epoch, MapVersion start,
                                                   const IntervalSet& refused) const {
  auto shard = ps_server::Shard::FromSeed(settings_, epoch, start, refused, nullptr,
                                          slot() ? Budget() : nullptr);
  EG_CHECK_MSG(shard.ok(), shard.status().ToString());
  return *std::move(shard);
}

bool ShardModel::Skips(std::uint64_t c, std::uint32_t u, Attempt attempt) {
  return Random((c * kUpdates + u) * 69069 + attempt.term * 104729 + attempt.n * 13).Chance(0.1);
}

void ShardModel::Gradient(std::uint64_t c, std::uint32_t u, Attempt attempt, float* out) const {
  if (counting_ && slot()) {
    for (std::size_t i = 0; i < gradient_floats(c, u); ++i)
      out[i] = static_cast<float>(1 + (c + u + i) % 3);
    return;
  }
  if (counting_) {
    std::fill(out, out + elements_, 0.0f);
    out[c * kUpdates + u] = 1.0f;
    return;
  }
  Random random((c * kUpdates + u) * 1000003 + attempt.term * 7919 + attempt.n * 31 +
                settings_.shard.value());
  for (std::size_t i = 0; i < gradient_floats(c, u); ++i)
    out[i] = static_cast<float>(random.Unit() * 2 - 1);
}

std::unique_ptr<HeldState> HeldState::FromSeed(const ShardModel& model, ShardEpoch epoch,
                                               MapVersion start, const IntervalSet& refused) {
  auto held = std::make_unique<HeldState>();
  held->shard = model.Seed(epoch, start, refused);
  held->values = model.seed_values();
  return held;
}

std::unique_ptr<HeldState> HeldState::Copy() const {
  auto copy = Facts();
  copy->shard = shard->Snapshot();
  return copy;
}

std::unique_ptr<HeldState> HeldState::Restored(const ShardModel& model, ShardEpoch epoch,
                                               MapVersion start, const IntervalSet& refused,
                                               bool resumed,
                                               const ps_server::Ledger* other_ledger) const {
  ps_server::ShardCut cut = shard->Cut();
  cut.tables = model.NewTables(cut);
  for (bool more = model.slot(); more;) {
    const auto slice = shard->NextSlice(cut.serial, 100);
    EG_CHECK_MSG(slice.ok(), slice.status().ToString());
    ShardModel::TakeSlice(*slice, cut.tables);
    more = !slice->end;
  }
  return RestoredFrom(model, std::move(cut), epoch, start, refused, resumed, other_ledger);
}

std::unique_ptr<HeldState> HeldState::RestoredFrom(const ShardModel& model, ps_server::ShardCut cut,
                                                   ShardEpoch epoch, MapVersion start,
                                                   const IntervalSet& refused, bool resumed,
                                                   const ps_server::Ledger* other_ledger) const {
  auto restored = Facts();
  for (std::size_t t = 0; t < cut.tables.size(); ++t)
    EG_CHECK(cut.tables[t]->RestoreStep(cut.table_steps[t]).ok());
  if (other_ledger != nullptr) cut.ledger = *other_ledger;
  if (resumed) {
    cut.ledger = cut.ledger.WithoutAttempts();
    restored->seen = {};
  }
  auto made = ps_server::Shard::Restore(model.settings(), std::move(cut), epoch, start, refused);
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
  copy->states = states;
  copy->row_gradients = row_gradients;
  return copy;
}

void HeldState::Fold(const ShardModel& model, std::uint64_t c, std::uint32_t u, Attempt attempt,
                     const float* gradient) {
  ++count[c * kUpdates + u];
  ++gradients;
  log.push_back({static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(u), false, attempt});
  if (model.slot()) return FoldRows(model, model.SectionOf(c, u), gradient);
  ps_server::optimizer::ElementSpan span{model.elements(), gradient, values.data(),
                                         values.data(),    {},       {}};
  for (int k = 0; k < model.optimizer().states(); ++k) {
    span.state_from[k] = states[static_cast<std::size_t>(k)].data();
    span.state_to[k] = states[static_cast<std::size_t>(k)].data();
  }
  model.optimizer().Apply(model.optimizer().Begin(gradients), span);
}

// Duplicate ids count as one row, and their gradients are added. Each row has its own step count t
// for the optimizer.
void HeldState::FoldRows(const ShardModel& model, const SlotSection& section,
                         const float* gradient) {
  std::array<float, kElementsMax> sums{};
  std::array<bool, kElementsMax> named{};
  for (std::size_t i = 0; i < section.ids.size(); gradient += section.dimension[i++]) {
    const std::uint32_t at = section.at[i];
    for (std::uint32_t e = 0; e < section.dimension[i]; ++e)
      sums[at + e] = named[at] ? sums[at + e] + gradient[e] : gradient[e];
    named[at] = true;
  }
  for (std::size_t i = 0; i < section.ids.size(); ++i) {
    const std::uint32_t at = section.at[i];
    if (!std::exchange(named[at], false)) continue;
    ps_server::optimizer::ElementSpan span{
        section.dimension[i], sums.data() + at, values.data() + at, values.data() + at, {}, {}};
    for (int k = 0; k < model.optimizer().states(); ++k) {
      span.state_from[k] = states[static_cast<std::size_t>(k)].data() + at;
      span.state_to[k] = states[static_cast<std::size_t>(k)].data() + at;
    }
    model.optimizer().Apply(model.optimizer().Begin(++row_gradients[at]), span);
  }
}

void HeldState::FoldSkip(std::uint64_t c, std::uint32_t u, Attempt attempt) {
  ++count[c * kUpdates + u];
  log.push_back({static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(u), true, attempt});
}

std::string HeldState::CheckValues(const ShardModel& model) const {
  const ps_server::PullResult read = ps_server::ReadShard(*shard, model.PullOf(shard->epoch()));
  std::size_t at = 0;
  for (const tensor::SharedBytes& chunk : read.chunks) {
    const std::size_t n = chunk.bytes.size() / sizeof(float);
    if (at + n > model.elements() ||
        std::memcmp(chunk.bytes.data(), values.data() + at, chunk.bytes.size()) != 0)
      return "I2 values differ from the fold of the updates";
    at += n;
  }
  if (at != model.elements()) return "I2 a pull is short";
  if (shard->updates_applied() != gradients)
    return "I2 updates_applied differs from the updates applied";
  std::uint64_t skips = 0;
  for (const auto& [reason, n] : shard->skips()) skips += n;
  if (skips != log.size() - gradients)
    return "13 skips are not counted as often as they were recorded";
  return "";
}

std::string HeldState::CheckLedger(const std::array<std::uint8_t, kClosures>& touch) const {
  const ps_server::Ledger& ledger = shard->ledger();
  for (std::uint32_t c = 0; c < kClosures; ++c) {
    const bool done = ledger.done().Contains(c), refused = ledger.refused().Contains(c);
    const auto open = ledger.open().find(ClosureId(c));
    if ((done || refused) && open != ledger.open().end())
      return absl::StrCat("I6 open[c] is kept although c has ended: c=", c);
    for (std::uint32_t u = 0; u < kUpdates; ++u) {
      const int n = count[c * kUpdates + u];
      const bool touches = touch[c] >> u & 1;
      if (n > 1) return absl::StrCat("I1 applied twice: c=", c, " u=", u);
      if (n != 0 && !touches) return absl::StrCat("applied where it has no rows: c=", c, " u=", u);
      if (done && !refused && touches && n == 0)
        return absl::StrCat("I3 done but missing: c=", c, " u=", u);
      const bool recorded = open != ledger.open().end() && open->second.Test(u);
      if (!done && !refused && recorded != (n != 0))
        return absl::StrCat("I2 the ledger and the state disagree: c=", c, " u=", u,
                            " applied=", n);
    }
  }
  return "";
}

std::string HeldState::CheckReplay(const ShardModel& model) const {
  alignas(64) float gradient[kElementsMax];
  const mutants::Activated honest(mutants::Mutant::kNone);
  const auto fresh = model.Seed(shard->epoch(), shard->start(), {});
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
      model.FillPush(a.closure, a.update,
                     std::span(gradient, model.gradient_floats(a.closure, a.update)), &push);
    }
    if (fresh->Apply(push).code != ps_server::PushCode::kApplied)
      return absl::StrCat("I1 the log has an update twice: c=", a.closure, " u=", a.update);
  }
  if (fresh->Digest() != shard->Digest())
    return "I2 digest of the values differs from that of the replayed log";
  if (fresh->StateDigest() != shard->StateDigest())
    return "I2 digest of the optimizer states differs from that of the replayed log";
  return "";
}

}  // namespace evergrad::simulation
