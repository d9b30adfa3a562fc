// Tests that cuts of slots are written to files and read back. Pushes come between the slices of a
// cut.
#include <random>

#include "common/snapshot/manifest.h"
#include "ps_server/snapshot/cut_file.h"
#include "tests/support/memory_files/memory_file_system.h"
#include "tests/unit/ps_server/shard/slot_fixture.h"

namespace evergrad::ps_server {
namespace {

const char kFolder[] = "file:///job";

CutTarget Target(fs::FileSystem& files) { return {&files, kFolder, "plan", nullptr, nullptr}; }
RestoreOptions Restoring(fs::FileSystem& files, const DurableCut& durable,
                         const ShardSettings& settings) {
  RestoreOptions options;
  options.source.files = &files;
  options.source.uri = fs::JoinUri(kFolder, durable.file);
  options.source.expected =
      snapshot::ShardFileReader::Expected{durable.digest.bytes, durable.digest.sha256};
  options.source.file_job = JobUid(0xabc);
  options.source.plan_fingerprint = "plan";
  options.settings = settings;
  options.epoch = {2, 9};
  options.start = {2, 8};
  return options;
}

struct State {
  std::uint64_t lsn, vlsn, applied, digest, slot_digest;
  Ledger ledger;
  friend bool operator==(const State&, const State&) = default;
};
State StateOf(const Shard& s) {
  return {s.lsn(), s.vlsn(), s.updates_applied(), s.Digest(), s.StateDigest(), s.ledger()};
}

Rows Draw(std::mt19937& random, std::size_t count) {
  std::vector<std::int64_t> users, items;
  for (std::size_t i = 0; i < count; ++i) {
    users.push_back(static_cast<std::int64_t>(random() % 400) - 200);
    items.push_back(static_cast<std::int64_t>(random() % 50));
  }
  Rows rows = RowsOf(users, items);
  for (float& f : rows.floats)
    f = static_cast<float>(static_cast<int>(random() % 2001) - 1000) * 0.001f;
  return rows;
}

TEST_CASE(
    "the file of a slot is the state of one moment despite pushes during the write, and restores "
    "to the same bits") {
  for (const char* optimizer : {"counting", "sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"}) {
    INFO(optimizer);
    ShardSettings settings = SlotOf(optimizer);
    settings.slot->tables[0].ttl_steps = 300;
    settings.slot->tables[0].admit_after = 2;
    auto shard = *Shard::FromSeed(settings, kSlotEpoch, {1, 2}, {});
    std::mt19937 random(7);
    std::uint64_t c = 0;
    const auto push = [&] {
      const Rows rows = Draw(random, 20);
      REQUIRE(shard->Apply(PushOf(c++, 0, rows)).code == PushCode::kApplied);
    };
    for (int i = 0; i < 30; ++i) push();
    REQUIRE(shard->Close(kSlotEpoch, {1, 9}, IntervalSet{0, 1, 2}, IntervalSet{77}));
    const State at_cut = StateOf(*shard);
    const auto same = shard->Snapshot();

    fs::MemoryFileSystem files;
    ShardCut cut = CutOf(*shard);
    const auto next = cut.next_slice;
    int slices = 0;
    cut.next_slice = [&] {
      if (++slices % 3 == 0) push();  // the pushes also evict rows
      return next();
    };
    const auto durable = WriteCut(cut, Target(files));
    REQUIRE(durable.ok());
    CHECK(slices > 10);
    CHECK_FALSE(StateOf(*shard) == at_cut);
    const auto verified = snapshot::VerifyShardFile(files, fs::JoinUri(kFolder, durable->file));
    REQUIRE(verified.ok());
    CHECK(verified->value_digest == same->Digest());
    CHECK(verified->state_digest == same->StateDigest());

    const auto restored = RestoreShard(Restoring(files, *durable, settings));
    REQUIRE(restored.ok());
    CHECK(StateOf(**restored) == at_cut);
    // From here on both shards must admit the same rows and evict the same rows.
    std::mt19937 again(9);
    for (std::uint64_t n = 0; n < 20; ++n) {
      const Rows rows = Draw(again, 20);
      REQUIRE((*restored)->Apply(PushOf(100 + n, 0, rows, {2, 9})).code == PushCode::kApplied);
      REQUIRE(same->Apply(PushOf(100 + n, 0, rows)).code == PushCode::kApplied);
    }
    CHECK(StateOf(**restored) == StateOf(*same));
    const Rows seen = Draw(again, 50);
    CHECK(Pulled(**restored, seen, {2, 9}) == Pulled(*same, seen));
  }
}

TEST_CASE("a cut whose copies exceed their limit is dropped, and the push continues") {
  auto shard = *Shard::FromSeed(SlotOf(), kSlotEpoch, {1, 2}, {});
  std::mt19937 random(3);
  for (std::uint64_t c = 0; c < 30; ++c)
    REQUIRE(shard->Apply(PushOf(c, 0, Draw(random, 40))).code == PushCode::kApplied);
  fs::MemoryFileSystem files;
  ShardCut cut = CutOf(*shard, 64, 100);
  const auto next = cut.next_slice;
  std::uint64_t c = 50;
  cut.next_slice = [&] {
    REQUIRE(shard->Apply(PushOf(c++, 0, Draw(random, 40))).code == PushCode::kApplied);
    return next();
  };
  CHECK(WriteCut(cut, Target(files)).status().code() == absl::StatusCode::kAborted);
  // The next cut must be complete, and it must end the cut that was taken before it.
  ShardCut former = CutOf(*shard);
  CHECK(WriteCut(CutOf(*shard), Target(files)).ok());
  CHECK(former.next_slice().status().code() == absl::StatusCode::kAborted);
}

TEST_CASE("the file of another slot, of other tables, of another kind, or with damage is refused") {
  const ShardSettings settings = SlotOf();
  auto shard = *Shard::FromSeed(settings, kSlotEpoch, {1, 2}, {});
  REQUIRE(shard->Apply(PushOf(0, 0, RowsOf({1, 2}, {3}))).code == PushCode::kApplied);
  fs::MemoryFileSystem files;
  const auto durable = WriteCut(CutOf(*shard), Target(files));
  REQUIRE(durable.ok());
  const auto refused = [&](const ShardSettings& other, const char* text) {
    const auto restored = RestoreShard(Restoring(files, *durable, other));
    INFO(restored.status());
    CHECK(restored.status().code() == absl::StatusCode::kFailedPrecondition);
    CHECK_THAT(std::string(restored.status().message()),
               Catch::Contains(text) && Catch::Contains(durable->file));
  };
  ShardSettings other = settings;
  other.slot->slot = 2;
  refused(other, "another slot");
  other = settings;
  other.slot->tables[1].dimension = 4;
  refused(other, "another table");
  other = settings;
  other.slot->tables.pop_back();
  refused(other, "another number of tables");
  other = settings;
  other.slot->tables[0].optimizer.type = "adam";
  refused(other, "another table");
  other = settings;
  other.slot.reset();
  refused(other, "another kind of shard");

  // The table needs more memory than the budget of the server allows.
  const auto none = std::make_shared<storage::MemoryBudget>(1);
  RestoreOptions options = Restoring(files, *durable, settings);
  options.source.budget = none;
  CHECK(RestoreShard(options).status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(none->used() == 0);
}

}  // namespace
}  // namespace evergrad::ps_server
