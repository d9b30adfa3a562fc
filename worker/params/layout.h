// The division of a job's variables into shards, according to the plan. A layout states which rows
// of each dense variable are in each shard, and which shards are slots of the embedding tables.
//
// A layout is a value that is checked when it is made and immutable afterwards, and therefore
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/tensor/tensor.h"
#include "common/tensor/wire_type.h"

namespace evergrad::v1 {
class Plan;
class ShardSpec;
}  // namespace evergrad::v1

namespace evergrad::worker {

// Allocates memory that suits the device, for data from the servers. If the function is null or
// returns an empty buffer, the data are put on the heap, or stay in the received frame.
using Allocator = std::function<tensor::AlignedBuffer(std::size_t bytes)>;

struct ShardSlice {
  std::uint32_t variable = 0;  // index into Layout::variables()
  std::uint64_t row_begin = 0, row_end = 0;
  std::uint64_t first_element = 0, elements = 0;  // position and size within the variable
  std::uint64_t rows() const { return row_end - row_begin; }
  std::uint64_t bytes() const { return elements * sizeof(float); }
  // The type of values and gradients on the wire.
  tensor::WireType wire = tensor::WireType::kFloat32;
  std::uint64_t wire_bytes() const { return elements * tensor::WireBytes(wire); }
};
struct LaidVariable {
  std::string name;
  tensor::Shape shape;
  tensor::WireType wire = tensor::WireType::kFloat32;
  std::vector<ShardId> shards;  // in row order; never empty
  // True if updates are values towards which the variable moves, and not gradients.
  bool moving_average = false;
  std::uint64_t wire_bytes() const { return shape.elements() * tensor::WireBytes(wire); }
};

struct LaidTable {
  std::string name;
  std::uint32_t dimension = 0;
  std::uint64_t slot_key = 0;  // sharding::SlotKey of the name
  tensor::WireType wire = tensor::WireType::kFloat32;
  std::size_t row_bytes() const { return dimension * tensor::WireBytes(wire); }
};

class Layout {
 public:
  // Returns InvalidArgument with the shard or the variable in these cases: shard numbers are not
  // 0,1,2… without gap or duplicate; rows have a gap or overlap; descriptions of a variable
  // conflict; an element type is not float32; a wire type is unsupported; sizes overflow; slots are
  // not the last shards in their order; there are slots without tables.
  static absl::StatusOr<Layout> FromPlan(const v1::Plan& plan);

  // The variables in the order of the plan.
  const std::vector<LaidVariable>& variables() const { return variables_; }
  std::uint32_t shard_count() const { return static_cast<std::uint32_t>(slices_.size()); }
  // A slot has an empty slice (no elements).
  const ShardSlice& slice(ShardId shard) const { return slices_[shard.value()]; }
  const LaidVariable& variable_of(ShardId shard) const { return variables_[slice(shard).variable]; }
  // The embedding tables, in the order of the plan. The shards of the tables begin at
  // dense_shards(); slots() is the number of these shards.
  const std::vector<LaidTable>& tables() const { return tables_; }
  std::uint32_t slots() const { return slots_; }
  std::uint32_t dense_shards() const { return shard_count() - slots_; }
  bool is_slot(ShardId shard) const { return shard.value() >= dense_shards(); }
  ShardId slot_shard(std::uint32_t slot) const { return ShardId(dense_shards() + slot); }
  // Returns the position in variables(), or -1.
  int Find(absl::string_view variable) const;

 private:
  absl::Status LayTables(const v1::Plan& plan);
  // Adds a dense shard to its variable.
  absl::Status LayShard(const v1::ShardSpec& spec);
  // Sorts the shards of a variable by their rows, and checks that the rows cover the variable.
  absl::Status SortShards(std::uint32_t variable);

  std::vector<LaidVariable> variables_;
  std::vector<ShardSlice> slices_;  // by shard number
  std::vector<LaidTable> tables_;
  std::uint32_t slots_ = 0;
};

}  // namespace evergrad::worker
