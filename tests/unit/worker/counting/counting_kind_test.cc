// Tests counting jobs in a runner. The test acts as the coordinator, and the servers are real, over
// the in-process transport.
#include "worker/counting/counting_kind.h"

#include <catch2/catch.hpp>

#include <map>
#include <set>

#include "common/plan/counting_rows.h"
#include "common/sharding/row_digest.h"
#include "tests/unit/worker/runner/runner_fixture.h"

namespace evergrad::worker {
namespace {

TEST_CASE(
    "a counting job counts every sample and every update exactly, and touches only shards with "
    "samples of the batch") {
  Stage::Settings settings;
  settings.servers = 3;
  Stage stage(settings);
  const v1::DescribeResult d = stage.Begin(CountingYaml(90), 6, SmallPlan());
  CHECK(d.train_examples() == 90);
  CHECK(d.eval_examples() == 90);
  CHECK(d.variables(0).name() == "counting/samples");
  CHECK(d.variables(0).optimizer().type() == "counting");
  for (std::uint64_t c = 0; c < stage.plan->closures(); ++c) stage.RunClosure(c);
  std::int64_t count = 0;
  for (std::uint64_t n = 0; n < stage.plan->eval_closures(); ++n) {
    const v1::Done done = stage.RunClosure(1ull << 32 | n, v1::EVALUATE);
    CHECK(done.metrics().sums(0).name() == "count");
    count += done.metrics().sums(0).count();
  }
  CHECK(count == 2 * 90);
  // The plan determines which shards the update (c, u) touches: shard s of counting/samples holds
  // the examples 15 s to 15 s + 14.
  std::set<std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>> want, seen;
  for (std::uint64_t c = 0; c < stage.plan->closures(); ++c) {
    for (std::uint32_t u = 0; u < stage.plan->Closure(ClosureId(c)).steps; ++u) {
      for (const std::uint64_t e : stage.plan->Batch(ClosureId(c), UpdateIndex(u)))
        want.insert({c, u, static_cast<std::uint32_t>(e / 15)});
      for (std::uint32_t s = 6; s < 10; ++s) want.insert({c, u, s});
    }
  }
  for (const SeenPush& push : stage.Seen()) seen.insert({push.closure, push.update, push.shard});
  CHECK(seen == want);
}

TEST_CASE(
    "a counting job's tables hold the sums that (closure, update) name, each slot applies the "
    "updates that touch it, and a repair pushes to its slot "
    "only") {
  Stage stage;
  stage.Begin(CountingYaml(90, 0, 3), 4, SmallPlan());
  for (std::uint64_t c = 0; c < stage.plan->closures(); ++c) stage.RunClosure(c);
  stage.RunClosure(0);  // in the second run every push is a duplicate
  const auto dense = static_cast<std::uint32_t>(stage.job.plan().shards_size()) - kSlots;
  stage.RunClosure(1, v1::TRAIN, {dense + 3});
  std::vector<std::map<std::int64_t, std::vector<float>>> rows(3);
  std::vector<std::uint64_t> touched(kSlots);
  bool twice = false;
  std::uint64_t steps = 0;
  for (std::uint64_t c = 0; c < stage.plan->closures(); ++c) {
    for (std::uint32_t u = 0; u < stage.plan->Closure(ClosureId(c)).steps; ++u, ++steps) {
      std::set<std::uint32_t> slots;
      for (std::uint32_t t = 0; t < 3; ++t) {
        const plan::CountingRows pushed = plan::CountingRowsOf(c, u, t, t + 1, 500);
        std::set<std::int64_t> ids;
        for (std::size_t i = 0; i < pushed.ids.size(); ++i) {
          auto& row = rows[t].try_emplace(pushed.ids[i], t + 1).first->second;
          for (std::uint32_t e = 0; e <= t; ++e) row[e] += pushed.values[i * (t + 1) + e];
          slots.insert(sharding::SlotOf(sharding::SlotKey(absl::StrCat("counting/table", t)),
                                        pushed.ids[i], kSlots));
          twice = twice || !ids.insert(pushed.ids[i]).second;
        }
      }
      for (const std::uint32_t slot : slots) ++touched[slot];
    }
  }
  CHECK(twice);
  std::vector<std::uint64_t> digests(3);
  std::uint64_t sparse = 0;
  for (const v1::ShardState& state : stage.States()) {
    if (state.tables_size() == 0) continue;
    CHECK(state.updates_applied() == touched[state.shard() - dense]);
    sparse += state.updates_applied();
    for (int t = 0; t < 3; ++t) digests[static_cast<std::size_t>(t)] += state.tables(t).digest();
  }
  CHECK(sparse < steps * kSlots / 2);
  for (std::size_t t = 0; t < 3; ++t) {
    std::uint64_t want = 0;
    for (const auto& [id, row] : rows[t]) want += sharding::DigestOfRow(id, 0, row);
    CHECK(digests[t] == want);
  }
}

TEST_CASE("a counting job is refused where the daemon was not started with --failpoints") {
  Stage::Settings settings;
  settings.more_job_kinds.clear();
  Stage stage(settings);
  stage.Submit(CountingYaml(90));
  stage.Register();
  stage.Grant(1ull << 32, v1::DESCRIBE);
  const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
  CHECK(failed.user_error());
  CHECK_THAT(failed.cause().message(), Catch::Contains("--failpoints"));
}

}  // namespace
}  // namespace evergrad::worker
