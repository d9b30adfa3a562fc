#include "worker/params/slot_rows.h"

#include <cstring>

#include "common/base/check.h"
#include "common/sharding/slots.h"
#include "common/tensor/convert.h"

namespace evergrad::worker {

SlotRows::SlotRows(std::shared_ptr<const Layout> layout,
                   const std::vector<std::span<const std::int64_t>>& ids)
    : layout_(std::move(layout)) {
  const std::vector<LaidTable>& tables = layout_->tables();
  EG_CHECK(ids.size() == tables.size());
  const std::uint32_t slots = layout_->slots();
  constexpr std::uint32_t kNone = ~0u;
  struct Slot {
    std::size_t rows = 0, tables = 0, bytes = 0;
    std::uint32_t last_table = kNone;
    tensor::WireType wire = tensor::WireType::kSeveral;
  };
  std::vector<Slot> sizes(slots);
  std::vector<std::uint32_t> slot_of;
  std::size_t all = 0;
  for (const auto& list : ids) all += list.size();
  slot_of.reserve(all);
  for (std::uint32_t t = 0; t < tables.size(); ++t) {
    counts_.push_back(ids[t].size());
    for (const std::int64_t id : ids[t]) {
      const std::uint32_t slot = sharding::SlotOf(tables[t].slot_key, id, slots);
      slot_of.push_back(slot);
      Slot& size = sizes[slot];
      ++size.rows;
      size.bytes += tables[t].row_bytes();
      if (size.last_table == t) continue;
      size.wire = size.tables++ == 0 || size.wire == tables[t].wire ? tables[t].wire
                                                                    : tensor::WireType::kSeveral;
      size.last_table = t;
    }
  }
  std::vector<Slot> next(slots);  // position of the next row of each slot
  std::size_t rows = 0, entries = 0;
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    const Slot& size = sizes[slot];
    if (size.rows == 0) continue;
    next[slot].rows = rows;
    next[slot].tables = entries;
    parts_.push_back({layout_->slot_shard(slot), rows, size.rows, entries, size.tables, wire_bytes_,
                      size.bytes, size.wire});
    rows += size.rows;
    entries += size.tables;
    wire_bytes_ += size.bytes;
  }
  tables_.resize(entries);
  table_rows_.resize(entries);
  position_.resize(rows);
  ids_ = tensor::AlignedBuffer(rows * sizeof(std::int64_t));
  auto* to = reinterpret_cast<std::int64_t*>(ids_.data());
  std::size_t at = 0;
  for (std::uint32_t t = 0; t < tables.size(); ++t) {
    for (std::uint32_t i = 0; i < ids[t].size(); ++i) {
      Slot& place = next[slot_of[at++]];
      if (place.last_table != t) {
        place.last_table = t;
        tables_[place.tables++] = t;
      }
      ++table_rows_[place.tables - 1];
      to[place.rows] = ids[t][i];
      position_[place.rows++] = i;
    }
  }
}

tensor::SharedBytes SlotRows::Ids(const std::shared_ptr<const SlotRows>& self,
                                  const OfShard& part) {
  return {self,
          {self->ids_.data() + part.first_row * sizeof(std::int64_t),
           part.rows * sizeof(std::int64_t)}};
}

std::vector<tensor::AlignedBuffer> SlotRows::MakeRows(const Allocator& allocate) const {
  std::vector<tensor::AlignedBuffer> rows;
  rows.reserve(counts_.size());
  for (std::size_t t = 0; t < counts_.size(); ++t) {
    const std::size_t bytes = counts_[t] * layout_->tables()[t].dimension * sizeof(float);
    tensor::AlignedBuffer& buffer =
        rows.emplace_back(allocate && bytes > 0 ? allocate(bytes) : tensor::AlignedBuffer());
    if (buffer.size() == 0) buffer = tensor::AlignedBuffer(bytes);
  }
  return rows;
}

template <class Copy>
void SlotRows::ForEachRow(const OfShard& part, Copy copy) const {
  std::size_t row = part.first_row, in_part = 0;
  for (std::size_t k = part.first_table; k < part.first_table + part.tables; ++k) {
    const std::size_t row_bytes = layout_->tables()[tables_[k]].row_bytes();
    for (std::uint32_t i = 0; i < table_rows_[k]; ++i, ++row, in_part += row_bytes)
      copy(tables_[k], position_[row] * row_bytes, in_part, row_bytes);
  }
}

bool SlotRows::Scatter(const OfShard& part, std::span<const std::byte> values,
                       std::vector<tensor::AlignedBuffer>* rows) const {
  if (values.size() != part.bytes) return false;
  std::vector<std::byte*> homes;  // the place of each table's rows in wire order
  homes.reserve(rows->size());
  for (std::size_t t = 0; t < rows->size(); ++t) {
    const std::span<float> floats = (*rows)[t].floats();
    homes.push_back(floats.empty() ? nullptr
                                   : tensor::NarrowHome(layout_->tables()[t].wire, floats.data(),
                                                        floats.size()));
  }
  ForEachRow(part, [&](std::uint32_t table, std::size_t in_table, std::size_t in_part,
                       std::size_t row_bytes) {
    std::memcpy(homes[table] + in_table, values.data() + in_part, row_bytes);
  });
  return true;
}

void SlotRows::Widen(std::vector<tensor::AlignedBuffer>* rows) const {
  for (std::size_t t = 0; t < rows->size(); ++t)
    tensor::WidenInPlace(layout_->tables()[t].wire, (*rows)[t].floats().data(),
                         (*rows)[t].floats().size());
}

int SlotRows::ToWire(std::vector<tensor::AlignedBuffer>* gradients) const {
  int overflowed = -1;
  for (std::size_t t = 0; t < gradients->size(); ++t) {
    const tensor::WireType wire = layout_->tables()[t].wire;
    if (wire == tensor::WireType::kFloat32) continue;
    const std::span<float> floats = (*gradients)[t].floats();
    tensor::NarrowInPlace(wire, floats.data(), floats.size());
    if (overflowed < 0 && !tensor::AllFinite(wire, (*gradients)[t].data(), floats.size()))
      overflowed = static_cast<int>(t);
  }
  return overflowed;
}

tensor::AlignedBuffer SlotRows::Gather(const std::vector<tensor::AlignedBuffer>& gradients) const {
  tensor::AlignedBuffer all(wire_bytes_);
  for (const OfShard& part : parts_) {
    std::byte* const to = all.data() + part.first_byte;
    ForEachRow(part, [&](std::uint32_t table, std::size_t in_table, std::size_t in_part,
                         std::size_t row_bytes) {
      std::memcpy(to + in_part, gradients[table].data() + in_table, row_bytes);
    });
  }
  return all;
}

}  // namespace evergrad::worker
