#include "ps_server/shard/dense_contents.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/checked_math.h"
#include "common/base/status.h"
#include "common/sharding/partitioner.h"
#include "ps_server/storage/initializer.h"

namespace evergrad::ps_server {
namespace {

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

// All or nothing, before the ledger is touched.
bool DenseContents::Reserve() {
  bool reserved = values_.ReserveWrites();
  for (int k = 0; reserved && k < optimizer_.slots(); ++k) reserved = slots_[k].ReserveWrites();
  if (reserved) return true;
  values_.CancelWrites();
  for (storage::DenseArray& slot : slots_) slot.CancelWrites();
  return false;
}

absl::StatusOr<std::unique_ptr<DenseContents>> DenseContents::FromSeed(const ShardSettings& settings,
                                                                       const std::shared_ptr<storage::ChunkPool>& pool) {
  EG_ASSIGN_OR_RETURN(const std::uint64_t elements, CheckRows(settings));
  EG_RETURN_IF_ERROR(storage::CheckInitializer(settings.initializer));
  auto contents = std::make_unique<DenseContents>();
  EG_ASSIGN_OR_RETURN(contents->optimizer_, optimizer::Optimizer::Create(settings.optimizer));
  if (contents->optimizer_.for_tables_only()) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer is for tables only, use adagrad: variable=", settings.variable, " type=", settings.optimizer.type));
  }
  EG_ASSIGN_OR_RETURN(contents->values_, storage::DenseArray::Create(elements, pool));
  for (int k = 0; k < contents->optimizer_.slots(); ++k) {
    EG_ASSIGN_OR_RETURN(contents->slots_[k], storage::DenseArray::Filled(elements, contents->optimizer_.slot_initial(k), pool));
  }
  contents->rows_ = settings.row_end - settings.row_begin;
  contents->first_element_ = settings.row_begin * settings.variable_shape.row_elements();
  storage::FillInitial(settings.initializer, settings.variable, contents->first_element_, &contents->values_);
  return contents;
}

absl::StatusOr<std::unique_ptr<DenseContents>> DenseContents::FromCut(const ShardSettings& settings, ShardCut cut) {
  EG_ASSIGN_OR_RETURN(const std::uint64_t elements, CheckRows(settings));
  auto contents = std::make_unique<DenseContents>();
  EG_ASSIGN_OR_RETURN(contents->optimizer_, optimizer::Optimizer::Create(settings.optimizer));
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
  if (cut.slots.size() != static_cast<std::size_t>(contents->optimizer_.slots())) {
    return differs("optimizer slots", absl::StrCat(contents->optimizer_.slots()), absl::StrCat(cut.slots.size()));
  }
  if (cut.values.size() != elements) return differs("elements", absl::StrCat(elements), absl::StrCat(cut.values.size()));
  contents->values_ = std::move(cut.values);
  for (std::size_t k = 0; k < cut.slots.size(); ++k) {
    if (cut.slots[k].size() != elements) return differs("elements of a slot", absl::StrCat(elements), absl::StrCat(cut.slots[k].size()));
    contents->slots_[k] = std::move(cut.slots[k]);
  }
  contents->rows_ = settings.row_end - settings.row_begin;
  contents->first_element_ = settings.row_begin * settings.variable_shape.row_elements();
  return contents;
}

std::optional<Contents::Refusal> DenseContents::Prepare(const Push& push, absl::string_view where) {
  const auto invalid = [&](auto&&... text) { return Refusal{PushCode::kInvalid, absl::StrCat(text...)}; };
  if (push.rows_of.present) return invalid("a dense shard takes no id list: ", where);
  if (push.rows != rows_) return invalid("gradient rows mismatch: ", where, " want=", rows_, " got=", push.rows);
  if (push.payload.size() != value_bytes()) {
    return invalid("gradient bytes mismatch: ", where, " want=", value_bytes(), " got=", push.payload.size());
  }
  if (reinterpret_cast<std::uintptr_t>(push.payload.data()) % alignof(float) != 0) return invalid("gradient is not aligned: ", where);
  if (!Reserve()) return Refusal{PushCode::kOverBudget, absl::StrCat("no memory to apply out of place: ", where, " bytes=", value_bytes() + slot_bytes())};
  return std::nullopt;
}

std::uint64_t DenseContents::Begin(const Push& push, std::uint64_t t) {
  gradient_ = reinterpret_cast<const float*>(push.payload.data());
  next_chunk_ = 0;
  t_ = t;
  return 0;
}

std::uint64_t DenseContents::Continue(std::uint64_t bytes_max) {
  EG_CHECK(applying());
  const optimizer::Optimizer::Step step = optimizer_.Begin(t_);
  std::uint64_t bytes = 0;
  for (; next_chunk_ < values_.chunks() && (bytes == 0 || bytes < bytes_max); ++next_chunk_) {
    const storage::DenseArray::Write value = values_.BeginWrite(next_chunk_);
    optimizer::Run run{value.size, gradient_, value.from, value.to, {}, {}};
    for (int k = 0; k < optimizer_.slots(); ++k) {
      const storage::DenseArray::Write slot = slots_[k].BeginWrite(next_chunk_);
      run.slot_from[k] = slot.from;
      run.slot_to[k] = slot.to;
    }
    optimizer_.Apply(step, run);
    values_.EndWrite(next_chunk_);
    for (int k = 0; k < optimizer_.slots(); ++k) slots_[k].EndWrite(next_chunk_);
    gradient_ += value.size;
    bytes += value.size * sizeof(float);
  }
  if (next_chunk_ == values_.chunks()) gradient_ = nullptr;
  return bytes;
}

void DenseContents::ApplyNothing(std::uint64_t t) {
  const std::vector<float> zeros(values_.size());
  EG_CHECK(Reserve());
  Push push;
  push.payload = std::as_bytes(std::span(zeros));
  Begin(push, t);
  Continue(~0ull);
}

void DenseContents::Read(const Pull& pull, PullResult* result, absl::string_view where) const {
  if (pull.rows_of.present) {
    result->invalid = absl::StrCat("a dense shard takes no id list: ", where);
    return;
  }
  result->chunks = values_.Share();
}

void DenseContents::Cut(std::uint64_t, ShardCut* cut) {
  cut->values = values_;
  for (int k = 0; k < optimizer_.slots(); ++k) cut->slots.push_back(slots_[k]);
}

std::unique_ptr<Contents> DenseContents::Copy() const {
  EG_CHECK(!applying());
  return std::make_unique<DenseContents>(*this);
}

std::vector<float> DenseContents::Values() const {
  std::vector<float> values;
  values.reserve(values_.size());
  for (std::size_t c = 0; c < values_.chunks(); ++c) {
    const std::span<const float> chunk = values_.chunk(c);
    values.insert(values.end(), chunk.begin(), chunk.end());
  }
  return values;
}

std::uint64_t DenseContents::SlotDigest() const {
  std::uint64_t sum = 0;
  for (int k = 0; k < optimizer_.slots(); ++k) sum += slots_[k].Digest(first_element_ + (static_cast<std::uint64_t>(k) << 56));
  return sum;
}

}  // namespace evergrad::ps_server
