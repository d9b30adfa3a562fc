// Tests values and gradients in 16-bit wire types. The values of a shard must equal those of a
// float32 shard that got the same gradients, widened to float32. The shard's answers must be its
// values, narrowed to the wire type.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>
#include <random>

#include "common/tensor/convert.h"
#include "tests/support/read_shard.h"
#include "tests/unit/ps_server/shard/slot_fixture.h"

namespace evergrad::ps_server {
namespace {

using tensor::WireType;

ShardSettings Dense(std::uint64_t elements, WireType wire, const std::string& optimizer) {
  ShardSettings s;
  s.job = JobUid(1);
  s.shard = ShardId(3);
  s.variable = "dense/kernel";
  s.variable_shape = tensor::Shape{elements};
  s.row_end = elements;
  s.initializer.type = "glorot_uniform";
  s.initializer.fan_in = s.initializer.fan_out = 8;
  s.initializer.seed = 5;
  s.optimizer.type = optimizer;
  s.wire = wire;
  return s;
}

std::unique_ptr<Shard> Seeded(const ShardSettings& settings) {
  auto shard = Shard::FromSeed(settings, kSlotEpoch, {1, 2}, {});
  REQUIRE(shard.ok());
  return *std::move(shard);
}

std::vector<std::byte> Narrowed(WireType type, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * tensor::WireBytes(type));
  tensor::Narrow(type, values.data(), values.size(), bytes.data());
  return bytes;
}
std::vector<std::byte> BytesOf(const PullResult& result) {
  std::vector<std::byte> all;
  for (const tensor::SharedBytes& piece : result.chunks)
    all.insert(all.end(), piece.bytes.begin(), piece.bytes.end());
  return all;
}
// A gradient in its 16-bit form and in its float32 form. Both forms have the same values.
struct Both {
  std::vector<std::byte> narrow;
  std::vector<float> wide;
};
Both GradientOf(WireType type, std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(n);
  for (float& v : values)
    v = std::ldexp(static_cast<float>(random() % 2001) - 1000.f,
                   static_cast<int>(random() % 12) - 16);
  Both both{Narrowed(type, values), std::vector<float>(n)};
  tensor::Widen(type, both.narrow.data(), n, both.wide.data());
  return both;
}
Push DensePush(std::uint32_t u, std::span<const std::byte> payload, WireType type,
               std::uint64_t rows) {
  Push push;
  push.epoch = kSlotEpoch;
  push.closure = ClosureId(1);
  push.update = UpdateIndex(u);
  push.attempt = {1, 1};
  push.rows = rows;
  push.payload = payload;
  push.wire = type;
  return push;
}

TEST_CASE("a dense shard with a 16-bit wire type computes in float32 and answers narrowed values") {
  for (const WireType wire : {WireType::kBFloat16, WireType::kFloat16}) {
    for (const char* optimizer : {"sgd", "adam"}) {
      for (const std::uint64_t n : {1u, 2u, 2049u, 65536u, 65537u, 131'073u,
                                    // one, two and four chunks, with odd numbers of elements
                                    200'001u}) {
        INFO(tensor::WireTypeName(wire) << " " << optimizer << " " << n);
        const auto shard = Seeded(Dense(n, wire, optimizer)),
                   plain = Seeded(Dense(n, WireType::kFloat32, optimizer));
        const auto check = [&](const Shard& s) {
          CHECK(s.Digest() == plain->Digest());
          CHECK(s.StateDigest() == plain->StateDigest());
          const PullResult pulled = ReadShard(s, {kSlotEpoch, false, {}, 0});
          CHECK(pulled.code == PullCode::kValues);
          CHECK(pulled.wire == wire);
          CHECK(BytesOf(pulled) == Narrowed(wire, s.Values()));
        };
        check(*shard);
        CHECK(shard->value_bytes() == n * sizeof(float));
        // While the test holds an answer, no apply may change the memory of the answer.
        std::vector<PullResult> held;
        std::vector<std::vector<std::byte>> was;
        for (std::uint32_t u = 0; u < 4; ++u) {
          const Both gradient = GradientOf(wire, n, u);
          if (u % 2 == 1) {
            held.push_back(ReadShard(*shard, {kSlotEpoch, false, {}, 0}));
            was.push_back(BytesOf(held.back()));
          }
          REQUIRE(plain
                      ->Apply(DensePush(u, std::as_bytes(std::span(gradient.wide)),
                                        WireType::kFloat32, n))
                      .code == PushCode::kApplied);
          REQUIRE(shard->BeginApply(DensePush(u, gradient.narrow, wire, n)).code ==
                  PushCode::kApplied);
          while (shard->applying()) shard->ContinueApply(1);
          check(*shard);
        }
        for (std::size_t i = 0; i < held.size(); ++i) CHECK(BytesOf(held[i]) == was[i]);
        // The wire type must not change the answer UNCHANGED.
        const PullResult now = ReadShard(*shard, {kSlotEpoch, true, shard->start(), shard->vlsn()});
        CHECK(now.code == PullCode::kUnchanged);
        CHECK(now.chunks.empty());
        CHECK(now.wire == wire);
        // Moves and snapshots contain float32 values, so the next owner can answer in another wire
        // type.
        const auto moved =
            Shard::Restore(Dense(n, wire, optimizer), shard->Cut(), kSlotEpoch, {1, 2}, {});
        REQUIRE(moved.ok());
        check(**moved);
        check(*shard->Snapshot());
        const auto wide = Shard::Restore(Dense(n, WireType::kFloat32, optimizer), shard->Cut(),
                                         kSlotEpoch, {1, 2}, {});
        REQUIRE(wide.ok());
        CHECK(BytesOf(ReadShard(**wide, {kSlotEpoch, false, {}, 0})) ==
              Narrowed(WireType::kFloat32, shard->Values()));
        // A cut shares the chunks of the shard. Later applies must not change these chunks.
        const Both gradient = GradientOf(wire, n, 9);
        REQUIRE((*moved)->Apply(DensePush(9, gradient.narrow, wire, n)).code == PushCode::kApplied);
        check(*shard);
      }
    }
  }
}

TEST_CASE(
    "a section of another wire type than its variable's is refused by name, and changes nothing") {
  const auto shard = Seeded(Dense(6, WireType::kBFloat16, "sgd"));
  const std::uint64_t digest = shard->Digest();
  const std::vector<float> wide(6, 1.f);
  const auto refused = [&](const Push& push) {
    const PushResult result = shard->Apply(push);
    CHECK(result.code == PushCode::kInvalid);
    CHECK(shard->lsn() == 0);
    CHECK(shard->Digest() == digest);
    CHECK(shard->ledger() == Ledger());
    return result.message;
  };
  CHECK_THAT(refused(DensePush(0, std::as_bytes(std::span(wide)), WireType::kFloat32, 6)),
             Catch::Contains(
                 "gradient dtype mismatch: variable=dense/kernel shard=3 want=bf16 got=float32"));
  CHECK_THAT(refused(DensePush(0, Narrowed(WireType::kFloat16, wide), WireType::kFloat16, 6)),
             Catch::Contains("want=bf16 got=fp16"));
  CHECK_THAT(refused(DensePush(0, Narrowed(WireType::kBFloat16, wide), WireType::kSeveral, 6)),
             Catch::Contains("want=bf16 got=none"));
  CHECK_THAT(refused(DensePush(0, std::as_bytes(std::span(wide)), WireType::kBFloat16, 6)),
             Catch::Contains("gradient bytes mismatch") && Catch::Contains("want=12 got=24"));
  Push skip = DensePush(0, {}, WireType::kFloat32, 0);
  skip.kind = UpdateKind::kSkip;
  skip.skip_reason = "nan";
  CHECK_THAT(refused(skip), Catch::Contains("want=bf16 got=float32"));
  skip.wire = WireType::kBFloat16;
  CHECK(shard->Apply(skip).code == PushCode::kApplied);
}

ShardSettings SlotOn(std::vector<WireType> wire) {
  ShardSettings settings = SlotOf("adagrad");
  settings.slot->wire = std::move(wire);
  for (storage::TableSettings& table : settings.slot->tables) {
    table.initializer.type = "glorot_uniform";
    table.initializer.fan_in = table.initializer.fan_out = 2;
    table.initializer.seed = 3;
  }
  return settings;
}

// Returns the bytes of the rows in the wire types of their tables. Replaces the values in `rows` by
// those that these bytes represent.
std::vector<std::byte> OnWire(const std::vector<WireType>& wire, Rows* rows) {
  std::vector<std::byte> bytes;
  std::size_t at = 0;
  for (std::size_t k = 0; k < rows->tables.size(); ++k) {
    const std::size_t n = rows->counts[k] * (rows->tables[k] == 0 ? 2 : 3);
    const std::vector<float> part(rows->floats.begin() + static_cast<std::ptrdiff_t>(at),
                                  rows->floats.begin() + static_cast<std::ptrdiff_t>(at + n));
    const std::vector<std::byte> narrow = Narrowed(wire[rows->tables[k]], part);
    tensor::Widen(wire[rows->tables[k]], narrow.data(), n, rows->floats.data() + at);
    bytes.insert(bytes.end(), narrow.begin(), narrow.end());
    at += n;
  }
  return bytes;
}

TEST_CASE("rows of tables have each table's wire type, alone and together") {
  const std::vector<WireType> kinds[] = {
      {WireType::kBFloat16, WireType::kBFloat16},
      {WireType::kFloat16, WireType::kFloat16},
      {WireType::kFloat32, WireType::kBFloat16},
      {WireType::kBFloat16,
       WireType::kFloat32}};  // the float32 rows of the last case are at unaligned addresses
  for (const std::vector<WireType>& wire : kinds) {
    INFO(tensor::WireTypeName(wire[0]) << " " << tensor::WireTypeName(wire[1]));
    const auto shard = Seeded(SlotOn(wire)), plain = Seeded(SlotOn({}));
    std::mt19937 random(1);
    for (std::uint32_t u = 0; u < 12; ++u) {
      const auto ids = [&](std::size_t n) {
        std::vector<std::int64_t> list(n);
        for (std::int64_t& id : list)
          // There are few different ids, so that some are duplicates.
          id = static_cast<std::int64_t>(random() % 9);
        return list;
      };
      Rows rows = u % 3 == 0   ? RowsOf(ids(5), {})
                  : u % 3 == 1 ? RowsOf({}, ids(3))
                               : RowsOf(ids(1 + u % 2), ids(7));
      for (float& f : rows.floats) f = static_cast<float>(random() % 4001) / 997.f - 2.f;
      const std::vector<std::byte> narrow = OnWire(wire, &rows);
      const bool mixed = rows.tables.size() == 2 && wire[0] != wire[1];
      const WireType section = mixed ? WireType::kSeveral : wire[rows.tables[0]];
      Push push = PushOf(1, u, rows);
      REQUIRE(plain->Apply(push).code == PushCode::kApplied);
      push.payload = narrow;
      push.wire = section == WireType::kFloat32 ? WireType::kFloat16 : WireType::kFloat32;
      const PushResult refused = shard->Apply(push);
      CHECK(refused.code == PushCode::kInvalid);
      CHECK_THAT(refused.message, Catch::Contains("gradient dtype mismatch") &&
                                      Catch::Contains("variable=slot 1 of 4 shard=3"));
      push.wire = section;
      const PushResult applied = shard->Apply(push);
      INFO(applied.message);
      REQUIRE(applied.code == PushCode::kApplied);
      CHECK(shard->Digest() == plain->Digest());
      CHECK(shard->StateDigest() == plain->StateDigest());

      Rows asked = rows;  // the table has no row 99
      asked.ids[0] = 99;
      asked.floats = Pulled(*plain, asked);
      const PullResult pulled = ReadShard(*shard, {kSlotEpoch, false, {}, 0, asked.of()});
      CHECK(pulled.invalid == "");
      CHECK(pulled.wire == section);
      CHECK(BytesOf(pulled) == OnWire(wire, &asked));

      // A caller can also provide the memory to which the same answer is written.
      const PullPlan plan = shard->Read({kSlotEpoch, false, {}, 0, asked.of()});
      CHECK(plan.result.invalid == "");
      CHECK(plan.result.chunks.empty());
      std::vector<std::byte> there(plan.rows_bytes);
      std::vector<storage::RowReading> readings;
      plan.ReadTo(there.data(), &readings);
      storage::ReadRows(readings);
      CHECK(there == BytesOf(pulled));
    }
    CHECK(shard->Snapshot()->Digest() == plain->Digest());
  }
}

}  // namespace
}  // namespace evergrad::ps_server
