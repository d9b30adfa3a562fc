#include "ps_server/shard/shard.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "ps_server/shard/dense_contents.h"
#include "ps_server/shard/shard_rules.h"
#include "ps_server/shard/slot_contents.h"

namespace evergrad::ps_server {
namespace {

constexpr std::size_t kSkipReasonBytesMax = 64;

// SeedOf returns contents with the initial values, and ContentsOf returns the contents of a cut.
absl::StatusOr<std::unique_ptr<Contents>> SeedOf(
    const ShardSettings& settings, const std::shared_ptr<storage::ChunkPool>& pool,
    const std::shared_ptr<storage::MemoryBudget>& budget) {
  if (settings.slot) return SlotContents::FromSeed(settings, budget);
  return DenseContents::FromSeed(settings, pool);
}
absl::StatusOr<std::unique_ptr<Contents>> ContentsOf(const ShardSettings& settings, ShardCut cut) {
  if (settings.slot) return SlotContents::FromCut(settings, std::move(cut));
  return DenseContents::FromCut(settings, std::move(cut));
}

// Returns the defect of a skipped update, or "".
std::string DefectOfSkip(const Push& push, const ShardSettings& settings,
                         const std::string& where) {
  const bool fits =
      push.wire == tensor::WireType::kSeveral ||
      (settings.slot ? tensor::WireBytes(push.wire) != 0 : push.wire == settings.wire);
  if (!fits)
    return absl::StrCat("gradient dtype mismatch: ", where,
                        " want=", tensor::WireTypeName(settings.wire),
                        " got=", tensor::WireTypeName(push.wire));
  if (!push.payload.empty())
    return absl::StrCat("a skipped update must have no payload: ", where,
                        " bytes=", push.payload.size());
  if (push.skip_reason.empty() || push.skip_reason.size() > kSkipReasonBytesMax)
    return absl::StrCat("a skipped update needs a reason of 1 to 64 bytes: ", where,
                        " bytes=", push.skip_reason.size());
  return "";
}

}  // namespace

Shard::Shard() = default;
Shard::~Shard() = default;

absl::StatusOr<std::unique_ptr<Shard>> Shard::FromSeed(
    const ShardSettings& settings, ShardEpoch epoch, MapVersion start, const IntervalSet& refused,
    const std::shared_ptr<storage::ChunkPool>& pool,
    const std::shared_ptr<storage::MemoryBudget>& budget) {
  EG_ASSIGN_OR_RETURN(std::unique_ptr<Contents> contents, SeedOf(settings, pool, budget));
  std::unique_ptr<Shard> shard(new Shard);
  shard->settings_ = std::make_shared<const ShardSettings>(settings);
  shard->epoch_ = epoch;
  shard->start_ = start;
  shard->ledger_.Close({}, refused);
  shard->contents_ = std::move(contents);
  return shard;
}

std::uint64_t ShardCut::bytes() const {
  std::uint64_t floats = values.size();
  for (const storage::DenseArray& state : states) floats += state.size();
  return floats * sizeof(float) + table_bytes + ledger.MemoryBytes();
}

absl::StatusOr<std::unique_ptr<Shard>> Shard::Restore(const ShardSettings& settings, ShardCut cut,
                                                      ShardEpoch epoch, MapVersion start,
                                                      const IntervalSet& refused) {
  std::unique_ptr<Shard> shard(new Shard);
  shard->settings_ = std::make_shared<const ShardSettings>(settings);
  shard->lsn_ = cut.lsn;
  shard->vlsn_ = cut.vlsn;
  shard->updates_applied_ = cut.updates_applied;
  shard->skips_ = std::move(cut.skips);
  shard->ledger_ = std::move(cut.ledger);
  EG_ASSIGN_OR_RETURN(shard->contents_, ContentsOf(settings, std::move(cut)));
  shard->BecomeOwned(epoch, start, refused);
  return shard;
}

ShardCut Shard::Cut(std::uint64_t preimage_bytes_max) const {
  EG_CHECK(!applying());
  ShardCut cut;
  cut.settings = settings_;
  cut.epoch = epoch_;
  cut.start = start_;
  cut.lsn = lsn_;
  cut.vlsn = vlsn_;
  cut.updates_applied = updates_applied_;
  cut.skips = skips_;
  cut.ledger = ShardRules::InCut(ledger_);
  contents_->Cut(preimage_bytes_max, &cut);
  return cut;
}

absl::StatusOr<SlotSlice> Shard::NextSlice(std::uint64_t serial, std::uint64_t bytes_max) const {
  EG_CHECK(!applying());
  return contents_->NextSlice(serial, bytes_max);
}

void Shard::EndCut(std::uint64_t serial) const { contents_->EndCut(serial); }

const std::string& Shard::Where() const {
  if (where_.empty())
    where_ = absl::StrCat("variable=", settings_->variable, " shard=", settings_->shard.ToString());
  return where_;
}

PushResult Shard::Invalid(std::string message) const {
  return {PushCode::kInvalid, lsn_, std::move(message)};
}

PushResult Shard::Apply(const Push& push) {
  PushResult result = BeginApply(push);
  if (applying()) ContinueApply(~0ull);
  return result;
}

bool Shard::applying() const { return contents_->applying(); }

std::uint64_t Shard::ContinueApply(std::uint64_t bytes_max) {
  return contents_->Continue(bytes_max);
}

PushResult Shard::BeginApply(const Push& push) {
  EG_CHECK(!applying());
  // LEDGER lines 8, 20a and 22: the fence comes first.
  if (!ShardRules::Serves(push.epoch, epoch_, stopped_)) return {PushCode::kStale, lsn_, ""};
  if (ShardRules::RefusesPushes(sealed_)) {
    return {PushCode::kRefused, lsn_,
            absl::StrCat("the shard is sealed, because the job is ending: ", Where())};
  }
  // LEDGER line 35: a sender without a grant can neither read nor change the ledger.
  if (!ShardRules::IsProved(push)) {
    return Invalid(absl::StrCat(push.unproved, ": ", Where(), " closure=", push.closure.value(),
                                " attempt=", push.attempt.ToString()));
  }
  if (push.update.value() >= kUpdatesPerClosureMax) {
    return Invalid(absl::StrCat("the update number is out of range: ", Where(), " update=",
                                push.update.value(), " max=", kUpdatesPerClosureMax - 1));
  }
  if (push.closure.value() == ~0ull)
    return Invalid(absl::StrCat("the closure number is out of range: ", Where(),
                                " closure=", push.closure.value()));

  // LEDGER lines 9 and 10: the ledger decides about the push.
  switch (ShardRules::Check(push, &ledger_)) {
    case Admission::kAdmit: break;
    case Admission::kDuplicate: ++duplicates_; return {PushCode::kDuplicate, lsn_, ""};
    case Admission::kRefused:
      return {PushCode::kRefused, lsn_,
              absl::StrCat("the closure was cancelled: ", Where(),
                           " closure=", push.closure.ToString())};
    case Admission::kSuperseded: return {PushCode::kSuperseded, lsn_, ""};
  }

  // LEDGER line 11: the push is checked and its memory reserved. A push that fails here has changed
  // nothing.
  if (const absl::string_view defect = ShardRules::DefectOf(push); !defect.empty())
    return Invalid(absl::StrCat(defect, ": ", Where()));
  if (push.kind == UpdateKind::kSkip) {
    std::string defect = DefectOfSkip(push, *settings_, Where());
    if (!defect.empty()) return Invalid(std::move(defect));
  }
  if (ledger_.open().size() >= kOpenClosuresMax && !ledger_.open().contains(push.closure)) {
    return {PushCode::kBusy, lsn_,
            absl::StrCat("too many closures are open: ", Where(), " max=", kOpenClosuresMax)};
  }
  if (push.kind != UpdateKind::kSkip) {
    if (auto refusal = contents_->Prepare(push, Where()))
      return {refusal->code, lsn_, std::move(refusal->message)};
  }

  // LEDGER lines 12 and 13: no step after this point can fail.
  if (ShardRules::IsRecorded(push.kind)) ledger_.Record(push.closure, push.update, push.attempt);
  ++lsn_;
  if (push.kind == UpdateKind::kSkip) {
    const std::string reason =
        skips_.size() < kSkipReasonsMax || skips_.contains(std::string(push.skip_reason))
            ? std::string(push.skip_reason)
            : "other";
    ++skips_[reason];
  } else {
    // The eviction of rows for this push is a separate event (LEDGER line 6).
    lsn_ += contents_->Begin(push, ++updates_applied_);
    vlsn_ = ShardRules::VlsnAfterGradient(vlsn_, lsn_);
  }
  return {PushCode::kApplied, lsn_, ""};
}

PullPlan Shard::Read(const Pull& pull) const {
  EG_CHECK(!applying());
  PullPlan plan;
  plan.result.wire = settings_->wire;
  if (!ShardRules::Serves(pull.epoch, epoch_, stopped_)) {
    plan.result.code = PullCode::kStale;
  } else if (!settings_->slot && ShardRules::IsUnchanged(pull, start_, vlsn_)) {
    plan.result.code = PullCode::kUnchanged;
  } else {
    plan = contents_->Read(pull, Where());
    plan.result.code = PullCode::kValues;
  }
  plan.result.start = start_;
  plan.result.vlsn = vlsn_;
  return plan;
}

void PullPlan::ReadTo(std::byte* out, std::vector<storage::RowReading>* readings) const {
  for (const storage::RowReading& table : rows) {
    readings->push_back({table.table, table.ids, table.wire, out});
    out += table.ids.size() * table.table->dimension() * tensor::WireBytes(table.wire);
  }
}

bool Shard::Close(ShardEpoch epoch, MapVersion version, const IntervalSet& done,
                  const IntervalSet& refused) {
  if (!ShardRules::TakesClose(epoch, version, epoch_, start_) ||
      ShardRules::IgnoresCloses(stopped_))
    return false;
  lsn_ += ShardRules::EventsOfClose(ledger_.Close(done, refused));
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
  copy->skips_ = skips_;
  copy->ledger_ = ShardRules::InSnapshot(ledger_);
  copy->contents_ = contents_->Copy();
  return copy;
}

void Shard::BecomeOwned(ShardEpoch epoch, MapVersion start, const IntervalSet& refused) {
  epoch_ = epoch;
  start_ = start;
  sealed_ = stopped_ = false;
  if (ledger_.Close({}, refused)) ++lsn_;
}

std::uint64_t Shard::value_bytes() const { return contents_->value_bytes(); }
std::uint64_t Shard::state_bytes() const { return contents_->state_bytes(); }

std::uint64_t Shard::Digest() const {
  EG_CHECK(!applying());
  return contents_->Digest();
}

std::uint64_t Shard::StateDigest() const {
  EG_CHECK(!applying());
  return contents_->StateDigest();
}

std::vector<float> Shard::Values() const {
  EG_CHECK(!applying());
  return contents_->Values();
}

std::vector<const storage::EmbeddingTable*> Shard::Tables() const {
  EG_CHECK(!applying());
  return contents_->Tables();
}

}  // namespace evergrad::ps_server
