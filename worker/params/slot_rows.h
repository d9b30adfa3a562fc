// Distributes the ids of a batch over the slots of a job's tables, and converts the rows of the ids
// from and to the wire format.
//
//   ids of each table ──SlotRows──▶ one part per slot ──▶ pulls ──Scatter──▶ rows of each table
//                                    pushes ◀──Gather── row gradients of each table
//
// The object is immutable, and therefore thread-safe. The requests that send its ids share the
// ownership of the object.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/tensor/tensor.h"
#include "worker/params/layout.h"

namespace evergrad::worker {

class SlotRows {
 public:
  // The rows of one slot. Tables are in rising order; within a table, rows have the order of the
  // table's ids.
  struct OfShard {
    ShardId shard;
    std::size_t first_row = 0, rows = 0;      // position in ids
    std::size_t first_table = 0, tables = 0;  // position in tables() and table_rows()
    // The position in the result of Gather, with the rows in wire order.
    std::size_t first_byte = 0, bytes = 0;
    // The wire type of all tables in the part. kSeveral means that the types differ, and each row
    // has the type of its table.
    tensor::WireType wire = tensor::WireType::kSeveral;
  };

  // `ids` has one list per table of the layout, without duplicates. The time is O(ids + slots).
  SlotRows(std::shared_ptr<const Layout> layout,
           const std::vector<std::span<const std::int64_t>>& ids);

  // Slots without rows have no part; shards are in rising order.
  const std::vector<OfShard>& parts() const { return parts_; }
  std::span<const std::uint32_t> tables(const OfShard& part) const {
    return std::span(tables_).subspan(part.first_table, part.tables);
  }
  std::span<const std::uint32_t> table_rows(const OfShard& part) const {
    return std::span(table_rows_).subspan(part.first_table, part.tables);
  }
  std::uint64_t wire_bytes() const { return wire_bytes_; }
  // Returns the ids of `part`; the bytes keep `self` alive.
  static tensor::SharedBytes Ids(const std::shared_ptr<const SlotRows>& self, const OfShard& part);

  // Allocates uninitialized memory for the rows of each table, [ids, dimension] float32, from
  // `allocate` if possible.
  std::vector<tensor::AlignedBuffer> MakeRows(const Allocator& allocate = nullptr) const;
  // Copies the result of a pull of `part` into the rows. Returns false, without any change, if the
  // size is wrong.
  bool Scatter(const OfShard& part, std::span<const std::byte> values,
               std::vector<tensor::AlignedBuffer>* rows) const;
  // Converts the rows to float32, once all parts have been scattered.
  void Widen(std::vector<tensor::AlignedBuffer>* rows) const;
  // Converts the gradients of each table, [ids, dimension] float32, to its wire type in place.
  // Returns the first table with a gradient that was finite and is no longer finite, or -1.
  int ToWire(std::vector<tensor::AlignedBuffer>* gradients) const;
  // Returns the gradients in wire order, which is the order of the parts. Each table's elements
  // must be at the beginning of its buffer.
  tensor::AlignedBuffer Gather(const std::vector<tensor::AlignedBuffer>& gradients) const;

 private:
  template <class Copy>
  void ForEachRow(const OfShard& part, Copy copy) const;

  std::shared_ptr<const Layout> layout_;
  std::vector<std::size_t> counts_;  // number of ids of each table
  std::vector<OfShard> parts_;
  std::vector<std::uint32_t> tables_, table_rows_;
  std::vector<std::uint32_t> position_;  // index of each row in its table's list
  tensor::AlignedBuffer ids_;
  std::uint64_t wire_bytes_ = 0;
};

}  // namespace evergrad::worker
