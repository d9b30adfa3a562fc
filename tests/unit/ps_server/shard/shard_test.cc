// Tests transcripts at one shard for the LEDGER lines 6 to 13, 20a, 21 and 24. Also tests that
// values do not depend on the partitioning.
#include <catch2/catch.hpp>

#include <bit>
#include <cstring>
#include <limits>
#include <random>

#include "common/sharding/partitioner.h"
#include "ps_server/shard/shard.h"
#include "tests/support/read_shard.h"

namespace evergrad::ps_server {
namespace {

ShardSettings Counting(std::uint64_t rows = 4) {
  ShardSettings s;
  s.job = JobUid(1);
  s.shard = ShardId(3);
  s.variable = "count";
  s.variable_shape = tensor::Shape{rows, 1};
  s.row_end = rows;
  s.optimizer.type = "counting";
  return s;
}

std::unique_ptr<Shard> Seeded(const ShardSettings& settings, const IntervalSet& refused = {}) {
  auto shard = Shard::FromSeed(settings, {1, 5}, {1, 2}, refused);
  REQUIRE(shard.ok());
  return *std::move(shard);
}

struct Gradient {
  alignas(64) std::vector<float> values;
  explicit Gradient(std::size_t n, float value = 1) : values(n, value) {}
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(values)); }
};

Push Update(std::uint64_t c, std::uint32_t u, Attempt attempt, const Gradient& gradient) {
  Push push;
  push.epoch = {1, 5};
  push.closure = ClosureId(c);
  push.update = UpdateIndex(u);
  push.attempt = attempt;
  push.rows = gradient.values.size();
  push.payload = gradient.bytes();
  return push;
}

// The parts of a shard's state that a refusal must not change.
struct Trace {
  std::uint64_t lsn, vlsn, applied, digest, slot_digest;
  Ledger ledger;
  std::map<std::string, std::uint64_t> skips;
  friend bool operator==(const Trace&, const Trace&) = default;
};
Trace TraceOf(const Shard& s) {
  return {s.lsn(),    s.vlsn(), s.updates_applied(), s.Digest(), s.StateDigest(),
          s.ledger(), s.skips()};
}

TEST_CASE(
    "a cut is unaffected by later pushes, and a shard restored from it continues with the same "
    "bits") {
  for (const char* type : {"counting", "sgd", "adam"}) {
    INFO(type);
    ShardSettings settings = Counting(100'000);  // values of two chunks
    settings.optimizer.type = type;
    const auto shard = Seeded(settings, IntervalSet{90});
    const Gradient gradient(100'000, 0.25f);
    REQUIRE(shard->Apply(Update(1, 0, {1, 1}, gradient)).code == PushCode::kApplied);
    const Trace at_cut = TraceOf(*shard);
    const ShardCut cut = shard->Cut();
    CHECK(cut.bytes() >= shard->value_bytes() + shard->state_bytes());
    REQUIRE(shard->Apply(Update(1, 1, {1, 1}, gradient)).code == PushCode::kApplied);
    REQUIRE(shard->Close({1, 5}, {1, 9}, IntervalSet{1}, {}));
    const Trace after = TraceOf(*shard);

    // Two shards are restored from one cut. A push to one of them must not change the other.
    const auto first = Shard::Restore(settings, cut, {1, 5}, {1, 2}, {}),
               second = Shard::Restore(settings, cut, {1, 5}, {1, 2}, IntervalSet{91});
    REQUIRE(first.ok());
    REQUIRE(second.ok());
    CHECK(TraceOf(**first) == at_cut);
    REQUIRE((*first)->Apply(Update(1, 1, {1, 1}, gradient)).code == PushCode::kApplied);
    REQUIRE((*first)->Close({1, 5}, {1, 9}, IntervalSet{1}, {}));
    CHECK(TraceOf(**first) == after);
    CHECK(TraceOf(*shard) == after);
    CHECK((*second)->Digest() == at_cut.digest);
    CHECK((*second)->ledger().refused() == IntervalSet{90, 91});
    CHECK((*second)->lsn() == at_cut.lsn + 1);
  }
  ShardSettings settings = Counting();
  const ShardCut cut = Seeded(settings)->Cut();
  settings.optimizer.type = "adam";
  CHECK(Shard::Restore(settings, cut, {1, 5}, {1, 2}, {}).status().code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(Shard::Restore(Counting(5), cut, {1, 5}, {1, 2}, {}).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("an apply in pieces gives the bits of a whole apply, also beside readers") {
  for (const char* type : {"counting", "sgd", "adam"}) {
    INFO(type);
    ShardSettings settings = Counting(3 * 65536 + 17);  // values of four chunks
    settings.optimizer.type = type;
    if (settings.optimizer.type == "sgd") settings.optimizer.momentum = 0.9;
    auto at_once = Seeded(settings), in_pieces = Seeded(settings);
    Gradient gradient(3 * 65536 + 17);
    std::mt19937 random(11);
    for (std::uint32_t u = 0; u < 3; ++u) {
      for (float& g : gradient.values) g = static_cast<float>(random() % 2000) / 1000 - 1;
      PullResult held;
      if (u != 1) held = ReadShard(*in_pieces, {{1, 5}, false, {}, 0});
      CHECK(at_once->Apply(Update(7, u, {1, 1}, gradient)).code == PushCode::kApplied);
      CHECK(in_pieces->BeginApply(Update(7, u, {1, 1}, gradient)).code == PushCode::kApplied);
      int pieces = 0;
      for (; in_pieces->applying(); ++pieces) {
        // A Close or a seal changes no value, so it may come between two pieces of an apply.
        if (u == 2 && pieces == 1)
          CHECK(in_pieces->Close({1, 5}, {1, 9}, IntervalSet::Range(7, 8), {}));
        if (u == 2 && pieces == 2) in_pieces->Seal();
        CHECK(in_pieces->ContinueApply(1) == (pieces < 3 ? 65536 : 17) * sizeof(float));
      }
      CHECK(pieces == 4);
    }
    CHECK(at_once->Close({1, 5}, {1, 9}, IntervalSet::Range(7, 8), {}));
    CHECK(TraceOf(*at_once) == TraceOf(*in_pieces));
    CHECK(in_pieces->sealed());
  }
}

TEST_CASE(
    "a stopped shard answers only STALE and does not change, and an apply in progress is part of "
    "the move") {
  auto shard = Seeded(Counting(100'000));
  const Gradient gradient(100'000, 1);
  REQUIRE(shard->Apply(Update(1, 0, {1, 1}, gradient)).code == PushCode::kApplied);
  REQUIRE(shard->BeginApply(Update(1, 1, {1, 1}, gradient)).code == PushCode::kApplied);
  shard->Stop();
  while (shard->applying()) shard->ContinueApply(1);
  CHECK(shard->updates_applied() == 2);
  const Trace stopped = TraceOf(*shard);
  CHECK(shard->Apply(Update(1, 0, {1, 1}, gradient)).code == PushCode::kStale);
  CHECK(shard->Apply(Update(1, 2, {1, 1}, gradient)).code == PushCode::kStale);
  CHECK(ReadShard(*shard, {{1, 5}, false, {}, 0}).code == PullCode::kStale);
  CHECK_FALSE(shard->Close({1, 5}, {1, 9}, IntervalSet{1}, {}));
  shard->Seal();
  CHECK(shard->Apply(Update(1, 2, {1, 1}, gradient)).code == PushCode::kStale);
  CHECK(TraceOf(*shard) == stopped);
  const auto moved = Shard::Restore(Counting(100'000), shard->Cut(), {1, 6}, {1, 2}, {});
  REQUIRE(moved.ok());
  CHECK_FALSE((*moved)->stopped());
  CHECK((*moved)->Digest() == stopped.digest);
  CHECK((*moved)->lsn() == shard->lsn());
  Push next = Update(1, 2, {1, 1}, gradient);
  next.epoch = {1, 6};
  CHECK((*moved)->Apply(next).code == PushCode::kApplied);
  shard->BecomeOwned({1, 7}, {1, 2},
                     {});  // A copy of the shard in a simulation may become owned again.
  CHECK_FALSE(shard->stopped());
}

TEST_CASE("an update is applied once, and its repeat is a duplicate that changes no value") {
  auto shard = Seeded(Counting());
  const Gradient one(4);
  PushResult result = shard->Apply(Update(0, 0, {1, 1}, one));
  CHECK(result.code == PushCode::kApplied);
  CHECK(result.lsn == 1);
  CHECK(shard->vlsn() == 1);
  CHECK(shard->updates_applied() == 1);
  CHECK(shard->Apply(Update(0, 0, {1, 1}, one)).code == PushCode::kDuplicate);
  CHECK(shard->Apply(Update(0, 0, {1, 2}, one)).code ==
        PushCode::kDuplicate);  // the closure was granted again
  CHECK(shard->lsn() == 1);
  CHECK(shard->duplicates() == 2);
  CHECK(shard->Values() == std::vector<float>(4, 1));
  CHECK(shard->Apply(Update(0, 2, {1, 2}, one)).code ==
        PushCode::kApplied);  // the updates of a closure may arrive in any order
  CHECK(shard->Apply(Update(0, 1, {1, 2}, one)).code == PushCode::kApplied);
  CHECK(shard->Values() == std::vector<float>(4, 3));
}

TEST_CASE("a lower attempt is superseded after a higher one was seen, also as a duplicate") {
  auto shard = Seeded(Counting());
  const Gradient one(4);
  CHECK(shard->Apply(Update(7, 0, {1, 1}, one)).code == PushCode::kApplied);
  CHECK(shard->Apply(Update(7, 0, {1, 4}, one)).code == PushCode::kDuplicate);
  CHECK(shard->Apply(Update(7, 1, {1, 3}, one)).code == PushCode::kSuperseded);
  CHECK(shard->Apply(Update(7, 1, {1, 4}, one)).code == PushCode::kApplied);
  CHECK(shard->Apply(Update(7, 2, {2, 1}, one)).code ==
        PushCode::kApplied);  // an attempt of a later term is higher
  CHECK(shard->Apply(Update(7, 3, {1, 9}, one)).code == PushCode::kSuperseded);
}

TEST_CASE("pushes and pulls of another epoch are stale and change nothing") {
  auto shard = Seeded(Counting());
  const Gradient one(4);
  const Trace before = TraceOf(*shard);
  Push push = Update(0, 0, {1, 1}, one);
  for (const ShardEpoch epoch :
       {ShardEpoch{1, 4}, ShardEpoch{1, 6}, ShardEpoch{0, 5}, ShardEpoch{2, 5}}) {
    push.epoch = epoch;
    CHECK(shard->Apply(push).code == PushCode::kStale);
    CHECK(ReadShard(*shard, {epoch, false, {}, 0}).code == PullCode::kStale);
  }
  CHECK(TraceOf(*shard) == before);
}

TEST_CASE("a malformed push is refused with a message and changes nothing, not even the ledger") {
  auto shard = Seeded(Counting());
  const Gradient one(4), three(3), five(5);
  CHECK(shard->Apply(Update(0, 0, {1, 1}, one)).code == PushCode::kApplied);
  const Trace before = TraceOf(*shard);
  const auto refused = [&](const Push& push) {
    const PushResult result = shard->Apply(push);
    CHECK(result.code == PushCode::kInvalid);
    CHECK(TraceOf(*shard) == before);
    return result.message;
  };
  CHECK(refused(Update(0, 1, {1, 1}, three)) ==
        "gradient rows mismatch: variable=count shard=3 want=4 got=3");
  CHECK(refused(Update(9, 1, {1, 1}, five)) ==
        "gradient rows mismatch: variable=count shard=3 want=4 got=5");
  Push push = Update(0, 1, {1, 1}, three);
  push.rows = 4;
  CHECK(refused(push) == "gradient bytes mismatch: variable=count shard=3 want=16 got=12");
  push = Update(0, 4096, {1, 1}, one);
  CHECK(refused(push) ==
        "the update number is out of range: variable=count shard=3 update=4096 max=4095");
  CHECK_FALSE(refused(Update(~0ull, 0, {1, 1}, one)).empty());
  push = Update(0, 1, {1, 1}, one);
  push.defect = "dtype mismatch want=FLOAT32 got=INT64";
  CHECK(refused(push) == "dtype mismatch want=FLOAT32 got=INT64: variable=count shard=3");
  push = Update(0, 1, {1, 1}, one);
  push.kind = UpdateKind::kSkip;
  push.skip_reason = "nan";
  CHECK_FALSE(refused(push).empty());  // a skip must have no payload
  push.payload = {};
  push.skip_reason = "";
  CHECK_FALSE(refused(push).empty());
  const std::string lengthy(65, 'x');
  push.skip_reason = lengthy;
  CHECK_FALSE(refused(push).empty());
  CHECK(shard->Apply(Update(0, 1, {1, 1}, one)).code == PushCode::kApplied);  // now as a valid push
}

TEST_CASE("a decoding error is reported after the fence and the ledger, as in LEDGER line 11") {
  auto shard = Seeded(Counting());
  const Gradient one(4);
  Push push = Update(0, 0, {1, 1}, one);
  CHECK(shard->Apply(push).code == PushCode::kApplied);
  push.defect = "codec not built";
  CHECK(shard->Apply(push).code == PushCode::kDuplicate);
  push.epoch = {1, 4};
  CHECK(shard->Apply(push).code == PushCode::kStale);
}

TEST_CASE("a skip only sets the bit and is counted by its reason") {
  auto shard = Seeded(Counting());
  const Gradient one(4);
  Push push = Update(0, 0, {1, 1}, one);
  push.kind = UpdateKind::kSkip;
  push.payload = {};
  push.rows = 0;
  push.skip_reason = "nan";
  CHECK(shard->Apply(push).code == PushCode::kApplied);
  CHECK(shard->lsn() == 1);
  CHECK(shard->vlsn() == 0);  // no value has changed
  CHECK(shard->updates_applied() == 0);
  CHECK(shard->skips().at("nan") == 1);
  CHECK(shard->Apply(push).code == PushCode::kDuplicate);
  CHECK(shard->Apply(Update(0, 0, {1, 2}, one)).code ==
        PushCode::kDuplicate);  // the gradient of the update that was skipped
  CHECK(shard->Values() == std::vector<float>(4, 0));
  push.attempt = {1, 2};
  // The reasons come from peers, so the shard keeps only a limited number of different reasons.
  for (std::uint32_t u = 1; u < 100; ++u) {
    const std::string reason = "r" + std::to_string(u);
    push.update = UpdateIndex(u);
    push.skip_reason = reason;
    CHECK(shard->Apply(push).code == PushCode::kApplied);
  }
  CHECK(shard->skips().size() == kSkipReasonsMax + 1);
  CHECK(shard->skips().at("other") == 100 - kSkipReasonsMax);
}

TEST_CASE("a gradient of NaN is applied like any other, because the worker has the policy") {
  auto shard = Seeded(Counting());
  const Gradient nan(4, std::numeric_limits<float>::quiet_NaN());
  CHECK(shard->Apply(Update(0, 0, {1, 1}, nan)).code == PushCode::kApplied);
  CHECK(shard->updates_applied() == 1);
}

TEST_CASE(
    "after a Close, late pushes are duplicates and pushes of cancelled closures are refused") {
  auto shard = Seeded(Counting());
  const Gradient one(4);
  CHECK(shard->Apply(Update(0, 0, {1, 1}, one)).code == PushCode::kApplied);
  CHECK(shard->Apply(Update(5, 0, {1, 2}, one)).code == PushCode::kApplied);
  CHECK(shard->Close({1, 5}, {1, 9}, {0}, {5}));
  CHECK(shard->lsn() == 3);
  CHECK(shard->vlsn() == 2);
  CHECK(shard->ledger().open().empty());
  CHECK(shard->Close({1, 5}, {1, 9}, {0}, {5}));
  CHECK(shard->lsn() == 3);  // the repeated Close has changed nothing
  CHECK(shard->Apply(Update(0, 1, {1, 7}, one)).code == PushCode::kDuplicate);
  const PushResult refused = shard->Apply(Update(5, 1, {1, 7}, one));
  CHECK(refused.code == PushCode::kRefused);
  CHECK(refused.message == "the closure was cancelled: variable=count shard=3 closure=5");
  CHECK(shard->Values() == std::vector<float>(4, 2));
}

TEST_CASE("a Close of another epoch, or from before the shard's rollback, is ignored") {
  auto shard = Seeded(Counting());  // the start is (1, 2)
  const Trace before = TraceOf(*shard);
  CHECK_FALSE(shard->Close({1, 4}, {1, 9}, {0}, {}));
  CHECK_FALSE(shard->Close({1, 5}, {1, 1}, {0}, {}));
  CHECK(TraceOf(*shard) == before);
  CHECK(shard->Close({1, 5}, {1, 2}, {0}, {}));  // V may be equal to the start
}

TEST_CASE(
    "a sealed shard refuses every push, records nothing, and still answers pulls and Closes") {
  auto shard = Seeded(Counting());
  const Gradient one(4);
  CHECK(shard->Apply(Update(0, 0, {1, 1}, one)).code == PushCode::kApplied);
  shard->Seal();
  const Trace before = TraceOf(*shard);
  CHECK(shard->Apply(Update(0, 0, {1, 1}, one)).code == PushCode::kRefused);
  CHECK(shard->Apply(Update(1, 0, {1, 1}, one)).code == PushCode::kRefused);
  Push stale = Update(1, 0, {1, 1}, one);
  stale.epoch = {1, 4};
  CHECK(shard->Apply(stale).code == PushCode::kStale);
  CHECK(TraceOf(*shard) == before);
  CHECK(ReadShard(*shard, {{1, 5}, false, {}, 0}).code == PullCode::kValues);
}

TEST_CASE("a pull compares start and vlsn together, never vlsn alone") {
  auto shard = Seeded(Counting());
  const Gradient one(4);
  CHECK(shard->Apply(Update(0, 0, {1, 1}, one)).code == PushCode::kApplied);
  const PullResult first = ReadShard(*shard, {{1, 5}, false, {}, 0});
  REQUIRE(first.code == PullCode::kValues);
  CHECK(first.start == MapVersion{1, 2});
  CHECK(first.vlsn == 1);
  const PullResult again = ReadShard(*shard, {{1, 5}, true, first.start, first.vlsn});
  CHECK(again.code == PullCode::kUnchanged);
  CHECK(again.chunks.empty());
  // In scenario S11 the shard was rolled back to the seed, and has then reached the same vlsn with
  // other values.
  auto rolled_back = Shard::FromSeed(Counting(), {1, 5}, {1, 8}, {});
  REQUIRE(rolled_back.ok());
  CHECK((*rolled_back)->Apply(Update(9, 0, {1, 3}, one)).code == PushCode::kApplied);
  CHECK((*rolled_back)->vlsn() == first.vlsn);
  CHECK(ReadShard(**rolled_back, {{1, 5}, true, first.start, first.vlsn}).code ==
        PullCode::kValues);
  // The tag consists of start and vlsn. If `has` is false, the tag (0,0) and 0 says that the caller
  // holds no values. It does not match a shard with this tag.
  auto fresh = Shard::FromSeed(Counting(), {1, 5}, {0, 0}, {});
  CHECK(ReadShard(**fresh, {{1, 5}, false, {0, 0}, 0}).code == PullCode::kValues);
  CHECK(ReadShard(**fresh, {{1, 5}, true, {0, 0}, 0}).code == PullCode::kUnchanged);
}

TEST_CASE("a pull keeps its values during later updates, without a copy") {
  auto shard = Seeded(Counting(100000));  // values of two chunks
  const Gradient one(100000);
  const PullResult pull = ReadShard(*shard, {{1, 5}, false, {}, 0});
  REQUIRE(pull.chunks.size() == 2);
  const PullResult same = ReadShard(*shard, {{1, 5}, false, {}, 0});
  CHECK(pull.chunks[0].bytes.data() == same.chunks[0].bytes.data());
  CHECK(shard->Apply(Update(0, 0, {1, 1}, one)).code == PushCode::kApplied);
  CHECK(shard->Apply(Update(0, 1, {1, 1}, one)).code == PushCode::kApplied);
  for (const auto& piece : pull.chunks) {
    float last = 1;
    std::memcpy(&last, piece.bytes.data() + piece.bytes.size() - sizeof last, sizeof last);
    CHECK(last == 0);
  }
  CHECK(shard->Values() == std::vector<float>(100000, 2));
}

TEST_CASE(
    "a snapshot is one cut of values, optimizer state and ledger, and is independent of the "
    "shard") {
  auto shard = Seeded(Counting());
  const Gradient one(4);
  CHECK(shard->Apply(Update(0, 0, {1, 1}, one)).code == PushCode::kApplied);
  CHECK(shard->Apply(Update(0, 0, {1, 1}, one)).code == PushCode::kDuplicate);
  const auto snapshot = shard->Snapshot();
  const Trace cut = TraceOf(*snapshot);
  CHECK(cut == TraceOf(*shard));
  CHECK(snapshot->duplicates() == 0);
  CHECK(shard->Apply(Update(0, 1, {1, 1}, one)).code == PushCode::kApplied);
  CHECK(TraceOf(*snapshot) == cut);

  // LEDGER line 21: a new owner begins with the snapshot and with the closures that were cancelled
  // after the snapshot.
  const auto owned = snapshot->Snapshot();
  owned->BecomeOwned({1, 11}, {1, 10}, {4});
  CHECK(owned->epoch() == ShardEpoch{1, 11});
  CHECK(owned->start() == MapVersion{1, 10});
  Push push = Update(0, 0, {1, 3}, one);
  CHECK(owned->Apply(push).code == PushCode::kStale);
  push.epoch = {1, 11};
  CHECK(owned->Apply(push).code == PushCode::kDuplicate);
  push.update = UpdateIndex(1);
  CHECK(owned->Apply(push).code == PushCode::kApplied);
  push.closure = ClosureId(4);
  CHECK(owned->Apply(push).code == PushCode::kRefused);
  CHECK(TraceOf(*snapshot) == cut);
}

TEST_CASE("a shard from the seed refuses closures that were cancelled before it was made") {
  auto shard = Seeded(Counting(), {2, 3});
  const Gradient one(4);
  CHECK(shard->lsn() == 0);
  CHECK(shard->Apply(Update(2, 0, {1, 1}, one)).code == PushCode::kRefused);
  CHECK(shard->Apply(Update(4, 0, {1, 1}, one)).code == PushCode::kApplied);
}

TEST_CASE("open closures are bounded, and one more is asked to retry") {
  auto shard = Seeded(Counting());
  const Gradient one(4);
  for (std::uint64_t c = 0; c < kOpenClosuresMax; ++c) shard->Apply(Update(c, 0, {1, 1}, one));
  const Trace before = TraceOf(*shard);
  CHECK(shard->Apply(Update(kOpenClosuresMax, 0, {1, 1}, one)).code == PushCode::kBusy);
  CHECK(TraceOf(*shard) == before);
  CHECK(shard->Apply(Update(0, 1, {1, 1}, one)).code ==
        PushCode::kApplied);  // closure 0 is already open, so it may continue
  CHECK(shard->Close({1, 5}, {1, 9}, {0}, {}));
  CHECK(shard->Apply(Update(kOpenClosuresMax, 0, {1, 1}, one)).code == PushCode::kApplied);
}

TEST_CASE("invalid shard settings are refused by name") {
  const auto message = [](const ShardSettings& s) {
    return std::string(Shard::FromSeed(s, {1, 1}, {1, 1}, {}).status().message());
  };
  ShardSettings s = Counting();
  s.row_end = 5;
  CHECK(message(s) ==
        "the rows are outside of the shape: variable=count shape=(4, 1) row_begin=0 row_end=5");
  s = Counting();
  s.row_begin = 4;
  CHECK_FALSE(message(s).empty());
  s = Counting();
  s.optimizer.type = "lamb";
  CHECK_FALSE(message(s).empty());
  s.optimizer.type = "rowwise_adagrad";
  CHECK(message(s) == "optimizer is for tables only, use adagrad: variable=" + s.variable +
                          " type=rowwise_adagrad");
  s = Counting();
  s.initializer.type = "orthogonal";
  CHECK_FALSE(message(s).empty());
  s = Counting((64ull << 20) / 4 + 1);
  CHECK(message(s).find("max=67108864") != std::string::npos);
  s = Counting();
  s.variable_shape = tensor::Shape(std::vector<std::uint64_t>{4, 1ull << 40, 1ull << 40});
  CHECK_FALSE(message(s).empty());
  s.variable_shape = tensor::Shape(std::vector<std::uint64_t>(9, 1));
  CHECK_FALSE(message(s).empty());
  s = Counting();
  s.variable_shape = tensor::Shape{};  // a scalar has one row
  s.row_end = 1;
  CHECK(Shard::FromSeed(s, {1, 1}, {1, 1}, {}).ok());
}

// ---------------------------------------------------------------- values do not depend on the
// partitioning

struct Totals {
  std::uint64_t digest = 0, states = 0;
  std::vector<float> values;
};

// Trains a variable of shape (13, 5), divided into the ranges of rows `ranges`, with `updates`
// updates.
Totals Train(const std::vector<sharding::RowRange>& ranges, const InitializerSettings& initializer,
             const optimizers::Settings& optimizer, int updates) {
  Totals totals;
  std::vector<std::unique_ptr<Shard>> shards;
  for (const sharding::RowRange& range : ranges) {
    ShardSettings s;
    s.shard = ShardId(static_cast<std::uint32_t>(shards.size()));
    s.variable = "dense/kernel";
    s.variable_shape = tensor::Shape{13, 5};
    s.row_begin = range.begin;
    s.row_end = range.end;
    s.initializer = initializer;
    s.optimizer = optimizer;
    shards.push_back(Seeded(s));
  }
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int update = 0; update < updates; ++update) {
    std::vector<float> gradient(65);
    for (float& g : gradient) g = normal(random);
    for (auto& shard : shards) {
      const auto& s = shard->settings();
      Push push;
      push.epoch = {1, 5};
      push.closure = ClosureId(static_cast<std::uint64_t>(update / 10));
      push.update = UpdateIndex(static_cast<std::uint32_t>(update % 10));
      push.attempt = {1, 1};
      push.rows = s.row_end - s.row_begin;
      push.payload = std::as_bytes(std::span(gradient).subspan(s.row_begin * 5, push.rows * 5));
      REQUIRE(shard->Apply(push).code == PushCode::kApplied);
    }
  }
  for (auto& shard : shards) {
    totals.digest += shard->Digest();
    totals.states += shard->StateDigest();
    const auto values = shard->Values();
    totals.values.insert(totals.values.end(), values.begin(), values.end());
  }
  return totals;
}

TEST_CASE("digests and values are equal for all partitioners, at the seed and after 100 updates") {
  const tensor::Shape shape{13, 5};
  std::vector<sharding::Partitioner> partitioners = {sharding::FixedShards{2},
                                                     sharding::FixedShards{3},
                                                     sharding::FixedShards{5},
                                                     sharding::FixedShards{100},
                                                     sharding::MinSize{40, std::nullopt},
                                                     sharding::MinSize{4, 4},
                                                     sharding::MaxSize{64, std::nullopt},
                                                     sharding::MaxSize{1, 7}};
  std::vector<InitializerSettings> initializers;
  for (const char* type :
       {"zeros", "ones", "constant", "glorot_uniform", "he_normal", "truncated_normal"}) {
    initializers.push_back({.type = type, .value = 0.5, .fan_in = 13, .fan_out = 5, .seed = 11});
  }
  std::vector<optimizers::Settings> optimizers = {
      {.type = "sgd"},
      {.type = "sgd", .momentum = 0.9, .nesterov = true},
      {.type = "adam"},
      {.type = "counting"}};
  for (const auto& initializer : initializers) {
    const Totals whole = Train({{0, 13}}, initializer, optimizers[0], 0);
    for (const auto& partitioner : partitioners) {
      const auto ranges = sharding::PartitionRows(partitioner, shape);
      REQUIRE(ranges.ok());
      const Totals cut = Train(*ranges, initializer, optimizers[0], 0);
      CHECK(cut.digest == whole.digest);
      CHECK(cut.values == whole.values);
    }
  }
  for (const auto& optimizer : optimizers) {
    INFO(optimizer.type);
    const Totals whole = Train({{0, 13}}, initializers[3], optimizer, 100);
    for (const auto& partitioner : partitioners) {
      const Totals cut =
          Train(*sharding::PartitionRows(partitioner, shape), initializers[3], optimizer, 100);
      CHECK(cut.digest == whole.digest);
      CHECK(cut.states == whole.states);
      CHECK(cut.values == whole.values);
    }
  }
}

TEST_CASE(
    "Adam's t is the number of applied gradients, and skips, Closes and duplicates do not change "
    "it") {
  ShardSettings s = Counting();
  s.optimizer = {.type = "adam", .learning_rate = 0.1};
  auto plain = Seeded(s), noisy = Seeded(s);
  const Gradient g(4, 0.5f);
  for (std::uint32_t u = 0; u < 20; ++u) {
    CHECK(plain->Apply(Update(0, u, {1, 1}, g)).code == PushCode::kApplied);
    CHECK(noisy->Apply(Update(0, u, {1, 1}, g)).code == PushCode::kApplied);
    CHECK(noisy->Apply(Update(0, u, {1, 1}, g)).code == PushCode::kDuplicate);
    Push skip = Update(1, u, {1, 1}, g);
    skip.kind = UpdateKind::kSkip;
    skip.payload = {};
    skip.skip_reason = "overflow";
    CHECK(noisy->Apply(skip).code == PushCode::kApplied);
    CHECK(noisy->Close({1, 5}, {1, 9}, {10 + u}, {}));
  }
  CHECK(noisy->lsn() == 60);
  CHECK(plain->Digest() == noisy->Digest());
}

TEST_CASE("the optimizer state of a shard begins with the optimizer's initial values") {
  ShardSettings s = Counting();
  s.optimizer = {.type = "adagrad", .initial_accumulator_value = 0.25};
  const auto adagrad = Shard::FromSeed(s, {1, 1}, {1, 1}, {});
  s.optimizer.initial_accumulator_value = 0;
  const auto zero = Shard::FromSeed(s, {1, 1}, {1, 1}, {});
  REQUIRE((adagrad.ok() && zero.ok()));
  CHECK((*adagrad)->Cut().states[0].chunk(0)[0] == 0.25f);
  CHECK((*zero)->Cut().states[0].chunk(0)[0] == 0.0f);
}

}  // namespace
}  // namespace evergrad::ps_server
