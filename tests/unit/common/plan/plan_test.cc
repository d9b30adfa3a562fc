#include "common/plan/plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

namespace evergrad::plan {
namespace {

PlanSpec Spec(std::uint64_t examples, std::uint32_t batch, std::uint32_t steps,
              std::uint32_t epochs) {
  PlanSpec spec;
  spec.train_examples = examples;
  spec.batch_size = batch;
  spec.steps_per_closure = steps;
  spec.epochs = epochs;
  spec.shuffle_seed = 7;
  return spec;
}

TEST_CASE("the last batch and the last closure of an epoch are short") {
  struct Case {
    std::uint64_t examples;
    std::uint32_t batch, steps;
    std::uint64_t steps_per_epoch, closures_per_epoch;
    std::uint64_t last_begin, last_end;
    std::uint32_t last_steps;
  };
  const Case cases[] = {
      {60000, 128, 16, 469, 30, 29 * 16 * 128, 60000, 5},
      {12, 4, 3, 3, 1, 0, 12, 3},   // All batches are full.
      {13, 4, 3, 4, 2, 12, 13, 1},  // One example is left over.
      {1, 128, 16, 1, 1, 0, 1, 1},  // There is a single example.
      {10, 1, 1, 10, 10, 9, 10, 1},
      {10, 100, 4096, 1, 1, 0, 10, 1},
  };
  for (const Case& c : cases) {
    CAPTURE(c.examples, c.batch, c.steps);
    const auto plan = Plan::Create(Spec(c.examples, c.batch, c.steps, 2));
    REQUIRE(plan.ok());
    CHECK(plan->steps_per_epoch() == c.steps_per_epoch);
    CHECK(plan->closures_per_epoch() == c.closures_per_epoch);
    CHECK(plan->closures() == 2 * c.closures_per_epoch);
    const ClosureRange last = plan->Closure(ClosureId(c.closures_per_epoch - 1));
    CHECK(last.begin == c.last_begin);
    CHECK(last.end == c.last_end);
    CHECK(last.steps == c.last_steps);
    CHECK(last.epoch == 0);
    const ClosureRange next = plan->Closure(ClosureId(c.closures_per_epoch));
    CHECK(next.epoch == 1);
    CHECK(next.begin == 0);
    CHECK(next.first_global_step == c.steps_per_epoch);
  }
}

TEST_CASE("the batches of an epoch partition the data set, and global steps have no gap") {
  const bool shuffle = GENERATE(false, true);
  const std::uint64_t examples = GENERATE(1u, 2u, 97u, 1000u, 1024u);
  const std::uint32_t batch = GENERATE(1u, 3u, 64u);
  const std::uint32_t steps = GENERATE(1u, 5u);
  CAPTURE(shuffle, examples, batch, steps);
  PlanSpec spec = Spec(examples, batch, steps, 2);
  spec.shuffle = shuffle;
  const auto plan = Plan::Create(spec);
  REQUIRE(plan.ok());
  std::vector<std::vector<std::uint64_t>> per_epoch(2);
  std::uint64_t global_step = 0;
  for (std::uint64_t c = 0; c < plan->closures(); ++c) {
    const ClosureRange range = plan->Closure(ClosureId(c));
    REQUIRE(range.steps >= 1);
    REQUIRE(range.steps <= steps);
    for (std::uint32_t u = 0; u < range.steps; ++u) {
      REQUIRE(plan->GlobalStep(ClosureId(c), UpdateIndex(u)) == global_step++);
      const auto indices = plan->Batch(ClosureId(c), UpdateIndex(u));
      REQUIRE(!indices.empty());
      REQUIRE(indices.size() <= batch);
      // A repeated call must return the same batch.
      REQUIRE(indices == plan->Batch(ClosureId(c), UpdateIndex(u)));
      auto& epoch = per_epoch[range.epoch];
      epoch.insert(epoch.end(), indices.begin(), indices.end());
    }
  }
  REQUIRE(global_step == plan->steps());
  std::vector<std::uint64_t> everything(examples);
  std::iota(everything.begin(), everything.end(), 0);
  for (auto epoch : per_epoch) {
    if (!shuffle) REQUIRE(epoch == everything);
    std::sort(epoch.begin(), epoch.end());
    REQUIRE(epoch == everything);
  }
  if (shuffle && examples >= 97) CHECK(per_epoch[0] != per_epoch[1]);
}

TEST_CASE("the shuffle seed determines the order") {
  PlanSpec spec = Spec(1000, 1000, 1, 1);
  const auto a = Plan::Create(spec), again = Plan::Create(spec);
  spec.shuffle_seed = 8;
  const auto b = Plan::Create(spec);
  CHECK(a->Batch(ClosureId(0), UpdateIndex(0)) == again->Batch(ClosureId(0), UpdateIndex(0)));
  CHECK(a->Batch(ClosureId(0), UpdateIndex(0)) != b->Batch(ClosureId(0), UpdateIndex(0)));
}

TEST_CASE("evaluation closures divide the evaluation file in order") {
  PlanSpec spec = Spec(10, 1, 1, 1);
  spec.eval_examples = 10007;
  spec.eval_batch_size = 100;
  spec.eval_steps_per_closure = 8;
  const auto plan = Plan::Create(spec);
  REQUIRE(plan.ok());
  REQUIRE(plan->eval_closures() == 13);
  std::uint64_t position = 0;
  for (std::uint64_t n = 0; n < plan->eval_closures(); ++n) {
    const ClosureRange range = plan->EvalClosure(n);
    REQUIRE(range.begin == position);
    REQUIRE(range.end > range.begin);
    REQUIRE(range.steps == (range.end - range.begin + 99) / 100);
    position = range.end;
  }
  CHECK(position == 10007);
  spec.eval_examples = 0;
  CHECK(Plan::Create(spec)->eval_closures() == 0);
}

TEST_CASE("impossible plans are refused by name") {
  const auto refused = [](PlanSpec spec, const std::string& word) {
    const auto plan = Plan::Create(spec);
    REQUIRE_FALSE(plan.ok());
    CHECK(plan.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(plan.status().message()), Catch::Contains(word));
  };
  refused(Spec(0, 1, 1, 1), "train_examples=0");
  refused(Spec(1, 0, 1, 1), "batch_size=0");
  refused(Spec(1, 1, 0, 1), "steps_per_closure=0");
  refused(Spec(1, 1, 1, 0), "epochs=0");
  refused(Spec(1, 1, 4097, 1), "steps_per_closure=4097 limit=4096");
  refused(Spec(~0ull, 1, 1, 2), "more examples than 64 bits can count");
  refused(Spec(~0ull - 5, 1000, 1, 1), "more examples than 64 bits can count");
  PlanSpec eval = Spec(1, 1, 1, 1);
  eval.eval_batch_size = 0;
  refused(eval, "eval_batch_size=0");
}

}  // namespace
}  // namespace evergrad::plan
