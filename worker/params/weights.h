// Assembles pulled values for the compute thread, and divides computed gradients into shards for
// the servers.
//
//   answers ──▶ PullCache ──Take──▶ WeightBuffer ──Spans──▶ Graph ──▶ GradientBuffer ──▶ pushes
//               control executor    compute thread                    shared until sent
//
// For a device, the control executor copies the values while the device computes, into one piece of
// memory per variable. The compute thread then uploads this memory unchanged.
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

// The values of one shard from the answer to a pull. `frame_bytes` is the size of the allocation
// that `values.owner` keeps alive.
struct PulledShard {
  ShardId shard;
  MapVersion start;
  std::uint64_t vlsn = 0;
  tensor::SharedBytes values;
  std::uint64_t frame_bytes = 0;
};

// The values that this worker holds, identified by (start, vlsn). vlsn is never compared alone,
// because after a rollback a server uses the same numbers again for other values. Not thread-safe.
class PullCache {
 public:
  struct Held {
    bool has = false;
    MapVersion start;
    std::uint64_t vlsn = 0;
  };
  // If `allocate` is set, accepted values of a variable are copied into memory from `allocate`, in
  // the order of shards. If `allocate` returns an empty buffer, the values stay in their frame.
  explicit PullCache(std::shared_ptr<const Layout> layout, Allocator allocate = nullptr);

  const Held& held(ShardId shard) const { return held_[shard.value()]; }
  // Replaces the held values of the shard. For an unknown shard or a payload of wrong size, returns
  // InvalidArgument and changes nothing.
  absl::Status Accept(PulledShard pulled);
  // Returns and removes the values that were accepted since the last call, at most one per shard.
  // The caller passes all of them to one WeightBuffer.
  std::vector<PulledShard> Take();

 private:
  void Land(PulledShard* pulled);

  std::shared_ptr<const Layout> layout_;
  const Allocator allocate_;
  std::vector<Held> held_;
  std::vector<std::optional<PulledShard>> fresh_;
  // The memory filled since the last Take, by variable. Values in this memory share its ownership.
  std::vector<std::shared_ptr<tensor::AlignedBuffer>> landing_;
};

// Consecutive elements of one of the wire types.
struct TypedSpan {
  tensor::WireType type = tensor::WireType::kFloat32;
  const std::byte* data = nullptr;
  std::uint64_t elements = 0;
};

// One contiguous span per variable. A variable whose shards arrived together, in order, is used in
// place without a copy. The variable must be at least a quarter of its frame, because the whole
// frame stays allocated. Any other variable is assembled, by a copy of its changed shards only. A
// variable of a 16-bit wire type is widened to float32, or kept as it is with `as_pulled`. Not
// thread-safe; used on the compute thread.
class WeightBuffer {
 public:
  explicit WeightBuffer(std::shared_ptr<const Layout> layout, bool as_pulled = false);
  void Absorb(std::vector<PulledShard> pulled);  // the values must have passed PullCache
  bool complete() const { return missing_ == 0; }
  // Returns the spans in the layout's order, valid until the next Absorb. complete() must be true
  // (EG_CHECK).
  std::vector<TypedSpan> Held() const;
  // Returns the spans as float32. Variables of another type are converted into `widened`; without
  // `as_pulled` there are none, and `widened` may be null.
  std::vector<std::span<const float>> Spans(
      std::vector<tensor::AlignedBuffer>* widened = nullptr) const;

 private:
  struct Whole {
    tensor::AlignedBuffer assembled;    // empty while `borrowed` is used
    std::shared_ptr<const void> owner;  // owner of `borrowed`
    const std::byte* borrowed = nullptr;
  };
  // Returns all shards of the variable as one contiguous piece, or nullptr if they are not
  // contiguous or are too small a part of their frame. `by_shard` has the pulled shards, or nullptr
  // for a shard that was not pulled.
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

// One gradient per variable: float32 during the computation and, after ToWire, in wire type. Pushes
// send the gradients from this memory without a copy and share the ownership.
class GradientBuffer {
 public:
  // The memory is uninitialized, or zeros if `zeroed`.
  explicit GradientBuffer(std::shared_ptr<const Layout> layout, bool zeroed = false);
  // Makes a buffer of gradients that already have their wire types, so that ToWire is not called.
  // Each variable has one buffer, of the variable's wire_bytes().
  GradientBuffer(std::shared_ptr<const Layout> layout, std::vector<tensor::AlignedBuffer> buffers);
  std::byte* wire(std::uint32_t index) { return buffers_[index].data(); }
  std::span<float> variable(std::uint32_t index) { return buffers_[index].floats(); }
  std::vector<std::span<float>> Spans();
  // Converts each variable to its wire type in place. Must be called once, before the first
  // Slice. Returns the first variable with a gradient that was finite and now exceeds the range,
  // or -1.
  int ToWire();
  // Returns the rows of `shard` in wire format; the bytes keep `self` alive.
  static tensor::SharedBytes Slice(const std::shared_ptr<const GradientBuffer>& self,
                                   ShardId shard);

 private:
  std::shared_ptr<const Layout> layout_;
  std::vector<tensor::AlignedBuffer> buffers_;
  bool on_wire_ = false;
};

}  // namespace evergrad::worker
