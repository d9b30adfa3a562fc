#include "worker/params/slot_rows.h"

#include <cstring>

#include "common/base/check.h"
#include "common/sharding/slots.h"

namespace evergrad::worker {

SlotRows::SlotRows(std::shared_ptr<const Layout> layout, const std::vector<std::span<const std::int64_t>>& ids) : layout_(std::move(layout)) {
  const std::vector<LaidTable>& tables = layout_->tables();
  EG_CHECK(ids.size() == tables.size());
  const std::uint32_t slots = layout_->slots();
  constexpr std::uint32_t kNone = ~0u;
  struct Slot {
    std::size_t rows = 0, tables = 0, floats = 0;
    std::uint32_t last_table = kNone;
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
      size.floats += tables[t].dimension;
      if (size.last_table != t) ++size.tables;
      size.last_table = t;
    }
  }
  std::vector<Slot> next(slots);  // where the next row of each slot goes
  std::size_t rows = 0, entries = 0;
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    const Slot& size = sizes[slot];
    if (size.rows == 0) continue;
    next[slot].rows = rows;
    next[slot].tables = entries;
    parts_.push_back({layout_->slot_shard(slot), rows, size.rows, entries, size.tables, floats_, size.floats});
    rows += size.rows;
    entries += size.tables;
    floats_ += size.floats;
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

tensor::SharedBytes SlotRows::Ids(const std::shared_ptr<const SlotRows>& self, const Part& part) {
  return {self, {self->ids_.data() + part.first_row * sizeof(std::int64_t), part.rows * sizeof(std::int64_t)}};
}

std::vector<tensor::AlignedBuffer> SlotRows::MakeRows() const {
  std::vector<tensor::AlignedBuffer> rows;
  rows.reserve(counts_.size());
  for (std::size_t t = 0; t < counts_.size(); ++t) rows.emplace_back(counts_[t] * layout_->tables()[t].dimension * sizeof(float));
  return rows;
}

template <class Copy>
void SlotRows::ForEachRow(const Part& part, Copy copy) const {
  std::size_t row = part.first_row, first_float = 0;
  for (std::size_t k = part.first_table; k < part.first_table + part.tables; ++k) {
    const std::uint32_t dimension = layout_->tables()[tables_[k]].dimension;
    for (std::uint32_t i = 0; i < table_rows_[k]; ++i, ++row, first_float += dimension) {
      copy(tables_[k], std::size_t{position_[row]} * dimension, first_float, dimension);
    }
  }
}

bool SlotRows::Scatter(const Part& part, std::span<const std::byte> values, std::vector<tensor::AlignedBuffer>* rows) const {
  if (values.size() != part.floats * sizeof(float)) return false;
  ForEachRow(part, [&](std::uint32_t table, std::size_t in_table, std::size_t in_part, std::uint32_t dimension) {
    std::memcpy((*rows)[table].floats().data() + in_table, values.data() + in_part * sizeof(float), dimension * sizeof(float));
  });
  return true;
}

tensor::AlignedBuffer SlotRows::Gather(const std::vector<std::span<const float>>& gradients) const {
  tensor::AlignedBuffer all(floats_ * sizeof(float));
  for (const Part& part : parts_) {
    float* const to = all.floats().data() + part.first_float;
    ForEachRow(part, [&](std::uint32_t table, std::size_t in_table, std::size_t in_part, std::uint32_t dimension) {
      std::memcpy(to + in_part, gradients[table].data() + in_table, dimension * sizeof(float));
    });
  }
  return all;
}

}  // namespace evergrad::worker
