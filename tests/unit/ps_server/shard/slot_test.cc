// Tests transcripts at a slot for the LEDGER lines 6 to 13. A slot has several tables and one
// ledger, and gives one answer to a push.
#include "tests/unit/ps_server/shard/slot_fixture.h"

namespace evergrad::ps_server {
namespace {

std::unique_ptr<Shard> Seeded(const ShardSettings& settings,
                              const std::shared_ptr<storage::MemoryBudget>& budget = nullptr) {
  auto shard = Shard::FromSeed(settings, kSlotEpoch, {1, 2}, {}, nullptr, budget);
  REQUIRE(shard.ok());
  return *std::move(shard);
}

struct Trace {
  std::uint64_t lsn, vlsn, applied, digest, slot_digest;
  Ledger ledger;
  friend bool operator==(const Trace&, const Trace&) = default;
};
Trace TraceOf(const Shard& s) {
  return {s.lsn(), s.vlsn(), s.updates_applied(), s.Digest(), s.StateDigest(), s.ledger()};
}

TEST_CASE(
    "one push changes rows of several tables once, and a pull reads them in the order of its ids") {
  const auto shard = Seeded(SlotOf());
  const Rows both = RowsOf({7, -9}, {7});
  CHECK(Pulled(*shard, both) == std::vector<float>(7, 0.f));
  CHECK(shard->value_bytes() == 0);  // the pull has created no row
  CHECK(shard->Apply(PushOf(0, 0, both)).code == PushCode::kApplied);
  CHECK(shard->lsn() == 1);
  CHECK(shard->Apply(PushOf(0, 0, both)).code == PushCode::kDuplicate);
  CHECK(shard->Apply(PushOf(0, 1, RowsOf({-9}, {}, 4))).code == PushCode::kApplied);
  CHECK(Pulled(*shard, RowsOf({-9, 7, 5, -9}, {8, 7})) ==
        std::vector<float>{5, 5, 1, 1, 0, 0, 5, 5, 0, 0, 0, 1, 1, 1});
  CHECK(shard->value_bytes() == 2 * 8 + 12);
  CHECK(shard->updates_applied() == 2);
  CHECK(shard->vlsn() == 2);
  REQUIRE(shard->Tables().size() == 2);
  CHECK(shard->Tables()[0]->rows() == 2);
  CHECK(shard->Tables()[1]->rows() == 1);

  SECTION("a pull of a slot is never answered `unchanged`, because its rows may be others") {
    const Rows rows = RowsOf({7}, {});
    CHECK(ReadShard(*shard, {kSlotEpoch, true, {1, 2}, shard->vlsn(), rows.of()}).code ==
          PullCode::kValues);
  }
  SECTION("a pull of another epoch or from a stopped shard is stale") {
    CHECK(ReadShard(*shard, {{1, 4}, false, {}, 0, both.of()}).code == PullCode::kStale);
    CHECK(shard->Apply(PushOf(1, 0, both, {1, 4})).code == PushCode::kStale);
    shard->Stop();
    CHECK(ReadShard(*shard, {kSlotEpoch, false, {}, 0, both.of()}).code == PullCode::kStale);
  }
  SECTION("a skip needs no rows and sets the bit") {
    Push skip = PushOf(2, 0, Rows());
    skip.kind = UpdateKind::kSkip;
    skip.rows_of = {};
    skip.skip_reason = "nan";
    CHECK(shard->Apply(skip).code == PushCode::kApplied);
    CHECK(shard->Apply(PushOf(2, 0, both)).code == PushCode::kDuplicate);
  }
}

TEST_CASE("the gradients of a duplicate id in a push are summed before one update") {
  ShardSettings settings = SlotOf("adagrad");
  const auto shard = Seeded(settings), once = Seeded(settings);
  Rows twice = RowsOf({4, 4}, {});
  twice.floats = {1, 2, 3, 4};
  Rows summed = RowsOf({4}, {});
  summed.floats = {4, 6};
  REQUIRE(shard->Apply(PushOf(0, 0, twice)).code == PushCode::kApplied);
  REQUIRE(once->Apply(PushOf(0, 0, summed)).code == PushCode::kApplied);
  CHECK(Pulled(*shard, summed) == Pulled(*once, summed));
  CHECK(shard->StateDigest() == once->StateDigest());
}

TEST_CASE("sections that do not fit the tables are refused with the reason, and change nothing") {
  const auto shard = Seeded(SlotOf());
  REQUIRE(shard->Apply(PushOf(0, 0, RowsOf({1}, {2}))).code == PushCode::kApplied);
  const Trace before = TraceOf(*shard);
  const struct {
    const char* text;
    std::function<void(Rows*, Push*)> spoil;
  } cases[] = {
      {"a slot needs an id list", [](Rows*, Push* p) { p->rows_of = {}; }},
      {"the numbers of tables and of row counts differ: tables=1 rows=2",
       [](Rows* r, Push*) { r->tables.pop_back(); }},
      {"no such table: table=2 tables=2", [](Rows* r, Push*) { r->tables[1] = 2; }},
      {"table numbers are not ascending: table=0 after=0",
       [](Rows* r, Push*) { r->tables[1] = 0; }},
      {"a table has no rows: table=1", [](Rows* r, Push*) { r->counts[1] = 0; }},
      {"the numbers of rows and of ids differ: rows=3 ids=2",
       [](Rows* r, Push*) { r->counts[1] = 2; }},
      {"the numbers of rows and of ids differ: rows=4294967296 ids=2",
       [](Rows* r, Push*) { r->counts[1] = ~0u; }},
      {"gradient rows mismatch: want=2 got=3", [](Rows*, Push* p) { p->rows = 3; }},
      {"gradient bytes mismatch: want=20 got=16", [](Rows* r, Push*) { r->floats.pop_back(); }},
  };
  for (const auto& c : cases) {
    INFO(c.text);
    Rows rows = RowsOf({5}, {6});
    Push push = PushOf(3, 0, rows);
    c.spoil(&rows, &push);
    push.payload = rows.bytes();
    if (push.rows_of.present) push.rows_of = rows.of();
    const PushResult result = shard->Apply(push);
    CHECK(result.code == PushCode::kInvalid);
    CHECK_THAT(result.message,
               Catch::Contains(c.text) && Catch::Contains("variable=slot 1 of 4 shard=3"));
    CHECK(TraceOf(*shard) == before);
  }
  Rows wrong = RowsOf({5}, {6});
  wrong.tables[1] = 9;
  CHECK_THAT(ReadShard(*shard, {kSlotEpoch, false, {}, 0, wrong.of()}).invalid,
             Catch::Contains("no such table"));
  // A pull of a table that does not exist must not reserve memory. A valid pull must report the
  // memory that it needs.
  const PullPlan misfit = shard->Read({kSlotEpoch, false, {}, 0, wrong.of()});
  CHECK(misfit.rows_bytes == 0);
  CHECK(misfit.rows.empty());
  const Rows right = RowsOf({5}, {6});
  const PullPlan fits = shard->Read({kSlotEpoch, false, {}, 0, right.of()});
  CHECK(fits.result.invalid == "");
  CHECK(fits.rows_bytes == right.bytes().size());
  CHECK(fits.rows.size() == 2);
  CHECK_THAT(ReadShard(*shard, {kSlotEpoch, false, {}, 0, {}}).invalid,
             Catch::Contains("a slot needs an id list"));
}

TEST_CASE("a dense shard refuses an id list") {
  ShardSettings s;
  s.variable = "dense/kernel";
  s.variable_shape = tensor::Shape{1, 2};
  s.row_end = 1;
  s.optimizer.type = "sgd";
  const auto shard = Seeded(s);
  Rows rows = RowsOf({1}, {});
  CHECK_THAT(shard->Apply(PushOf(0, 0, rows)).message,
             Catch::Contains("a dense shard takes no id list"));
  CHECK_THAT(ReadShard(*shard, {kSlotEpoch, false, {}, 0, rows.of()}).invalid,
             Catch::Contains("a dense shard takes no id list"));
}

TEST_CASE("S10: a push that reaches a byte limit is refused whole") {
  ShardSettings settings = SlotOf();
  settings.slot->tables[1].bytes_max = 400;  // enough for a few rows
  const auto shard = Seeded(settings);
  std::uint32_t u = 0;
  PushResult result;
  for (; u < 100; ++u) {
    const Trace before = TraceOf(*shard);
    const std::int64_t id = u;
    result = shard->Apply(PushOf(0, u, RowsOf({id}, {id})));
    if (result.code != PushCode::kApplied) {
      CHECK(TraceOf(*shard) == before);  // no row of the first table was created
      break;
    }
  }
  CHECK(result.code == PushCode::kOverBudget);
  CHECK_THAT(result.message, Catch::Contains("table=item"));
  REQUIRE(u > 0);
  CHECK(shard->Tables()[0]->rows() == u);
  CHECK(shard->Tables()[1]->rows() == u);
  // These rows exist, so they need no more memory.
  CHECK(shard->Apply(PushOf(0, u, RowsOf({0}, {0}))).code == PushCode::kApplied);
  CHECK(shard->Apply(PushOf(0, u + 1, RowsOf({1000}, {}))).code == PushCode::kApplied);
}

TEST_CASE("an eviction of rows is an event of its own") {
  ShardSettings settings = SlotOf();
  settings.slot->tables[0].ttl_steps = 10;
  const auto shard = Seeded(settings);
  REQUIRE(shard->Apply(PushOf(0, 0, RowsOf({1}, {}))).code == PushCode::kApplied);
  CHECK(shard->lsn() == 1);
  REQUIRE(shard->Apply(PushOf(1, 0, RowsOf({2}, {}))).code ==
          PushCode::kApplied);  // the global step is a hundred steps higher
  CHECK(shard->Tables()[0]->rows() == 1);
  CHECK(shard->lsn() == 3);
  CHECK(shard->vlsn() == 3);
  // A push to a row that was evicted after the pull creates the row once more.
  REQUIRE(shard->Apply(PushOf(1, 1, RowsOf({1}, {}, 3))).code == PushCode::kApplied);
  CHECK(Pulled(*shard, RowsOf({1}, {})) == std::vector<float>{3, 3});
}

TEST_CASE("a copy of a slot is independent") {
  const auto shard = Seeded(SlotOf("adam"));
  REQUIRE(shard->Apply(PushOf(0, 0, RowsOf({1, 2, 3}, {4}))).code == PushCode::kApplied);
  const auto copy = shard->Snapshot();
  CHECK(TraceOf(*copy) == TraceOf(*shard));
  REQUIRE(shard->Apply(PushOf(0, 1, RowsOf({1}, {}))).code == PushCode::kApplied);
  CHECK_FALSE(TraceOf(*copy) == TraceOf(*shard));
  REQUIRE(copy->Apply(PushOf(0, 1, RowsOf({1}, {}))).code == PushCode::kApplied);
  CHECK(TraceOf(*copy) == TraceOf(*shard));
}

}  // namespace
}  // namespace evergrad::ps_server
