#include "ps_server/shard/shard.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/checked_math.h"
#include "common/base/status.h"
#include "common/sharding/partitioner.h"
#include "ps_server/storage/dense_array.h"

namespace evergrad::ps_server {
namespace {

constexpr std::size_t kSkipReasonBytesMax = 64;

// Elements of the shard's rows. InvalidArgument: rows out of the shape, or more bytes than a partition may have.
absl::StatusOr<std::uint64_t> CheckRows(const ShardSettings& s) {
  if (s.variable_shape.rank() > tensor::kRankMax || !CheckedProduct(s.variable_shape.dims())) {
    return absl::InvalidArgumentError(absl::StrCat("shape has more than 8 dimensions or overflows: variable=", s.variable));
  }
  const std::uint64_t rows = s.variable_shape.rows();
  if (s.row_begin >= s.row_end || s.row_end > rows) {
    return absl::InvalidArgumentError(absl::StrCat("rows out of the shape: variable=", s.variable, " shape=", s.variable_shape.ToString(),
                                                   " row_begin=", s.row_begin, " row_end=", s.row_end));
  }
  const auto elements = CheckedMul(s.row_end - s.row_begin, s.variable_shape.row_elements());
  const auto bytes = elements ? CheckedMul(*elements, sizeof(float)) : std::nullopt;
  if (!bytes || *bytes == 0 || *bytes > sharding::kPartitionBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("bytes of a shard out of range: variable=", s.variable, " bytes=", bytes.value_or(~0ull),
                                                   " min=4 max=", sharding::kPartitionBytesMax));
  }
  return *elements;
}

}  // namespace

struct Shard::State {
  optimizer::Optimizer optimizer;
  storage::DenseArray values;
  storage::DenseArray slots[optimizer::kSlotsMax];

  // All or nothing, before the ledger is touched.
  bool Reserve() {
    bool reserved = values.ReserveWrites();
    for (int k = 0; reserved && k < optimizer.slots(); ++k) reserved = slots[k].ReserveWrites();
    if (reserved) return true;
    values.CancelWrites();
    for (storage::DenseArray& slot : slots) slot.CancelWrites();
    return false;
  }

  // Cannot fail. `t`: gradients applied, this one included. Chunks from `c` on, at least one, while less than `bytes_max` are applied;
  // `gradient` is that of chunk c, and of the next one afterwards. Returns the next chunk.
  std::size_t Apply(const float*& gradient, std::uint64_t t, std::size_t c, std::uint64_t bytes_max) {
    const optimizer::Optimizer::Step step = optimizer.Begin(t);
    for (std::uint64_t bytes = 0; c < values.chunks() && bytes < bytes_max; ++c) {
      const storage::DenseArray::Write value = values.BeginWrite(c);
      optimizer::Run run{value.size, gradient, value.from, value.to, {}, {}};
      for (int k = 0; k < optimizer.slots(); ++k) {
        const storage::DenseArray::Write slot = slots[k].BeginWrite(c);
        run.slot_from[k] = slot.from;
        run.slot_to[k] = slot.to;
      }
      optimizer.Apply(step, run);
      values.EndWrite(c);
      for (int k = 0; k < optimizer.slots(); ++k) slots[k].EndWrite(c);
      gradient += value.size;
      bytes += value.size * sizeof(float);
    }
    return c;
  }
};

Shard::Shard() = default;
Shard::~Shard() = default;

absl::StatusOr<std::unique_ptr<Shard>> Shard::FromSeed(const ShardSettings& settings, ShardEpoch epoch, MapVersion start, IntervalSet refused,
                                                       fault::Mutant mutant, std::shared_ptr<storage::ChunkPool> pool) {
  EG_ASSIGN_OR_RETURN(const std::uint64_t elements, CheckRows(settings));
  EG_RETURN_IF_ERROR(storage::CheckInitializer(settings.initializer));
  auto state = std::make_unique<State>();
  EG_ASSIGN_OR_RETURN(state->optimizer, optimizer::Optimizer::Create(settings.optimizer));
  if (state->optimizer.for_tables_only()) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer is for tables only, use adagrad: variable=", settings.variable, " type=", settings.optimizer.type));
  }
  EG_ASSIGN_OR_RETURN(state->values, storage::DenseArray::Create(elements, pool));
  for (int k = 0; k < state->optimizer.slots(); ++k) {
    EG_ASSIGN_OR_RETURN(state->slots[k], storage::DenseArray::Filled(elements, state->optimizer.slot_initial(k), pool));
  }
  storage::FillInitial(settings.initializer, settings.variable, settings.row_begin * settings.variable_shape.row_elements(), &state->values);

  std::unique_ptr<Shard> shard(new Shard);
  shard->settings_ = std::make_shared<const ShardSettings>(settings);
  shard->epoch_ = epoch;
  shard->start_ = start;
  shard->mutant_ = mutant;
  shard->ledger_ = Ledger(mutant);
  shard->ledger_.Close({}, refused);
  shard->state_ = std::move(state);
  return shard;
}

std::uint64_t ShardCut::bytes() const {
  std::uint64_t floats = values.size();
  for (const storage::DenseArray& slot : slots) floats += slot.size();
  return floats * sizeof(float) + ledger.MemoryBytes();
}

absl::StatusOr<std::unique_ptr<Shard>> Shard::Restore(const ShardSettings& settings, ShardCut cut, ShardEpoch epoch, MapVersion start,
                                                      const IntervalSet& refused, fault::Mutant mutant) {
  EG_ASSIGN_OR_RETURN(const std::uint64_t elements, CheckRows(settings));
  auto state = std::make_unique<State>();
  EG_ASSIGN_OR_RETURN(state->optimizer, optimizer::Optimizer::Create(settings.optimizer));
  const auto differs = [&](absl::string_view what, const std::string& want, const std::string& got) {
    return absl::InvalidArgumentError(absl::StrCat("a cut does not fit its shard: ", what, ": variable=", settings.variable,
                                                   " shard=", settings.shard.ToString(), " want=", want, " got=", got));
  };
  const ShardSettings& was = *cut.settings;
  const auto rows = [](const ShardSettings& s) {
    return absl::StrCat(s.variable, s.variable_shape.ToString(), " rows ", s.row_begin, "..", s.row_end);
  };
  if (rows(was) != rows(settings)) return differs("rows", rows(settings), rows(was));
  if (was.optimizer.type != settings.optimizer.type) return differs("optimizer", settings.optimizer.type, was.optimizer.type);
  if (cut.slots.size() != static_cast<std::size_t>(state->optimizer.slots())) {
    return differs("optimizer slots", absl::StrCat(state->optimizer.slots()), absl::StrCat(cut.slots.size()));
  }
  if (cut.values.size() != elements) return differs("elements", absl::StrCat(elements), absl::StrCat(cut.values.size()));
  state->values = std::move(cut.values);
  for (std::size_t k = 0; k < cut.slots.size(); ++k) {
    if (cut.slots[k].size() != elements) return differs("elements of a slot", absl::StrCat(elements), absl::StrCat(cut.slots[k].size()));
    state->slots[k] = std::move(cut.slots[k]);
  }
  std::unique_ptr<Shard> shard(new Shard);
  shard->settings_ = std::make_shared<const ShardSettings>(settings);
  shard->lsn_ = cut.lsn;
  shard->vlsn_ = cut.vlsn;
  shard->updates_applied_ = cut.updates_applied;
  shard->mutant_ = mutant;
  shard->skips_ = std::move(cut.skips);
  shard->ledger_ = Ledger::Restored(cut.ledger.done(), cut.ledger.refused(), cut.ledger.open(), mutant);
  shard->state_ = std::move(state);
  shard->BecomeOwned(epoch, start, refused);
  return shard;
}

ShardCut Shard::Cut() const {
  EG_CHECK(!applying());
  ShardCut cut;
  cut.settings = settings_;
  cut.epoch = epoch_;
  cut.start = start_;
  cut.lsn = lsn_;
  cut.vlsn = vlsn_;
  cut.updates_applied = updates_applied_;
  cut.skips = skips_;
  cut.ledger = mutant_ == fault::Mutant::kSnapshotLosesOpen     ? ledger_.WithoutOpen()
               : mutant_ == fault::Mutant::kLedgerNotInSnapshot ? Ledger()
                                                                : ledger_;
  cut.values = state_->values;
  for (int k = 0; k < state_->optimizer.slots(); ++k) cut.slots.push_back(state_->slots[k]);
  return cut;
}

std::string Shard::Where() const { return absl::StrCat("variable=", settings_->variable, " shard=", settings_->shard.ToString()); }

PushResult Shard::Invalid(std::string message) const { return {PushCode::kInvalid, lsn_, std::move(message)}; }

PushResult Shard::Apply(const Push& push) {
  PushResult result = BeginApply(push);
  if (applying()) ContinueApply(~0ull);
  return result;
}

std::uint64_t Shard::ContinueApply(std::uint64_t bytes_max) {
  EG_CHECK(applying());
  const float* const from = applying_.gradient;
  applying_.next_chunk = state_->Apply(applying_.gradient, updates_applied_, applying_.next_chunk, bytes_max);
  const auto floats = static_cast<std::uint64_t>(applying_.gradient - from);
  if (applying_.next_chunk == state_->values.chunks()) applying_ = Applying{};
  return floats * sizeof(float);
}

PushResult Shard::BeginApply(const Push& push) {
  EG_CHECK(!applying());
  // Line 8: the fence.
  if (push.epoch != epoch_ && mutant_ != fault::Mutant::kNoEpochCheck) return {PushCode::kStale, lsn_, ""};
  if (stopped_ && mutant_ != fault::Mutant::kSourceGoesOn) return {PushCode::kStale, lsn_, ""};  // line 22
  if (sealed_ && mutant_ != fault::Mutant::kSealAdmits) {
    if (mutant_ == fault::Mutant::kSealEntersRefused) ledger_.Close({}, IntervalSet::Range(push.closure.value(), push.closure.value() + 1));
    return {PushCode::kRefused, lsn_, absl::StrCat("shard is sealed, the job is ending: ", Where())};
  }
  if (push.update.value() >= kUpdatesPerClosureMax) {
    return Invalid(absl::StrCat("update number out of range: ", Where(), " update=", push.update.value(), " max=", kUpdatesPerClosureMax - 1));
  }
  if (push.closure.value() == ~0ull) return Invalid(absl::StrCat("closure number out of range: ", Where(), " closure=", push.closure.value()));

  // Lines 9 and 10: the ledger.
  switch (ledger_.Check(push.closure, push.update, push.attempt)) {
    case Admission::kAdmit: break;
    case Admission::kDuplicate: ++duplicates_; return {PushCode::kDuplicate, lsn_, ""};
    case Admission::kRefused:
      return {PushCode::kRefused, lsn_, absl::StrCat("closure was cancelled: ", Where(), " closure=", push.closure.ToString())};
    case Admission::kSuperseded: return {PushCode::kSuperseded, lsn_, ""};
  }

  // Line 11: decode, check, reserve. Nothing has changed when it fails.
  if (mutant_ == fault::Mutant::kRefusedPushLeavesBit) ledger_.Record(push.closure, push.update, push.attempt);
  if (!push.defect.empty()) return Invalid(absl::StrCat(push.defect, ": ", Where()));
  if (push.kind == UpdateKind::kSkip) {
    if (!push.payload.empty()) return Invalid(absl::StrCat("a skipped update carries no payload: ", Where(), " got=", push.payload.size()));
    if (push.skip_reason.empty() || push.skip_reason.size() > kSkipReasonBytesMax) {
      return Invalid(absl::StrCat("a skipped update needs a reason of 1 to 64 bytes: ", Where(), " got=", push.skip_reason.size()));
    }
  } else {
    const std::uint64_t rows = settings_->row_end - settings_->row_begin;
    if (push.rows != rows) return Invalid(absl::StrCat("gradient rows mismatch: ", Where(), " want=", rows, " got=", push.rows));
    if (push.payload.size() != value_bytes()) {
      return Invalid(absl::StrCat("gradient bytes mismatch: ", Where(), " want=", value_bytes(), " got=", push.payload.size()));
    }
    if (reinterpret_cast<std::uintptr_t>(push.payload.data()) % alignof(float) != 0)
      return Invalid(absl::StrCat("gradient is not aligned: ", Where()));
  }
  if (ledger_.open().size() >= kOpenClosuresMax && !ledger_.open().contains(push.closure)) {
    return {PushCode::kBusy, lsn_, absl::StrCat("too many closures are open: ", Where(), " max=", kOpenClosuresMax)};
  }
  if (push.kind == UpdateKind::kGradient && !state_->Reserve()) {
    return {PushCode::kOverBudget, lsn_, absl::StrCat("no memory to apply out of place: ", Where(), " bytes=", value_bytes() + slot_bytes())};
  }

  // Lines 12 and 13: from here nothing fails.
  if (push.kind != UpdateKind::kSkip || mutant_ != fault::Mutant::kSkipLeavesNoBit) ledger_.Record(push.closure, push.update, push.attempt);
  ++lsn_;
  if (push.kind == UpdateKind::kSkip) {
    if (mutant_ == fault::Mutant::kSkipApplies) {
      const std::vector<float> zeros(state_->values.size());
      const float* from = zeros.data();
      EG_CHECK(state_->Reserve());
      state_->Apply(from, ++updates_applied_, 0, ~0ull);
    }
    const std::string reason =
        skips_.size() < kSkipReasonsMax || skips_.contains(std::string(push.skip_reason)) ? std::string(push.skip_reason) : "other";
    ++skips_[reason];
  } else {
    ++updates_applied_;
    if (mutant_ != fault::Mutant::kVlsnStays) vlsn_ = lsn_;
    applying_.gradient = reinterpret_cast<const float*>(push.payload.data());
  }
  return {PushCode::kApplied, lsn_, ""};
}

PullResult Shard::Read(const Pull& pull) const {
  EG_CHECK(!applying());
  PullResult result;
  result.start = start_;
  result.vlsn = vlsn_;
  if ((pull.epoch != epoch_ && mutant_ != fault::Mutant::kNoEpochCheck) || (stopped_ && mutant_ != fault::Mutant::kSourceGoesOn)) {
    result.code = PullCode::kStale;
  } else if (pull.has && (pull.have_start == start_ || mutant_ == fault::Mutant::kUnchangedByVlsn) && pull.have_vlsn == vlsn_) {
    result.code = PullCode::kUnchanged;
  } else {
    result.code = PullCode::kValues;
    result.chunks = state_->values.Share();
  }
  return result;
}

bool Shard::Close(ShardEpoch epoch, MapVersion version, const IntervalSet& done, const IntervalSet& refused) {
  if ((epoch != epoch_ || start_ > version) && mutant_ != fault::Mutant::kCloseOfAnyTime) return false;
  if (stopped_ && mutant_ != fault::Mutant::kSourceGoesOn) return false;  // the next owner is told the whole
  if (ledger_.Close(done, refused) && mutant_ != fault::Mutant::kCloseLeavesLsn) ++lsn_;
  return true;
}

std::unique_ptr<Shard> Shard::Snapshot() const {
  EG_CHECK(!applying());
  std::unique_ptr<Shard> copy(new Shard);
  copy->settings_ = settings_;
  copy->epoch_ = epoch_;
  copy->start_ = start_;
  copy->lsn_ = lsn_;
  copy->vlsn_ = vlsn_;
  copy->updates_applied_ = updates_applied_;
  copy->mutant_ = mutant_;
  copy->skips_ = skips_;
  copy->ledger_ = mutant_ == fault::Mutant::kSnapshotLosesOpen ? ledger_.WithoutOpen() : ledger_;
  copy->state_ = std::make_unique<State>(*state_);
  return copy;
}

void Shard::BecomeOwned(ShardEpoch epoch, MapVersion start, const IntervalSet& refused) {
  epoch_ = epoch;
  start_ = start;
  sealed_ = stopped_ = false;
  if (ledger_.Close({}, refused)) ++lsn_;
}

std::uint64_t Shard::value_bytes() const { return state_->values.size() * sizeof(float); }
std::uint64_t Shard::slot_bytes() const { return value_bytes() * static_cast<std::uint64_t>(state_->optimizer.slots()); }

std::uint64_t Shard::Digest() const {
  EG_CHECK(!applying());
  return state_->values.Digest(settings_->row_begin * settings_->variable_shape.row_elements());
}

std::uint64_t Shard::SlotDigest() const {
  EG_CHECK(!applying());
  const std::uint64_t first = settings_->row_begin * settings_->variable_shape.row_elements();
  std::uint64_t sum = 0;
  for (int k = 0; k < state_->optimizer.slots(); ++k) sum += state_->slots[k].Digest(first + (static_cast<std::uint64_t>(k) << 56));
  return sum;
}

std::vector<float> Shard::Values() const {
  EG_CHECK(!applying());
  std::vector<float> values;
  values.reserve(state_->values.size());
  for (std::size_t c = 0; c < state_->values.chunks(); ++c) {
    const std::span<const float> chunk = state_->values.chunk(c);
    values.insert(values.end(), chunk.begin(), chunk.end());
  }
  return values;
}

}  // namespace evergrad::ps_server
