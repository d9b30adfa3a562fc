// Values as pulled, made whole for the compute thread; gradients as computed, cut for the servers.
//
//   answers ──▶ PullCache ──Take──▶ WeightBuffer ──Spans──▶ Graph ──▶ GradientBuffer ──Slice──▶
//   pushes
//               control executor    compute thread                     shared: held until sent
//
// For a device values are copied where they arrive, while it computes: the compute thread finds
// each variable whole in memory that is uploaded as it is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/tensor/tensor.h"
#include "worker/params/layout.h"

namespace evergrad::worker {

// What a pull returned for one shard. `frame_bytes`: size of the allocation that `values.owner`
// keeps alive.
struct PulledShard {
  ShardId shard;
  MapVersion start;
  std::uint64_t vlsn = 0;
  tensor::SharedBytes values;
  std::uint64_t frame_bytes = 0;
};

// Which values this worker holds, by (start, vlsn): the pair is compared, never vlsn alone, because
// after a rollback the numbers climb again over other contents. Not thread-safe.
class PullCache {
 public:
  struct Held {
    bool has = false;
    MapVersion start;
    std::uint64_t vlsn = 0;
  };
  // With `room`, a variable's values are copied into it as they are accepted, one shard behind the
  // other; what there is no room for stays in its frame.
  explicit PullCache(std::shared_ptr<const Layout> layout, Room room = nullptr);

  const Held& held(ShardId shard) const { return held_[shard.value()]; }
  // Replaces what is held. InvalidArgument, and nothing changes: unknown shard, payload of another
  // size.
  absl::Status Accept(PulledShard pulled);
  // Moves out what was accepted since the last call, at most one per shard. The caller gives all of
  // it to one WeightBuffer.
  std::vector<PulledShard> Take();

 private:
  void Land(PulledShard* pulled);

  std::shared_ptr<const Layout> layout_;
  const Room room_;
  std::vector<Held> held_;
  std::vector<std::optional<PulledShard>> fresh_;
  std::vector<std::shared_ptr<tensor::AlignedBuffer>>
      landing_;  // by variable, since the last Take; shared with what was accepted into it
};

// Elements of one of the wire's types, one behind the other.
struct TypedSpan {
  tensor::WireType type = tensor::WireType::kFloat32;
  const std::byte* data = nullptr;
  std::uint64_t elements = 0;
};

// One contiguous span per variable. A variable whose shards all came together, one behind the
// other, is read where they lie (no copy), unless that would keep a frame alive for less than a
// quarter of it; any other is assembled, and only changed shards are copied. One of a 16-bit wire
// type is widened to float32, or, `as_pulled`, left as it came, for whoever widens it elsewhere.
// Not thread-safe; compute thread.
class WeightBuffer {
 public:
  explicit WeightBuffer(std::shared_ptr<const Layout> layout, bool as_pulled = false);
  void Absorb(std::vector<PulledShard> pulled);  // as PullCache checked it
  bool complete() const { return missing_ == 0; }
  // In the layout's order; valid until the next Absorb. EG_CHECK unless complete().
  std::vector<TypedSpan> Held() const;
  // As float32; what is not held so is put into `widened`, which may be null unless `as_pulled`.
  std::vector<std::span<const float>> Spans(
      std::vector<tensor::AlignedBuffer>* widened = nullptr) const;

 private:
  struct Whole {
    tensor::AlignedBuffer assembled;    // empty while `borrowed` serves
    std::shared_ptr<const void> owner;  // of `borrowed`
    const std::byte* borrowed = nullptr;
  };
  // All shards of the variable, in one piece that is worth keeping; by_shard: what was pulled, or
  // null. Null: they are not.
  const PulledShard* InOnePiece(const LaidVariable& variable,
                                const std::vector<PulledShard*>& by_shard) const;
  void Borrow(Whole* whole, const PulledShard& first);
  void CopyIn(const ShardSlice& slice, const LaidVariable& variable,
              std::span<const std::byte> values, Whole* whole);
  tensor::WireType HeldAs(const LaidVariable& variable) const {
    return as_pulled_ ? variable.wire : tensor::WireType::kFloat32;
  }

  std::shared_ptr<const Layout> layout_;
  bool as_pulled_;
  std::vector<Whole> wholes_;
  std::vector<bool> present_;  // by shard
  std::uint32_t missing_;
};

// One gradient per variable: float32 while it is computed, then, after ToWire, what goes on the
// wire. Sent from this memory without a copy, so it is shared with the pushes that carry it.
class GradientBuffer {
 public:
  // Not initialised, or zeros.
  explicit GradientBuffer(std::shared_ptr<const Layout> layout, bool zeroed = false);
  // For gradients that come in their wire types, without ToWire: one buffer for each variable, of
  // its wire_bytes.
  GradientBuffer(std::shared_ptr<const Layout> layout, std::vector<tensor::AlignedBuffer> buffers);
  std::byte* wire(std::uint32_t index) { return buffers_[index].data(); }
  std::span<float> variable(std::uint32_t index) { return buffers_[index].floats(); }
  std::vector<std::span<float>> Spans();
  // Once, before the first Slice: each variable in its wire type, in the same memory. Returns the
  // first variable with a gradient that was finite and is not any more (beyond its range), or -1.
  int ToWire();
  // The rows of `shard`, as on the wire; keeps `self` alive.
  static tensor::SharedBytes Slice(const std::shared_ptr<const GradientBuffer>& self,
                                   ShardId shard);

 private:
  std::shared_ptr<const Layout> layout_;
  std::vector<tensor::AlignedBuffer> buffers_;
  bool on_wire_ = false;
};

}  // namespace evergrad::worker
