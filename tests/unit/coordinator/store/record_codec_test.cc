// Tests that a record of the journal that is written and read again is unchanged, and that invalid
// bytes are refused.
#include "coordinator/store/record_codec.h"

#include <catch2/catch.hpp>

#include "common/random/philox.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

TEST_CASE("records and states are the same after encoding and decoding, whatever they contain") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    INFO("seed " << seed);
    std::uint64_t drawn = 0;
    const auto below = [&](std::uint64_t n) {
      return static_cast<std::uint64_t>(random::Uniform(seed, drawn++) * static_cast<double>(n));
    };
    const auto set = [&] {
      IntervalSet made;
      for (std::uint64_t i = below(6); i > 0; --i)
        made.AddRange(below(100), 100 + below(1ull << 40));
      return made;
    };
    DurableState state;
    for (std::uint64_t i = 1 + below(20); i > 0; --i) {
      Record record;
      if (below(2) == 0) record.term = Term(1 + below(1ull << 50));
      if (below(2) == 0) record.version = MapVersion{1 + below(9), below(1000)};
      if (below(2) == 0)
        record.map[static_cast<std::uint32_t>(below(30))] = {
            "s" + std::to_string(below(9)), {below(9), below(99)}, {below(9), below(99)}};
      if (below(2) == 0) record.succeeded_add = set();
      if (below(3) == 0) record.dead_add = set();
      const auto shard = [&] { return static_cast<std::uint32_t>(below(30)); };
      if (below(3) == 0) record.todo_add[shard()] = set();
      if (below(3) == 0) record.todo_remove[shard()] = set();
      if (below(3) == 0) record.lost_add[shard()] = set();
      if (below(3) == 0) {
        Snapshot snapshot{"file:///runs/x", "shard-" + std::to_string(below(5)), below(1ull << 40),
                          std::string(32, static_cast<char>(below(256)))};
        snapshot.job = JobUid(below(99));
        snapshot.plan_fingerprint = "f" + std::to_string(below(3));
        snapshot.epoch = {below(9), below(99)};
        snapshot.start = {below(9), below(99)};
        snapshot.lsn = below(1ull << 40);
        snapshot.vlsn = below(1ull << 40);
        snapshot.done = set();
        snapshot.refused = set();
        snapshot.resumed = below(2) == 0;
        snapshot.replace_ledger = below(2) == 0;
        record.snapshot_add[shard()].push_back(std::move(snapshot));
      }
      if (below(3) == 0)
        record.snapshot_remove[shard()].insert("file:///runs/x/shard-" + std::to_string(below(5)));
      v1::JournalRecord bytes;
      EncodeRecord(record, &bytes);
      const auto back = DecodeRecord(bytes);
      REQUIRE(back.ok());
      CHECK(*back == record);
      ApplyRecord(*back, &state);
    }
    const auto back = DecodeState(EncodeState(state));
    REQUIRE(back.ok());
    CHECK(*back == state);
  }
}

TEST_CASE("bytes that are no record or state are refused") {
  CHECK_FALSE(DecodeState("\xff\xff\xff").ok());
  v1::JournalState state;
  state.set_shards(3);
  state.add_map()->set_shard(3);
  CHECK_FALSE(DecodeState(state.SerializeAsString()).ok());
  state.Clear();
  state.set_shards(1u << 30);
  CHECK_FALSE(DecodeState(state.SerializeAsString()).ok());
  state.Clear();
  state.mutable_succeeded()->add_bounds(5);  // an interval set must have an even number of bounds
  CHECK_FALSE(DecodeState(state.SerializeAsString()).ok());
  v1::JournalRecord record;
  record.add_todo_add()->set_shard(1u << 31);
  CHECK_FALSE(DecodeRecord(record).ok());
}

}  // namespace
}  // namespace evergrad::coordinator
