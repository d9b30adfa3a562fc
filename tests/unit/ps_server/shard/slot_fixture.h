// A slot of two tables, with pushes and pulls of its rows.
#pragma once

#include <catch2/catch.hpp>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ps_server/shard/shard.h"
#include "tests/support/read_shard.h"

namespace evergrad::ps_server {

inline ShardSettings SlotOf(const std::string& optimizer = "counting") {
  ShardSettings s;
  s.job = JobUid(0xabc);
  s.shard = ShardId(3);
  s.variable = "slot 1 of 4";
  s.slot = SlotSettings{1, 4, {}};
  for (const auto& [name, dimension] : {std::pair{"user", 2u}, std::pair{"item", 3u}}) {
    storage::TableSettings table;
    table.name = name;
    table.dimension = dimension;
    table.optimizer.type = optimizer;
    table.optimizer.learning_rate = 0.5;
    s.slot->tables.push_back(table);
  }
  return s;
}

// The ids of a push or a pull, and the gradients of a push. The object owns the memory of both.
struct Rows {
  std::vector<std::uint32_t> tables, counts;
  std::vector<std::int64_t> ids;
  std::vector<float> floats;
  TableRows of() const { return {true, ids, tables, counts}; }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(floats)); }
};
// Returns rows of the tables `user` (2 elements per row) and `item` (3 elements per row). Each
// element of the gradients is `value`.
inline Rows RowsOf(std::vector<std::int64_t> users, std::vector<std::int64_t> items,
                   float value = 1) {
  Rows rows;
  rows.floats.assign(users.size() * 2 + items.size() * 3, value);
  if (!users.empty())
    rows.tables.push_back(0), rows.counts.push_back(static_cast<std::uint32_t>(users.size()));
  if (!items.empty())
    rows.tables.push_back(1), rows.counts.push_back(static_cast<std::uint32_t>(items.size()));
  rows.ids = std::move(users);
  rows.ids.insert(rows.ids.end(), items.begin(), items.end());
  return rows;
}

inline constexpr ShardEpoch kSlotEpoch{1, 5};

inline Push PushOf(std::uint64_t c, std::uint32_t u, const Rows& rows,
                   ShardEpoch epoch = kSlotEpoch) {
  Push push;
  push.epoch = epoch;
  push.closure = ClosureId(c);
  push.update = UpdateIndex(u);
  push.attempt = {1, c + 1};
  push.rows = rows.ids.size();
  push.payload = rows.bytes();
  push.rows_of = rows.of();
  push.global_step = c * 100 + u;
  return push;
}

inline std::vector<float> Pulled(const Shard& shard, const Rows& rows,
                                 ShardEpoch epoch = kSlotEpoch) {
  const PullResult result = ReadShard(shard, {epoch, false, {}, 0, rows.of()});
  REQUIRE(result.invalid == "");
  REQUIRE(result.code == PullCode::kValues);
  REQUIRE(result.chunks.size() == 1);
  std::vector<float> floats(result.chunks[0].bytes.size() / sizeof(float));
  std::memcpy(floats.data(), result.chunks[0].bytes.data(), result.chunks[0].bytes.size());
  return floats;
}

// Returns a cut of the shard. Its slices are taken on the calling thread, which is the shard's only
// thread.
inline ShardCut CutOf(const Shard& shard, std::uint64_t slice_bytes = 64,
                      std::uint64_t preimage_bytes_max = kPreimageBytesMax) {
  ShardCut cut = shard.Cut(preimage_bytes_max);
  cut.next_slice = [&shard, serial = cut.serial, slice_bytes] {
    return shard.NextSlice(serial, slice_bytes);
  };
  return cut;
}

}  // namespace evergrad::ps_server
