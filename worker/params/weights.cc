#include "worker/params/weights.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/tensor/convert.h"

namespace evergrad::worker {
namespace {

// A frame may be kept alive for one of its sections if that section is at least this part of it.
constexpr std::uint64_t kFrameShare = 4;

}  // namespace

PullCache::PullCache(std::shared_ptr<const Layout> layout)
    : layout_(std::move(layout)), held_(layout_->shard_count()), fresh_(layout_->shard_count()) {}

absl::Status PullCache::Accept(PulledShard pulled) {
  if (pulled.shard.value() >= held_.size())
    return absl::InvalidArgumentError(absl::StrCat("unknown shard in an answer: shards=", held_.size(), " got=", pulled.shard.value()));
  const std::uint64_t want = layout_->slice(pulled.shard).wire_bytes();
  if (pulled.values.bytes.size() != want) {
    return absl::InvalidArgumentError(absl::StrCat("pulled bytes mismatch: variable=", layout_->variable_of(pulled.shard).name,
                                                   " shard=", pulled.shard.value(), " want=", want, " got=", pulled.values.bytes.size()));
  }
  held_[pulled.shard.value()] = {true, pulled.start, pulled.vlsn};
  fresh_[pulled.shard.value()] = std::move(pulled);
  return absl::OkStatus();
}

std::vector<PulledShard> PullCache::Take() {
  std::vector<PulledShard> taken;
  for (auto& fresh : fresh_) {
    if (!fresh) continue;
    taken.push_back(*std::move(fresh));
    fresh.reset();
  }
  return taken;
}

WeightBuffer::WeightBuffer(std::shared_ptr<const Layout> layout, bool as_pulled)
    : layout_(std::move(layout)),
      as_pulled_(as_pulled),
      wholes_(layout_->variables().size()),
      present_(layout_->shard_count(), false),
      missing_(layout_->dense_shards()) {}

void WeightBuffer::Absorb(std::vector<PulledShard> pulled) {
  for (PulledShard& shard : pulled) {
    const ShardSlice& slice = layout_->slice(shard.shard);
    EG_CHECK(shard.values.bytes.size() == slice.wire_bytes());
    Whole& whole = wholes_[slice.variable];
    const LaidVariable& variable = layout_->variables()[slice.variable];
    const bool aligned = reinterpret_cast<std::uintptr_t>(shard.values.bytes.data()) % tensor::kAlignment == 0;
    const tensor::WireType held = HeldAs(variable);
    if (slice.wire == held && variable.shards.size() == 1 && aligned && shard.values.bytes.size() >= shard.frame_bytes / kFrameShare) {
      whole.assembled = tensor::AlignedBuffer();
      whole.borrowed = shard.values.bytes.data();
      whole.owner = std::move(shard.values.owner);
    } else {
      const std::uint64_t whole_bytes = variable.shape.elements() * tensor::WireBytes(held);
      if (whole.assembled.size() != whole_bytes) whole.assembled = tensor::AlignedBuffer(whole_bytes);
      whole.owner.reset();
      whole.borrowed = nullptr;
      std::byte* const to = whole.assembled.data() + slice.first_element * tensor::WireBytes(held);
      if (slice.elements > 0 && slice.wire == held) std::memcpy(to, shard.values.bytes.data(), slice.wire_bytes());
      if (slice.elements > 0 && slice.wire != held)
        tensor::Widen(slice.wire, shard.values.bytes.data(), slice.elements, reinterpret_cast<float*>(to));
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
    spans.push_back({HeldAs(variable), wholes_[v].owner != nullptr ? wholes_[v].borrowed : wholes_[v].assembled.data(), variable.shape.elements()});
  }
  return spans;
}

std::vector<std::span<const float>> WeightBuffer::Spans(std::vector<tensor::AlignedBuffer>* widened) const {
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
    floats.push_back(wide.floats());
  }
  return floats;
}

GradientBuffer::GradientBuffer(std::shared_ptr<const Layout> layout, bool zeroed) : layout_(std::move(layout)) {
  buffers_.reserve(layout_->variables().size());
  for (const LaidVariable& variable : layout_->variables()) {
    const std::uint64_t bytes = variable.shape.elements() * sizeof(float);
    buffers_.push_back(zeroed ? tensor::AlignedBuffer::Zeroed(bytes) : tensor::AlignedBuffer(bytes));
  }
}

GradientBuffer::GradientBuffer(std::shared_ptr<const Layout> layout, std::vector<tensor::AlignedBuffer> buffers)
    : layout_(std::move(layout)), buffers_(std::move(buffers)), on_wire_(true) {
  EG_CHECK(buffers_.size() == layout_->variables().size());
  for (std::size_t v = 0; v < buffers_.size(); ++v) EG_CHECK(buffers_[v].size() == layout_->variables()[v].wire_bytes());
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
    if (overflowed < 0 && !tensor::AllFinite(wire, buffers_[i].data(), floats.size())) overflowed = static_cast<int>(i);
  }
  return overflowed;
}

tensor::SharedBytes GradientBuffer::Slice(const std::shared_ptr<const GradientBuffer>& self, ShardId shard) {
  EG_CHECK(self->on_wire_);
  const ShardSlice& slice = self->layout_->slice(shard);
  return {self, {self->buffers_[slice.variable].data() + slice.first_element * tensor::WireBytes(slice.wire), slice.wire_bytes()}};
}

}  // namespace evergrad::worker
