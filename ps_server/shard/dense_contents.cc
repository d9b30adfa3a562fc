#include "ps_server/shard/dense_contents.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/checked_math.h"
#include "common/base/status.h"
#include "common/sharding/partitioner.h"
#include "common/tensor/convert.h"
#include "ps_server/storage/initializer.h"

namespace evergrad::ps_server {
namespace {

// Number of gradient elements that are converted to float32 at a time. The converted elements stay
// in the first-level cache.
constexpr std::size_t kWidenFloats = 2048;

// Returns the number of elements of the shard's rows, or InvalidArgument if the rows are outside of
// the shape, or have more bytes than a partition may have.
absl::StatusOr<std::uint64_t> CheckRows(const ShardSettings& s) {
  if (s.variable_shape.rank() > tensor::kRankMax || !CheckedProduct(s.variable_shape.dims())) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape has more than 8 dimensions or overflows: variable=", s.variable));
  }
  const std::uint64_t rows = s.variable_shape.rows();
  if (s.row_begin >= s.row_end || s.row_end > rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the rows are outside of the shape: variable=", s.variable, " shape=",
        s.variable_shape.ToString(), " row_begin=", s.row_begin, " row_end=", s.row_end));
  }
  const auto elements = CheckedMul(s.row_end - s.row_begin, s.variable_shape.row_elements());
  const auto bytes = elements ? CheckedMul(*elements, sizeof(float)) : std::nullopt;
  if (!bytes || *bytes == 0 || *bytes > sharding::kPartitionBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the bytes of a shard are out of range: variable=", s.variable,
        " bytes=", bytes.value_or(~0ull), " min=4 max=", sharding::kPartitionBytesMax));
  }
  return *elements;
}

}  // namespace

// Reserves memory for all arrays or for none. Called before the ledger is changed.
bool DenseContents::Reserve() {
  bool reserved = values_.ReserveWrites() && wire_values_.ReserveWrites();
  for (int k = 0; reserved && k < optimizer_.states(); ++k) reserved = states_[k].ReserveWrites();
  if (reserved) return true;
  values_.CancelWrites();
  wire_values_.CancelWrites();
  for (storage::DenseArray& state : states_) state.CancelWrites();
  return false;
}

absl::StatusOr<std::unique_ptr<DenseContents>> DenseContents::FromSeed(
    const ShardSettings& settings, const std::shared_ptr<storage::ChunkPool>& pool) {
  EG_ASSIGN_OR_RETURN(const std::uint64_t elements, CheckRows(settings));
  EG_RETURN_IF_ERROR(storage::CheckInitializer(settings.initializer));
  auto contents = std::make_unique<DenseContents>();
  EG_ASSIGN_OR_RETURN(contents->optimizer_, optimizer::Optimizer::Create(settings.optimizer));
  if (contents->optimizer_.for_tables_only()) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer is for tables only, use adagrad: variable=", settings.variable,
                     " type=", settings.optimizer.type));
  }
  EG_ASSIGN_OR_RETURN(contents->values_, storage::DenseArray::Create(elements, pool));
  for (int k = 0; k < contents->optimizer_.states(); ++k) {
    EG_ASSIGN_OR_RETURN(
        contents->states_[k],
        storage::DenseArray::Filled(elements, contents->optimizer_.state_initial(k), pool));
  }
  contents->rows_ = settings.row_end - settings.row_begin;
  contents->first_element_ = settings.row_begin * settings.variable_shape.row_elements();
  storage::FillInitial(settings.initializer, settings.variable, contents->first_element_,
                       &contents->values_);
  contents->wire_ = settings.wire;
  EG_RETURN_IF_ERROR(contents->MakeWireValues());
  return contents;
}

absl::StatusOr<std::unique_ptr<DenseContents>> DenseContents::FromCut(const ShardSettings& settings,
                                                                      ShardCut cut) {
  EG_ASSIGN_OR_RETURN(const std::uint64_t elements, CheckRows(settings));
  auto contents = std::make_unique<DenseContents>();
  EG_ASSIGN_OR_RETURN(contents->optimizer_, optimizer::Optimizer::Create(settings.optimizer));
  const auto differs = [&](absl::string_view what, const std::string& want,
                           const std::string& got) {
    return absl::InvalidArgumentError(
        absl::StrCat("a cut does not fit its shard: ", what, ": variable=", settings.variable,
                     " shard=", settings.shard.ToString(), " want=", want, " got=", got));
  };
  const ShardSettings& was = *cut.settings;
  const auto rows = [](const ShardSettings& s) {
    return absl::StrCat(s.variable, s.variable_shape.ToString(), " rows ", s.row_begin, "..",
                        s.row_end);
  };
  if (rows(was) != rows(settings)) return differs("rows", rows(settings), rows(was));
  if (was.optimizer.type != settings.optimizer.type)
    return differs("optimizer", settings.optimizer.type, was.optimizer.type);
  if (cut.states.size() != static_cast<std::size_t>(contents->optimizer_.states())) {
    return differs("optimizer states", absl::StrCat(contents->optimizer_.states()),
                   absl::StrCat(cut.states.size()));
  }
  if (cut.values.size() != elements)
    return differs("elements", absl::StrCat(elements), absl::StrCat(cut.values.size()));
  contents->values_ = std::move(cut.values);
  for (std::size_t k = 0; k < cut.states.size(); ++k) {
    if (cut.states[k].size() != elements)
      return differs("elements of an optimizer state", absl::StrCat(elements),
                     absl::StrCat(cut.states[k].size()));
    contents->states_[k] = std::move(cut.states[k]);
  }
  contents->rows_ = settings.row_end - settings.row_begin;
  contents->first_element_ = settings.row_begin * settings.variable_shape.row_elements();
  contents->wire_ = settings.wire;
  EG_RETURN_IF_ERROR(contents->MakeWireValues());
  return contents;
}

absl::Status DenseContents::MakeWireValues() {
  if (wire_ == tensor::WireType::kFloat32) return absl::OkStatus();
  EG_ASSIGN_OR_RETURN(wire_values_,
                      storage::DenseArray::Create((values_.size() + 1) / 2, values_.pool()));
  for (std::size_t c = 0; c < values_.chunks(); ++c)
    WriteWireValues(c, values_.chunk(c).data(), values_.chunk(c).size());
  return absl::OkStatus();
}

void DenseContents::WriteWireValues(std::size_t c, const float* values, std::size_t size) {
  if (wire_ == tensor::WireType::kFloat32) return;
  // Two chunks of values share one chunk of wire values. BeginWrite returns the same memory for
  // both, and EndWrite is called after the second one.
  const storage::DenseArray::Write write = wire_values_.BeginWrite(c / 2);
  tensor::Narrow(wire_, values, size,
                 reinterpret_cast<std::byte*>(write.to) +
                     (c % 2) * storage::kChunkFloats * tensor::WireBytes(wire_));
  if (c % 2 == 1 || c + 1 == values_.chunks()) wire_values_.EndWrite(c / 2);
}

std::optional<Contents::Refusal> DenseContents::Prepare(const Push& push, absl::string_view where) {
  const auto invalid = [&](auto&&... text) {
    return Refusal{PushCode::kInvalid, absl::StrCat(text...)};
  };
  if (push.rows_of.present) return invalid("a dense shard takes no id list: ", where);
  const UpdateKind want =
      optimizer_.is_moving_average() ? UpdateKind::kMovingAverage : UpdateKind::kGradient;
  if (push.kind != want) {
    const auto name = [](UpdateKind kind) {
      return kind == UpdateKind::kMovingAverage ? "MOVING_AVERAGE" : "GRADIENT";
    };
    return invalid("update kind mismatch: ", where, " want=", name(want), " got=", name(push.kind));
  }
  if (push.rows != rows_)
    return invalid("gradient rows mismatch: ", where, " want=", rows_, " got=", push.rows);
  if (push.wire != wire_)
    return invalid("gradient dtype mismatch: ", where, " want=", tensor::WireTypeName(wire_),
                   " got=", tensor::WireTypeName(push.wire));
  if (const std::uint64_t bytes = values_.size() * tensor::WireBytes(wire_);
      push.payload.size() != bytes) {
    return invalid("gradient bytes mismatch: ", where, " want=", bytes,
                   " got=", push.payload.size());
  }
  if (wire_ == tensor::WireType::kFloat32 &&
      reinterpret_cast<std::uintptr_t>(push.payload.data()) % alignof(float) != 0)
    return invalid("gradient is not aligned: ", where);
  if (!Reserve())
    return Refusal{
        PushCode::kOverBudget,
        absl::StrCat("out of memory for new values while the old values are being read: ", where,
                     " bytes=", value_bytes() + state_bytes())};
  return std::nullopt;
}

std::uint64_t DenseContents::Begin(const Push& push, std::uint64_t t) {
  gradient_ = push.payload.data();
  applying_ = true;
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
    storage::DenseArray::Write states[optimizer::kStatesMax];
    for (int k = 0; k < optimizer_.states(); ++k) states[k] = states_[k].BeginWrite(next_chunk_);
    ApplyChunk(step, value, states);
    values_.EndWrite(next_chunk_);
    for (int k = 0; k < optimizer_.states(); ++k) states_[k].EndWrite(next_chunk_);
    bytes += value.size * sizeof(float);
  }
  if (next_chunk_ == values_.chunks()) {
    applying_ = false;
    gradient_ = nullptr;
  }
  return bytes;
}

void DenseContents::ApplyChunk(const optimizer::Optimizer::Step& step,
                               const storage::DenseArray::Write& value,
                               const storage::DenseArray::Write (&states)[optimizer::kStatesMax]) {
  const auto apply = [&](std::size_t at, std::size_t size, const float* gradient) {
    optimizer::ElementSpan span{size, gradient, value.from + at, value.to + at, {}, {}};
    for (int k = 0; k < optimizer_.states(); ++k) {
      span.state_from[k] = states[k].from + at;
      span.state_to[k] = states[k].to + at;
    }
    optimizer_.Apply(step, span);
  };
  const std::size_t element = tensor::WireBytes(wire_);
  if (wire_ == tensor::WireType::kFloat32) {
    apply(0, value.size, reinterpret_cast<const float*>(gradient_));
  } else {
    alignas(tensor::kAlignment) float wide[kWidenFloats];
    for (std::size_t at = 0; at < value.size; at += kWidenFloats) {
      const std::size_t size = std::min(kWidenFloats, value.size - at);
      tensor::Widen(wire_, gradient_ + at * element, size, wide);
      apply(at, size, wide);
    }
  }
  gradient_ += value.size * element;
  WriteWireValues(next_chunk_, value.to, value.size);
}

PullPlan DenseContents::Read(const Pull& pull, absl::string_view where) const {
  PullPlan plan;
  if (pull.rows_of.present) {
    plan.result.invalid = absl::StrCat("a dense shard takes no id list: ", where);
    return plan;
  }
  plan.result.wire = wire_;
  const bool narrow = wire_ != tensor::WireType::kFloat32;
  std::vector<tensor::SharedBytes> chunks = (narrow ? wire_values_ : values_).Share();
  // With an odd number of values, only the first half of the last float is used.
  if (narrow && values_.size() % 2 == 1)
    chunks.back().bytes =
        chunks.back().bytes.first(chunks.back().bytes.size() - tensor::WireBytes(wire_));
  plan.result.chunks.assign(std::make_move_iterator(chunks.begin()),
                            std::make_move_iterator(chunks.end()));
  return plan;
}

void DenseContents::Cut(std::uint64_t, ShardCut* cut) {
  cut->values = values_;
  for (int k = 0; k < optimizer_.states(); ++k) cut->states.push_back(states_[k]);
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

std::uint64_t DenseContents::StateDigest() const {
  std::uint64_t sum = 0;
  for (int k = 0; k < optimizer_.states(); ++k)
    sum += states_[k].Digest(first_element_ + (static_cast<std::uint64_t>(k) << 56));
  return sum;
}

}  // namespace evergrad::ps_server
