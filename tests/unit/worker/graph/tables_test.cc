// Look-ups of ids, refusals about tables, and the metrics that travel as sums.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/random/philox.h"
#include "tests/unit/worker/backend/fixtures/contract_fixture.h"
#include "tests/unit/worker/graph/reference_fixture.h"
#include "worker/graph/graph.h"

namespace evergrad::worker {
namespace {

using namespace test;

config::ModelSpec Factorization() {
  config::ModelSpec model;
  model.inputs = {{"user", {}}, {"movies", {3}}, {"x", {2}}};
  model.tables = {TableOf("t", 2), TableOf("other", 1)};
  model.layers = {EmbeddingSpec("m", "t", {"movies"}, "mean"),
                  EmbeddingSpec("u", "t", {"user"}),
                  EmbeddingSpec("o", "other", {"movies", "user"}, "sum"),
                  MergeSpec("dot", "dot", {"u", "m"}),
                  MergeSpec("all", "concatenate", {"dot", "o", "x"}),
                  DenseSpec("out", "all", 1)};
  model.losses = {LossOf("binary_crossentropy", "out", true)};
  return model;
}

TEST_CASE("a look-up names each id once, in order of first appearance, and where each is") {
  const auto backend = MakeBackend({"cpu", 1});
  const auto graph = Graph::Build(Factorization(), backend->get());
  REQUIRE(graph.ok());
  REQUIRE((*graph)->tables().size() == 2);
  CHECK((*graph)->tables()[1].name == "other");
  CHECK((*graph)->inputs()[0].dtype == tensor::DType::kInt64);
  CHECK((*graph)->inputs()[2].dtype == tensor::DType::kFloat32);
  const std::vector<std::int64_t> users = {7, 9}, movies = {5, -1, 7, std::int64_t{1} << 62, 5, 5};
  const std::vector<float> x(4);
  Batch batch;
  batch.size = 2;
  batch.inputs = {users, movies, x};
  const auto rows = (*graph)->Lookup(batch);
  REQUIRE(rows.ok());
  CHECK((*rows)[0].ids == std::vector<std::int64_t>{5, 7, std::int64_t{1} << 62, 9});
  CHECK((*rows)[0].position == std::vector<std::uint32_t>{0, kAbsent, 1, 2, 0, 0, 1, 3});  // movies, then users
  CHECK((*rows)[1].position.size() == 8);
  batch.inputs[0] = x;
  CHECK_FALSE((*graph)->Lookup(batch).ok());
}

TEST_CASE("a scratch that is used again finds what a map finds") {
  UniqueIds scratch;
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> position;
  for (std::uint64_t round = 0; round < 200; ++round) {
    std::vector<std::int64_t> batch(1 + random::Bits64(1, round) % 3000);
    for (std::size_t i = 0; i < batch.size(); ++i)
      batch[i] = static_cast<std::int64_t>(random::Bits64(2 + round, i) % 500) - 20 + (round % 3 == 0 ? static_cast<std::int64_t>(i) << 40 : 0);
    ids.clear();
    position.clear();
    scratch.Begin(batch.size());
    scratch.Add(std::span(batch).first(batch.size() / 2), &ids, &position);
    scratch.Add(std::span(batch).subspan(batch.size() / 2), &ids, &position);
    std::map<std::int64_t, std::uint32_t> want;
    REQUIRE(position.size() == batch.size());
    bool equal = true;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const std::uint32_t at = batch[i] < 0 ? kAbsent : want.emplace(batch[i], want.size()).first->second;
      equal = equal && position[i] == at && (at == kAbsent || ids[at] == batch[i]);
    }
    CHECK(equal);
    CHECK(ids.size() == want.size());
  }
}

TEST_CASE("a model whose tables and inputs do not fit is the user's error") {
  const auto backend = MakeBackend({"cpu", 1});
  const auto refusal = [&](auto change) {
    config::ModelSpec model = Factorization();
    change(model);
    const auto graph = Graph::Build(model, backend->get());
    REQUIRE_FALSE(graph.ok());
    CHECK(BlameOf(graph.status()) == Blame::kUser);
    return std::string(graph.status().message());
  };
  using Model = config::ModelSpec;
  CHECK_THAT(refusal([](Model& m) { m.tables.push_back(TableOf("idle", 3)); }), Catch::Contains("table `idle`: no embedding layer reads it"));
  CHECK_THAT(refusal([](Model& m) { m.tables[0].dimension = 0; }), Catch::Contains("dimension must be at least 1"));
  CHECK_THAT(refusal([](Model& m) { m.layers[0].table = "x"; }), Catch::Contains("no table `x`"));
  CHECK_THAT(refusal([](Model& m) { m.layers[0].combiner = "max"; }), Catch::Contains("unknown combiner `max`"));
  CHECK_THAT(refusal([](Model& m) { m.layers[0].weights = "x"; }), Catch::Contains("of their shape: weights=(2) ids=(3)"));
  CHECK_THAT(refusal([](Model& m) { m.layers[1].weights = "x"; }), Catch::Contains("weights need a combiner"));
  CHECK_THAT(refusal([](Model& m) { m.layers[1].inputs = {"m"}; }), Catch::Contains("`m` is a layer"));
  CHECK_THAT(refusal([](Model& m) { m.layers[4].inputs.push_back("movies"); }),
             Catch::Contains("read as ids by an embedding and as numbers by another layer"));
  CHECK_THAT(refusal([](Model& m) { m.layers[3].inputs = {"u", "o"}; }), Catch::Contains("dot needs two vectors of one size, got (2), (1)"));
  CHECK_THAT(refusal([](Model& m) { m.layers[3].inputs = {"u"}; }), Catch::Contains("dot takes two inputs, got 1"));
  CHECK_THAT(refusal([](Model& m) {
               m.layers[3].type = "add", m.layers[3].inputs = {"u", "o"};
             }),
             Catch::Contains("add needs inputs of one shape, got (2), (1)"));
  CHECK_THAT(refusal([](Model& m) { m.layers[3].type = "factorization_machine", m.layers[3].inputs = {"u"}; }),
             Catch::Contains("at least two vectors"));
  CHECK_THAT(refusal([](Model& m) { m.inputs[0].shape = {2, 2}; }), Catch::Contains("ids of shape () or (n)"));
  CHECK_THAT(refusal([](Model& m) { m.metrics = {"root_mean_squared_error"}; }), Catch::Contains("it needs mean_squared_error"));
  CHECK_THAT(refusal([](Model& m) { m.metrics = {"precision"}; }), Catch::Contains("unknown metric `precision`"));
}

// Lists of inputs travel in a kernel's arguments, which are short.
TEST_CASE("more inputs of an embedding or a factorization machine than a GPU takes are a user's error at build, and one fewer is none") {
  const auto build = [](const std::string& type, std::size_t inputs, const std::unique_ptr<Backend>& backend) {
    config::ModelSpec model;
    model.tables = {TableOf("t", 2)};
    std::vector<std::string> ids, vectors;
    for (std::size_t i = 0; i < inputs; ++i) {
      ids.push_back(absl::StrCat("i", i));
      model.inputs.push_back({ids.back(), {}});
      if (type == "embedding") continue;
      vectors.push_back(absl::StrCat("v", i));
      model.layers.push_back(EmbeddingSpec(vectors.back(), "t", {ids.back()}));
    }
    model.layers.push_back(type == "embedding" ? EmbeddingSpec("wide", "t", ids, "sum") : MergeSpec("wide", type, vectors));
    model.layers.push_back(DenseSpec("out", "wide", 1));
    model.losses = {LossOf("binary_crossentropy", "out", true)};
    return Graph::Build(model, backend.get()).status();
  };
  const auto gpu = *MakeBackend(EmulatedGpu()), cpu = *MakeBackend({"cpu", 1});
  CHECK(gpu->InputsMax() == 96);
  for (const std::string type : {"embedding", "factorization_machine"}) {
    CHECK(build(type, 96, gpu).ok());
    CHECK(build(type, 97, cpu).ok());
    const absl::Status refused = build(type, 97, gpu);
    CHECK(BlameOf(refused) == Blame::kUser);
    CHECK_THAT(std::string(refused.message()), Catch::Contains("wide") && Catch::Contains("inputs=97 max=96 device=" + gpu->name()));
  }
}

TEST_CASE("rows that are not those of the batch are refused") {
  const auto backend = MakeBackend({"cpu", 1});
  const auto graph = Graph::Build(Factorization(), backend->get());
  const std::vector<std::int64_t> users = {7}, movies = {5, 6, 5};
  const std::vector<float> x(2), labels = {1};
  Batch batch;
  batch.size = 1;
  batch.inputs = {users, movies, x};
  batch.labels = labels;
  const std::vector<float> kernel(4), bias(1), values(6), other(3);
  const std::vector<std::span<const float>> weights = {kernel, bias};
  CHECK_THAT(std::string((*graph)->Evaluate(weights, batch).status().message()), Catch::Contains("rows of the wrong tables: want=2 got=0"));
  auto lookup = *(*graph)->Lookup(batch);
  Rows rows{&lookup, {values, other}};
  CHECK((*graph)->Evaluate(weights, rows, batch).ok());
  rows.values[0] = std::span<const float>(values).first(4);
  CHECK_THAT(std::string((*graph)->Evaluate(weights, rows, batch).status().message()), Catch::Contains("rows mismatch: table=t ids=3 dimension=2"));
}

TEST_CASE("AUC counts predictions in Keras' bins, RMSE adds squares, and both add up over batches") {
  const auto backend = *MakeBackend({"cpu", 1});
  const auto count = [&](bool from_logits, std::span<const float> output, std::span<const float> labels) {
    MetricSum sum;
    sum.counts.resize(2 * kAucBins);
    backend->CountAuc(from_logits, output, labels, sum.counts);
    return sum;
  };
  const std::vector<float> p = {0, 0.004f, 0.5f, 1, 0.25f}, t = {0, 1, 1, 1, 0};
  MetricSum sum = count(false, std::span(p).first(3), std::span(t).first(3));
  sum.Add(count(false, std::span(p).subspan(3), std::span(t).subspan(3)));
  REQUIRE(sum.counts.size() == 2 * kAucBins);
  CHECK(sum.counts[0] == 1);              // 0.004: not above 1/199
  CHECK(sum.counts[99] == 1);             // 0.5: bin (99/199, 100/199]
  CHECK(sum.counts[198] == 1);            // 1
  CHECK(sum.counts[kAucBins] == 1);       // 0
  CHECK(sum.counts[kAucBins + 49] == 1);  // 0.25: bin (49/199, 50/199]
  const std::vector<float> logits = {100, -100, 0};
  sum = count(true, logits, std::vector<float>{1, 0, 0});
  CHECK(sum.counts[198] == 1);
  CHECK(sum.counts[kAucBins] == 1);
  CHECK(sum.counts[kAucBins + 99] == 1);
  double squares = 0;
  backend->SumOfMeanSquares(2, 1, std::vector<float>{1, 5}, std::vector<float>{3, 4}, &squares);
  CHECK(squares == 5);
  backend->SumOfMeanSquares(1, 2, std::vector<float>{1, 5}, std::vector<float>{3, 4}, &squares);
  CHECK(squares == 2.5);
}

}  // namespace
}  // namespace evergrad::worker
