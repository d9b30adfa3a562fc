#include "ps_server/storage/row_reader.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/optimizers/registry.h"
#include "common/tensor/convert.h"
#include "ps_server/optimizer/prefetch.h"
#include "ps_server/storage/embedding_table.h"
#include "ps_server/storage/row_store.h"

namespace evergrad::ps_server::storage {
namespace {

// A read has as many look-ups in flight as a push, but in more and smaller groups (measurements:
// README.md).
constexpr std::size_t kReadGroup = 8, kReadDelay = 4, kReadRing = 16;
static_assert(3 * kReadDelay < kReadRing);

// Rows are short, so a call of memcpy costs more than the copy.
inline void Copy(const float* from, std::size_t floats, float* to) {
  std::size_t i = 0;
  for (; i + 8 <= floats; i += 8) std::memcpy(to + i, from + i, 8 * sizeof(float));
  for (; i < floats; ++i) to[i] = from[i];
}

// A group of ids takes four steps. The first three steps prefetch the home lines, the rows of ids
// in their home lines, and the rows of the few ids in later lines. The last step copies the values.
struct Group {
  const RowReading* of;
  std::size_t first, size;
  std::uint64_t hashes[kReadGroup];
  RowIndex::Line* homes[kReadGroup];
  const float* rows[kReadGroup];  // null for an id without a row
  std::uint32_t deferred[kReadGroup], deferred_size;
  const RowStore& store() const { return of->table->store(); }
};

void AskForHomes(const RowReading& of, std::size_t first, Group* g) {
  const RowStore& store = of.table->store();
  const RowIndex::Homes homes = store.index.homes();
  g->of = &of;
  g->first = first;
  g->size = std::min(kReadGroup, of.ids.size() - first);
  store.HashesOf<kReadGroup>(of.ids.data() + first, g->size, g->hashes);
  for (std::size_t k = 0; k < g->size; ++k) {
    g->homes[k] = homes.Of(g->hashes[k]);
    __builtin_prefetch(g->homes[k]);
  }
}

void LookInHomes(Group* g) {
  const RowStore& store = g->store();
  const std::size_t bytes = store.dimension * sizeof(float);
  g->deferred_size = 0;
  for (std::size_t k = 0; k < g->size; ++k) {
    const std::uint32_t row = store.index.RowInHome(g->homes[k], g->hashes[k]);
    g->rows[k] = nullptr;
    if (row < kWaiting) {
      g->rows[k] = store.arena.At(row);
      PrefetchRow<0>(g->rows[k], bytes);
    } else if (!store.index.IsInHome(g->homes[k], g->hashes[k])) {
      g->deferred[g->deferred_size++] = static_cast<std::uint32_t>(k);
    }
  }
}

void LookBehindHomes(Group* g) {
  const RowStore& store = g->store();
  for (std::size_t d = 0; d < g->deferred_size; ++d) {
    const std::uint32_t k = g->deferred[d];
    const std::uint32_t row = store.index.RowBehind(g->homes[k], g->hashes[k]);
    if (row >= kWaiting) continue;
    g->rows[k] = store.arena.At(row);
    PrefetchRow<0>(g->rows[k], store.dimension * sizeof(float));
  }
}

void FillAbsent(const RowStore& store, std::uint64_t hash, float* to) {
  if (store.settings.admit_after > 1) {
    std::fill_n(to, store.dimension, store.settings.default_row);
  } else {
    store.FillInitial(hash, to);
  }
}

// Copies the rows of a group to the reading's memory. `absent` has space for one row.
void CopyRows(const Group& g, float* absent) {
  const RowStore& store = g.store();
  const std::size_t dimension = store.dimension,
                    wire_bytes = dimension * tensor::WireBytes(g.of->wire);
  std::byte* const out = g.of->out + g.first * wire_bytes;
  if (g.of->wire != tensor::WireType::kFloat32 ||
      reinterpret_cast<std::uintptr_t>(out) % alignof(float) != 0) {
    for (std::size_t k = 0; k < g.size; ++k) {
      if (g.rows[k] == nullptr) FillAbsent(store, g.hashes[k], absent);
      tensor::Narrow(g.of->wire, g.rows[k] != nullptr ? g.rows[k] : absent, dimension,
                     out + k * wire_bytes);
    }
    return;
  }
  float* to = reinterpret_cast<float*>(out);
  if (dimension == 16) {
    for (std::size_t k = 0; k < g.size; ++k, to += 16)
      g.rows[k] != nullptr ? Copy(g.rows[k], 16, to) : FillAbsent(store, g.hashes[k], to);
  } else {
    for (std::size_t k = 0; k < g.size; ++k, to += dimension)
      g.rows[k] != nullptr ? Copy(g.rows[k], dimension, to) : FillAbsent(store, g.hashes[k], to);
  }
}

}  // namespace

void ReadRows(std::span<const RowReading> readings) {
  for (const RowReading& reading : readings) EG_CHECK(!reading.table->applying());
  Group ring[kReadRing];
  float absent[optimizers::kRowFloatsMax];
  const RowReading* next = readings.data();
  const RowReading* const end = next + readings.size();
  // `next_id` is a position in `next`, and `groups` is the number of groups that have begun.
  std::size_t next_id = 0, groups = 0;
  for (std::size_t step = 0;; ++step) {
    while (next != end && next_id == next->ids.size()) ++next, next_id = 0;
    if (next != end) {
      Group* const g = &ring[step % kReadRing];
      AskForHomes(*next, next_id, g);
      next_id += g->size;
      ++groups;
    } else if (step >= groups + 3 * kReadDelay) {
      return;
    }
    if (step >= kReadDelay && step - kReadDelay < groups)
      LookInHomes(&ring[(step - kReadDelay) % kReadRing]);
    if (step >= 2 * kReadDelay && step - 2 * kReadDelay < groups)
      LookBehindHomes(&ring[(step - 2 * kReadDelay) % kReadRing]);
    if (step >= 3 * kReadDelay) CopyRows(ring[(step - 3 * kReadDelay) % kReadRing], absent);
  }
}

}  // namespace evergrad::ps_server::storage
