#include "worker/params/weights.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/tensor/convert.h"

namespace evergrad::worker {
namespace {

// Values may stay in their received frame, and keep it alive, only if they are at least 1 /
// kFrameShare of its bytes.
constexpr std::uint64_t kFrameShare = 4;

}  // namespace

PullCache::PullCache(std::shared_ptr<const Layout> layout, Allocator allocate)
    : layout_(std::move(layout)),
      allocate_(std::move(allocate)),
      held_(layout_->shard_count()),
      fresh_(layout_->shard_count()),
      landing_(layout_->variables().size()) {}

void PullCache::Land(PulledShard* pulled) {
  const ShardSlice& slice = layout_->slice(pulled->shard);
  if (slice.elements == 0) return;
  std::shared_ptr<tensor::AlignedBuffer>& whole = landing_[slice.variable];
  if (whole == nullptr) {
    tensor::AlignedBuffer memory = allocate_(layout_->variables()[slice.variable].wire_bytes());
    if (memory.size() == 0) return;
    whole = std::make_shared<tensor::AlignedBuffer>(std::move(memory));
  }
  std::byte* const to = whole->data() + slice.first_element * tensor::WireBytes(slice.wire);
  std::memcpy(to, pulled->values.bytes.data(), slice.wire_bytes());
  pulled->values = {whole, {to, slice.wire_bytes()}};
  pulled->frame_bytes = whole->size();
}

absl::Status PullCache::Accept(PulledShard pulled) {
  if (pulled.shard.value() >= held_.size())
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown shard in an answer: shards=", held_.size(), " got=", pulled.shard.value()));
  const std::uint64_t want = layout_->slice(pulled.shard).wire_bytes();
  if (pulled.values.bytes.size() != want) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pulled bytes mismatch: variable=", layout_->variable_of(pulled.shard).name,
        " shard=", pulled.shard.value(), " want=", want, " got=", pulled.values.bytes.size()));
  }
  if (allocate_) Land(&pulled);
  held_[pulled.shard.value()] = {true, pulled.start, pulled.vlsn};
  fresh_[pulled.shard.value()] = std::move(pulled);
  return absl::OkStatus();
}

std::vector<PulledShard> PullCache::Take() {
  std::vector<PulledShard> taken;
  for (auto& fresh : fresh_) {
    if (fresh) taken.push_back(*std::exchange(fresh, std::nullopt));
  }
  // The caller reads this memory from now on, so the next values need other memory.
  for (auto& landing : landing_) landing.reset();
  return taken;
}

WeightBuffer::WeightBuffer(std::shared_ptr<const Layout> layout, bool as_pulled)
    : layout_(std::move(layout)),
      as_pulled_(as_pulled),
      wholes_(layout_->variables().size()),
      present_(layout_->shard_count(), false),
      missing_(layout_->dense_shards()) {}

const PulledShard* WeightBuffer::InOnePiece(const LaidVariable& variable,
                                            const std::vector<PulledShard*>& by_shard) const {
  const PulledShard* const first = by_shard[variable.shards.front().value()];
  if (first == nullptr || variable.wire != HeldAs(variable)) return nullptr;
  const std::byte* const begin = first->values.bytes.data();
  if (reinterpret_cast<std::uintptr_t>(begin) % tensor::kAlignment != 0 ||
      variable.wire_bytes() < first->frame_bytes / kFrameShare)
    return nullptr;
  for (const ShardId shard : variable.shards) {
    const PulledShard* const piece = by_shard[shard.value()];
    const ShardSlice& slice = layout_->slice(shard);
    if (piece == nullptr || piece->values.owner != first->values.owner ||
        piece->values.bytes.data() != begin + slice.first_element * tensor::WireBytes(slice.wire))
      return nullptr;
  }
  return first;
}

void WeightBuffer::Borrow(Whole* whole, const PulledShard& first) {
  whole->assembled = tensor::AlignedBuffer();
  whole->borrowed = first.values.bytes.data();
  whole->owner = first.values.owner;
}

void WeightBuffer::CopyIn(const ShardSlice& slice, const LaidVariable& variable,
                          std::span<const std::byte> values, Whole* whole) {
  const tensor::WireType held = HeldAs(variable);
  const std::uint64_t element = tensor::WireBytes(held),
                      bytes = variable.shape.elements() * element;
  if (whole->assembled.size() != bytes) {
    whole->assembled = tensor::AlignedBuffer(bytes);
    // The values of the shards that were not pulled again are copied.
    if (whole->borrowed != nullptr && variable.shards.size() > 1)
      std::memcpy(whole->assembled.data(), whole->borrowed, bytes);
  }
  whole->owner.reset();
  whole->borrowed = nullptr;
  std::byte* const to = whole->assembled.data() + slice.first_element * element;
  if (slice.elements == 0) return;
  if (slice.wire == held)
    std::memcpy(to, values.data(), slice.wire_bytes());
  else
    tensor::Widen(slice.wire, values.data(), slice.elements, reinterpret_cast<float*>(to));
}

void WeightBuffer::Absorb(std::vector<PulledShard> pulled) {
  std::vector<PulledShard*> by_shard(layout_->shard_count(), nullptr);
  for (PulledShard& shard : pulled) by_shard[shard.shard.value()] = &shard;
  for (PulledShard& shard : pulled) {
    const ShardSlice& slice = layout_->slice(shard.shard);
    EG_CHECK(shard.values.bytes.size() == slice.wire_bytes());
    Whole& whole = wholes_[slice.variable];
    const LaidVariable& variable = layout_->variables()[slice.variable];
    if (const PulledShard* const first = InOnePiece(variable, by_shard)) {
      if (first == &shard) Borrow(&whole, shard);
    } else {
      CopyIn(slice, variable, shard.values.bytes, &whole);
    }
    if (!present_[shard.shard.value()]) {
      present_[shard.shard.value()] = true;
      --missing_;
    }
  }
}

std::vector<TypedSpan> WeightBuffer::Held() const {
  EG_CHECK(complete());
  std::vector<TypedSpan> spans;
  spans.reserve(wholes_.size());
  for (std::size_t v = 0; v < wholes_.size(); ++v) {
    const LaidVariable& variable = layout_->variables()[v];
    spans.push_back(
        {HeldAs(variable),
         wholes_[v].owner != nullptr ? wholes_[v].borrowed : wholes_[v].assembled.data(),
         variable.shape.elements()});
  }
  return spans;
}

std::vector<std::span<const float>> WeightBuffer::Spans(
    std::vector<tensor::AlignedBuffer>* widened) const {
  std::vector<std::span<const float>> floats;
  floats.reserve(wholes_.size());
  for (const TypedSpan& span : Held()) {
    if (span.type == tensor::WireType::kFloat32) {
      floats.emplace_back(reinterpret_cast<const float*>(span.data), span.elements);
      continue;
    }
    EG_CHECK(widened != nullptr);
    tensor::AlignedBuffer& wide = widened->emplace_back(span.elements * sizeof(float));
    tensor::Widen(span.type, span.data, span.elements, wide.floats().data());
    floats.emplace_back(wide.floats());
  }
  return floats;
}

GradientBuffer::GradientBuffer(std::shared_ptr<const Layout> layout, bool zeroed)
    : layout_(std::move(layout)) {
  buffers_.reserve(layout_->variables().size());
  for (const LaidVariable& variable : layout_->variables()) {
    const std::uint64_t bytes = variable.shape.elements() * sizeof(float);
    buffers_.push_back(zeroed ? tensor::AlignedBuffer::Zeroed(bytes)
                              : tensor::AlignedBuffer(bytes));
  }
}

GradientBuffer::GradientBuffer(std::shared_ptr<const Layout> layout,
                               std::vector<tensor::AlignedBuffer> buffers)
    : layout_(std::move(layout)), buffers_(std::move(buffers)), on_wire_(true) {
  EG_CHECK(buffers_.size() == layout_->variables().size());
  for (std::size_t v = 0; v < buffers_.size(); ++v)
    EG_CHECK(buffers_[v].size() == layout_->variables()[v].wire_bytes());
}

std::vector<std::span<float>> GradientBuffer::Spans() {
  std::vector<std::span<float>> spans;
  spans.reserve(buffers_.size());
  for (auto& buffer : buffers_) spans.push_back(buffer.floats());
  return spans;
}

int GradientBuffer::ToWire() {
  EG_CHECK(!on_wire_);
  on_wire_ = true;
  int overflowed = -1;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const tensor::WireType wire = layout_->variables()[i].wire;
    if (wire == tensor::WireType::kFloat32) continue;
    const std::span<float> floats = buffers_[i].floats();
    tensor::NarrowInPlace(wire, floats.data(), floats.size());
    if (overflowed < 0 && !tensor::AllFinite(wire, buffers_[i].data(), floats.size()))
      overflowed = static_cast<int>(i);
  }
  return overflowed;
}

tensor::SharedBytes GradientBuffer::Slice(const std::shared_ptr<const GradientBuffer>& self,
                                          ShardId shard) {
  EG_CHECK(self->on_wire_);
  const ShardSlice& slice = self->layout_->slice(shard);
  const std::byte* const whole = self->buffers_[slice.variable].data();
  // Each variable's memory has its own owner, because a frame treats bytes between two pieces of
  // one owner as padding (wire/data_frame.h).
  return {std::shared_ptr<const void>(self, whole),
          {whole + slice.first_element * tensor::WireBytes(slice.wire), slice.wire_bytes()}};
}

}  // namespace evergrad::worker
