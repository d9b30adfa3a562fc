// Tests the records of the durable state. Each record must make its change, and a record of several
// changes must have the same effect as these changes one after another.
#include <catch2/catch.hpp>

#include <random>

#include "coordinator/closures/durable_state.h"

namespace evergrad::coordinator {
namespace {

constexpr std::uint32_t kShards = 3;

Snapshot File(std::uint64_t number, std::uint64_t bytes) {
  Snapshot file;
  file.folder = "file:///c";
  file.file = std::to_string(number);
  file.bytes = bytes;
  return file;
}

class RandomRecords {
 public:
  explicit RandomRecords(std::uint64_t seed) : random_(seed) {}

  Record Next() {
    Record record;
    const auto p = static_cast<std::uint32_t>(Below(kShards));
    switch (Below(6)) {
      case 0:
        record.version = MapVersion{1, ++n_};
        record.map[p] = {std::to_string(Below(3)), ShardEpoch{1, ++n_}, *record.version};
        break;
      case 1: record.succeeded_add.Add(Below(20)); break;
      case 2: record.dead_add.Add(Below(20)); break;
      case 3:
        record.todo_add[p].Add(Below(20));
        record.lost_add[p].Add(Below(20));
        [[fallthrough]];
      case 4: record.todo_remove[p].AddRange(Below(10), 10 + Below(10)); break;
      default:
        record.snapshot_remove[p].insert(File(Below(4), 0).Uri());
        if (Below(2) == 0) record.snapshot_add[p].push_back(File(Below(4), ++n_));
    }
    return record;
  }

 private:
  std::uint64_t Below(std::uint64_t limit) { return random_() % limit; }
  std::mt19937_64 random_;
  std::uint64_t n_ = 0;
};

TEST_CASE("a record of several changes does the same as the changes one after another") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed=" << seed);
    RandomRecords records(seed);
    DurableState state;
    state.Resize(kShards);
    for (int i = 0; i < 20; ++i) ApplyRecord(records.Next(), &state);
    DurableState one_by_one = state;
    Record all;
    for (int i = 0; i < 6; ++i) {
      const Record record = records.Next();
      ApplyRecord(record, &one_by_one);
      AppendRecord(record, &all);
    }
    ApplyRecord(all, &state);
    CHECK(state == one_by_one);
  }
}

TEST_CASE("a record is empty if it changes nothing, and appended to an empty one it is the same") {
  CHECK(Record{}.empty());
  std::vector<Record> records(9);
  records[0].term = Term(1);
  records[1].version = MapVersion{1, 1};
  records[2].map[0] = ShardOwner{};
  records[3].succeeded_add.Add(0);
  records[4].dead_add.Add(0);
  records[5].todo_add[0].Add(0);
  records[6].todo_remove[0].Add(0);
  records[7].lost_add[0].Add(0);
  records[8].snapshot_add[0].push_back(File(1, 1));
  records.emplace_back().snapshot_remove[0].insert("u");
  for (const Record& record : records) {
    CHECK_FALSE(record.empty());
    Record all;
    AppendRecord(record, &all);
    CHECK(all == record);
  }
}

TEST_CASE("a record of a shard beyond the state makes the state larger") {
  DurableState state;
  Record record;
  record.lost_add[2].Add(7);
  ApplyRecord(record, &state);
  CHECK(state.lost.size() == 3);
  CHECK(state.map.size() == 3);
  CHECK(state.lost[2] == IntervalSet{7});
}

TEST_CASE("the state knows the highest version of each of the last terms, and of no older one") {
  DurableState state;
  const auto take = [&](std::uint64_t term, std::uint64_t n) {
    Record record;
    record.version = MapVersion{term, n};
    ApplyRecord(record, &state);
  };
  take(1, 1);
  take(1, 5);
  CHECK(state.known.at(1) == 5);
  for (std::uint64_t term = 2; term < 2 + kKnownTermsMax; ++term) take(term, 1);
  CHECK(state.known.size() == kKnownTermsMax);
  CHECK_FALSE(state.known.contains(1));
  CHECK(state.known.contains(2));
}

TEST_CASE("a shard refuses the closures that are dead and those that are lost there") {
  DurableState state;
  state.Resize(2);
  state.dead = {1};
  state.lost[1] = {4};
  CHECK(state.RefusedAt(0) == IntervalSet{1});
  CHECK(state.RefusedAt(1) == IntervalSet{1, 4});
}

}  // namespace
}  // namespace evergrad::coordinator
