// How the ids of one batch lie in the slots of a job's tables, and their rows on the way in and
// out.
//
//   ids of each table ──SlotRows──▶ parts, one a slot ──▶ pulls ──Scatter──▶ rows of each table ──▶
//   Graph
//                                                     ◀── pushes ◀──Gather── row gradients of each
//                                                     table
//
// Immutable once made, so thread-safe; shared by the requests that carry its ids.
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
  // The rows of one slot: tables rise, and within a table rows are in the order of its ids.
  struct Part {
    ShardId shard;
    std::size_t first_row = 0, rows = 0;      // into ids
    std::size_t first_table = 0, tables = 0;  // into tables() and table_rows()
    std::size_t first_byte = 0,
                bytes = 0;  // into what Gather makes: the rows as they are on the wire
    // Of all of its tables; kSeveral: they have several, and each row is of its table's.
    tensor::WireType wire = tensor::WireType::kSeveral;
  };

  // `ids`: one list for each table of the layout, each id once. O(ids + slots).
  SlotRows(std::shared_ptr<const Layout> layout,
           const std::vector<std::span<const std::int64_t>>& ids);

  const std::vector<Part>& parts() const {
    return parts_;
  }  // slots without rows have none; shards rise
  std::span<const std::uint32_t> tables(const Part& part) const {
    return std::span(tables_).subspan(part.first_table, part.tables);
  }
  std::span<const std::uint32_t> table_rows(const Part& part) const {
    return std::span(table_rows_).subspan(part.first_table, part.tables);
  }
  std::uint64_t wire_bytes() const { return wire_bytes_; }
  // Keeps `self` alive.
  static tensor::SharedBytes Ids(const std::shared_ptr<const SlotRows>& self, const Part& part);

  // Memory for the rows of each table, [ids, dimension] float32, out of `room` where there is any.
  // Not initialised.
  std::vector<tensor::AlignedBuffer> MakeRows(const Room& room = nullptr) const;
  // What a pull of `part` returned into those. False: not the bytes of its rows, and nothing has
  // changed.
  bool Scatter(const Part& part, std::span<const std::byte> values,
               std::vector<tensor::AlignedBuffer>* rows) const;
  // Once every part is there: float32 from now on.
  void Widen(std::vector<tensor::AlignedBuffer>* rows) const;
  // Gradients of each table, [ids, dimension] float32, into its wire type, where they lie. The
  // first table with one that was finite and is not any more; -1: none.
  int ToWire(std::vector<tensor::AlignedBuffer>* gradients) const;
  // Those as they go on the wire, in the order of the parts: each table's elements at the beginning
  // of its buffer.
  tensor::AlignedBuffer Gather(const std::vector<tensor::AlignedBuffer>& gradients) const;

 private:
  template <class Copy>
  void ForEachRow(const Part& part, Copy copy) const;

  std::shared_ptr<const Layout> layout_;
  std::vector<std::size_t> counts_;  // ids of each table
  std::vector<Part> parts_;
  std::vector<std::uint32_t> tables_, table_rows_;
  std::vector<std::uint32_t> position_;  // of each row in its table's list
  tensor::AlignedBuffer ids_;
  std::uint64_t wire_bytes_ = 0;
};

}  // namespace evergrad::worker
