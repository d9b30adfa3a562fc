// Tests lookups of ids, refusals about tables, and the metrics that are sent as sums.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/random/philox.h"
#include "common/tensor/convert.h"
#include "tests/unit/worker/backend/fixtures/apart_backend.h"
#include "tests/unit/worker/backend/fixtures/contract_fixture.h"
#include "tests/unit/worker/graph/reference_fixture.h"
#include "worker/graph/graph.h"
#include "worker/graph/host_step.h"

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

TEST_CASE("a lookup lists each id once, in order of first appearance, with its positions") {
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
  // The positions of movies come first, and then those of users.
  CHECK((*rows)[0].position == std::vector<std::uint32_t>{0, kAbsent, 1, 2, 0, 0, 1, 3});
  CHECK((*rows)[1].position.size() == 8);
  batch.inputs[0] = x;
  CHECK_FALSE((*graph)->Lookup(batch).ok());
}

TEST_CASE("a reused scratch gives the results of a map") {
  UniqueIds scratch;
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> position;
  for (std::uint64_t round = 0; round < 200; ++round) {
    std::vector<std::int64_t> batch(1 + random::Bits64(1, round) % 3000);
    for (std::size_t i = 0; i < batch.size(); ++i)
      batch[i] = static_cast<std::int64_t>(random::Bits64(2 + round, i) % 500) - 20 +
                 (round % 3 == 0 ? static_cast<std::int64_t>(i) << 40 : 0);
    ids.clear();
    position.clear();
    scratch.Begin(batch.size());
    scratch.Add(std::span(batch).first(batch.size() / 2), &ids, &position);
    scratch.Add(std::span(batch).subspan(batch.size() / 2), &ids, &position);
    std::map<std::int64_t, std::uint32_t> want;
    REQUIRE(position.size() == batch.size());
    bool equal = true;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const std::uint32_t at =
          batch[i] < 0 ? kAbsent : want.emplace(batch[i], want.size()).first->second;
      equal = equal && position[i] == at && (at == kAbsent || ids[at] == batch[i]);
    }
    CHECK(equal);
    CHECK(ids.size() == want.size());
  }
}

TEST_CASE("a model whose tables and inputs do not fit is a user's error") {
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
  CHECK_THAT(refusal([](Model& m) { m.tables.push_back(TableOf("idle", 3)); }),
             Catch::Contains("table `idle`: no embedding layer reads it"));
  CHECK_THAT(refusal([](Model& m) { m.tables[0].dimension = 0; }),
             Catch::Contains("dimension must be at least 1"));
  CHECK_THAT(refusal([](Model& m) { m.layers[0].table = "x"; }), Catch::Contains("no table `x`"));
  CHECK_THAT(refusal([](Model& m) { m.layers[0].combiner = "max"; }),
             Catch::Contains("unknown combiner `max`"));
  CHECK_THAT(refusal([](Model& m) { m.layers[0].weights = "x"; }),
             Catch::Contains("with the shape of the weights: weights=(2) ids=(3)"));
  CHECK_THAT(refusal([](Model& m) { m.layers[1].weights = "x"; }),
             Catch::Contains("weights need a combiner"));
  CHECK_THAT(refusal([](Model& m) { m.layers[1].inputs = {"m"}; }),
             Catch::Contains("`m` is a layer"));
  CHECK_THAT(refusal([](Model& m) { m.layers[4].inputs.push_back("movies"); }),
             Catch::Contains("read as ids by an embedding and as numbers by another layer"));
  CHECK_THAT(refusal([](Model& m) {
               m.layers[3].inputs = {"u", "o"};
             }),
             Catch::Contains("dot needs two vectors of the same size, got (2), (1)"));
  CHECK_THAT(refusal([](Model& m) { m.layers[3].inputs = {"u"}; }),
             Catch::Contains("a dot layer reads two inputs, got 1"));
  CHECK_THAT(refusal([](Model& m) {
               m.layers[3].type = "add", m.layers[3].inputs = {"u", "o"};
             }),
             Catch::Contains("add needs inputs of the same shape, got (2), (1)"));
  CHECK_THAT(refusal([](Model& m) {
               m.layers[3].type = "factorization_machine", m.layers[3].inputs = {"u"};
             }),
             Catch::Contains("at least two vectors"));
  CHECK_THAT(refusal([](Model& m) {
               m.inputs[0].shape = {2, 2};
             }),
             Catch::Contains("ids of shape () or (n)"));
  CHECK_THAT(refusal([](Model& m) { m.metrics = {"root_mean_squared_error"}; }),
             Catch::Contains("for this loss: expected mean_squared_error"));
  CHECK_THAT(refusal([](Model& m) { m.metrics = {"precision"}; }),
             Catch::Contains("unknown metric `precision`"));
}

// A GPU kernel gets the list of its inputs as arguments, whose size is limited.
TEST_CASE(
    "an embedding or factorization machine with more inputs than a GPU allows is a user's error "
    "when it is built") {
  const auto build = [](const std::string& type, std::size_t inputs,
                        const std::unique_ptr<Backend>& backend) {
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
    model.layers.push_back(type == "embedding" ? EmbeddingSpec("wide", "t", ids, "sum")
                                               : MergeSpec("wide", type, vectors));
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
    CHECK_THAT(
        std::string(refused.message()),
        Catch::Contains("wide") && Catch::Contains("inputs=97 max=96 device=" + gpu->name()));
  }
}

// A random batch. The number of different rows varies from batch to batch.
struct Drawn {
  std::vector<std::int64_t> users, movies;
  std::vector<float> x, labels;
  std::vector<TableRows> lookup;
  std::vector<std::vector<float>> values, gradients;
  Batch batch;
  Drawn(const Graph& graph, std::uint64_t number, std::int64_t size) {
    const std::uint64_t ids = 40 + number % 7 * 9;
    for (std::int64_t i = 0; i < size; ++i) {
      users.push_back(
          static_cast<std::int64_t>(random::Bits64(number, static_cast<std::uint64_t>(i)) % ids));
      for (std::uint64_t k = 0; k < 3; ++k)
        movies.push_back(
            static_cast<std::int64_t>(
                random::Bits64(number + 1000, 3 * static_cast<std::uint64_t>(i) + k) % (ids + 1)) -
            1);
      labels.push_back(static_cast<float>(i % 2));
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(2 * size); ++i)
      x.push_back(random::Uniform(number + 2000, i));
    batch.size = size;
    batch.inputs = {users, movies, x};
    batch.labels = labels;
    lookup = *graph.Lookup(batch);
    for (std::size_t t = 0; t < lookup.size(); ++t) {
      const std::size_t dimension = graph.tables()[t].dimension;
      values.emplace_back(lookup[t].ids.size() * dimension);
      for (std::size_t i = 0; i < values[t].size(); ++i)
        values[t][i] =
            random::Uniform(
                t, static_cast<std::uint64_t>(lookup[t].ids[i / dimension]) * 4 + i % dimension) -
            0.5f;
      gradients.emplace_back(values[t].size(), std::nanf(""));
    }
  }
  Rows rows() const { return {&lookup, {values.begin(), values.end()}, {}}; }
};

TEST_CASE(
    "a model with tables is recorded after a few steps and replayed, for any number of rows, "
    "without changing a bit") {
  config::ModelSpec model = Factorization();
  model.tables[0].l2 = 0.01;
  const auto device = *MakeBackend(EmulatedGpu());
  const std::unique_ptr<Graph> graph = *Graph::Build(model, device.get());
  const std::vector<float> kernel = {0.5f, -0.25f, 0.75f, 1}, bias = {0.1f};
  std::vector<float> kernel_gradient(4), bias_gradient(1);
  HostStep steps(graph.get(), device.get());
  constexpr std::uint64_t kSteps = 60;
  std::set<std::size_t> sizes;
  for (std::uint64_t i = 0; i < kSteps; ++i) {
    Drawn drawn(*graph, i, 48);
    sizes.insert(drawn.lookup[0].ids.size());
    const auto got = steps.TrainStep({kernel, bias}, drawn.rows(), drawn.batch, i,
                                     {kernel_gradient, bias_gradient},
                                     {drawn.gradients.begin(), drawn.gradients.end()});
    INFO(got.status().ToString());
    REQUIRE(got.ok());
    CHECK(got->finite);
    // Runs the same batch as the first step of another device, which has never run another batch.
    const auto other = *MakeBackend(EmulatedGpu());
    const std::unique_ptr<Graph> fresh = *Graph::Build(model, other.get());
    const auto put = [&](std::span<const std::byte> bytes) {
      Memory memory = other->Allocate(bytes.size(), "there").value();
      other->Upload(DeviceQueue::kCompute, bytes, memory.as<std::byte>());
      return memory;
    };
    const auto bytes = [](const auto& v) { return std::as_bytes(std::span(v)); };
    Memory over[] = {put(bytes(kernel)),        put(bytes(bias)),    put(bytes(kernel_gradient)),
                     put(bytes(bias_gradient)), put(bytes(drawn.x)), put(bytes(drawn.labels))};
    std::vector<Memory> values, gradients, positions;
    Rows rows;
    rows.lookup = &drawn.lookup;
    std::vector<AnyOut> row_gradients;
    for (std::size_t t = 0; t < drawn.values.size(); ++t) {
      values.push_back(put(bytes(drawn.values[t])));
      gradients.push_back(put(bytes(drawn.values[t])));
      positions.push_back(put(bytes(drawn.lookup[t].position)));
      rows.values.emplace_back(values[t].as<float>());
      rows.positions.emplace_back(positions[t].as<std::uint32_t>());
      row_gradients.emplace_back(gradients[t].as<float>());
    }
    Batch there = drawn.batch;
    there.inputs[2].floats = over[4].as<float>();
    there.labels = over[5].as<float>();
    const auto want = fresh->TrainStep({over[0].as<float>(), over[1].as<float>()}, rows, there, i,
                                       {over[2].as<float>(), over[3].as<float>()}, row_gradients);
    REQUIRE(want.ok());
    CHECK(got->loss_sum == want->loss_sum);
    for (std::size_t t = 0; t < drawn.values.size(); ++t) {
      std::vector<float> back(drawn.values[t].size());
      other->Download(DeviceQueue::kCompute, gradients[t].as<std::byte>(),
                      std::as_writable_bytes(std::span(back)));
      CHECK(back == drawn.gradients[t]);
    }
    std::vector<float> back(4);
    other->Download(DeviceQueue::kCompute, over[2].as<std::byte>(),
                    std::as_writable_bytes(std::span(back)));
    CHECK(back == kernel_gradient);
  }
  CHECK(sizes.size() > 5);  // otherwise the test would prove nothing
  const DeviceUse use = *device->device_use(false);
  INFO(use.eager << " eager, " << use.captures << " captured, " << use.replays << " replayed");
  CHECK(use.replays >= kSteps - 12);
  // The same must be true for evaluation.
  for (std::uint64_t i = 0; i < 8; ++i) {
    const Drawn drawn(*graph, i, 48);
    REQUIRE(steps.Evaluate({kernel, bias}, drawn.rows(), drawn.batch).ok());
  }
  CHECK(device->device_use(false)->replays >= use.replays + 5);
}

// A step of HostStep in which each variable and each table is sent in its own type. It is compared
// with the same step in float32, for which the test itself converts the values.
struct Travel {
  std::vector<tensor::WireType> types;  // the types of the variables, then those of the tables
  // The values that are sent to the step, and the gradients that it returns.
  std::vector<std::vector<std::byte>> narrow, made;
  std::vector<std::vector<float>> wide, wide_made;
  Travel(const Graph& graph, const Drawn& drawn, std::uint64_t number,
         std::vector<tensor::WireType> of)
      : types(std::move(of)) {
    const std::size_t variables = graph.variables().size();
    for (std::size_t i = 0; i < types.size(); ++i) {
      const std::size_t n = i < variables ? graph.variables()[i].shape.elements()
                                          : drawn.values[i - variables].size();
      std::vector<float>& values = wide.emplace_back(n);
      // A moving average may be a variance, which must be above 0.
      const float least = i < variables && graph.variables()[i].is_moving_average() ? 0.1f : -0.4f;
      for (std::size_t e = 0; e < n; ++e)
        values[e] = i < variables ? random::Uniform(number + 3000 + i, e) + least
                                  : drawn.values[i - variables][e];
      narrow.emplace_back(n * tensor::WireBytes(types[i]));
      tensor::Narrow(types[i], values.data(), n, narrow[i].data());
      tensor::Widen(types[i], narrow[i].data(), n, values.data());
      made.emplace_back(n * tensor::WireBytes(types[i]), std::byte{0x5a});
      wide_made.emplace_back(n, std::nanf(""));
    }
  }
  template <typename Any, typename Bytes>
  std::vector<Any> Spans(Bytes& bytes, std::size_t begin, std::size_t end) const {
    std::vector<Any> spans;
    for (std::size_t i = begin; i < end; ++i)
      spans.emplace_back(bytes[i].data(), wide[i].size(), static_cast<Element>(types[i]));
    return spans;
  }
};

TEST_CASE(
    "a device that converts for the wire gives the bits of the host's conversion, for each "
    "variable and table") {
  config::ModelSpec model = Factorization();
  model.tables[0].l2 = 1.5;
  model.layers.back() = DenseSpec("hidden", "all", 8, "relu");
  model.layers.back().kernel_l2 = 2, model.layers.back().bias_l2 = 0.5;
  model.layers.push_back(PlainSpec("norm", "batch_normalization", "hidden"));
  model.layers.back().gamma_l2 = 0.1;
  model.layers.push_back(DenseSpec("out", "norm", 1));
  constexpr tensor::WireType kTypes[] = {tensor::WireType::kFloat32, tensor::WireType::kFloat16,
                                         tensor::WireType::kBFloat16};
  for (const Precision precision :
       {Precision::kFloat32, Precision::kMixedBFloat16, Precision::kMixedFloat16}) {
    const auto device = *MakeBackend(EmulatedGpu()), other = *MakeBackend(EmulatedGpu());
    const std::unique_ptr<Graph> graph = *Graph::Build(model, device.get(), precision),
                                 reference = *Graph::Build(model, other.get(), precision);
    int named[] = {0, 0};
    HostStep steps(graph.get(), device.get()), wide_steps(reference.get(), other.get());
    const std::size_t variables = graph->variables().size(),
                      all = variables + graph->tables().size();
    for (std::uint64_t number = 0; number < 64; ++number) {
      std::vector<tensor::WireType> types;  // one type for all, or one for each
      const std::uint64_t mix = number / 2 % 4;
      for (std::size_t i = 0; i < all; ++i)
        types.push_back(kTypes[mix < 2 ? 1 + mix : random::Bits64(mix + 4000, i) % 3]);
      Drawn drawn(*graph, number, 48 - 7 * static_cast<std::int64_t>(number % 2));
      Travel t(*graph, drawn, number, types);
      if (number % 6 == 5) {
        // Regularizers give one variable and one table gradients that exceed the range of float16.
        for (const std::size_t i : {std::size_t{0}, all - 2}) {
          t.wide[i][0] = 60000;
          tensor::Narrow(types[i], t.wide[i].data(), t.wide[i].size(), t.narrow[i].data());
          tensor::Widen(types[i], t.narrow[i].data(), t.wide[i].size(), t.wide[i].data());
        }
      }
      steps.AllChanged(), wide_steps.AllChanged();
      const float scale = precision == Precision::kMixedFloat16 ? 128.0f : 1.0f;
      graph->SetLossScale(scale), reference->SetLossScale(scale);
      const auto got = steps.TrainStep(
          t.Spans<AnyIn>(t.narrow, 0, variables),
          {&drawn.lookup, t.Spans<AnyIn>(t.narrow, variables, all), {}}, drawn.batch, number,
          t.Spans<AnyOut>(t.made, 0, variables), t.Spans<AnyOut>(t.made, variables, all));
      const auto split = t.wide.begin() + static_cast<std::ptrdiff_t>(variables),
                 made_split = t.wide_made.begin() + (split - t.wide.begin());
      const auto want = wide_steps.TrainStep(
          {t.wide.begin(), split}, {&drawn.lookup, {split, t.wide.end()}, {}}, drawn.batch, number,
          {t.wide_made.begin(), made_split}, {made_split, t.wide_made.end()});
      INFO("precision " << static_cast<int>(precision) << " step " << number << " "
                        << got.status().ToString() << " " << want.status().ToString());
      REQUIRE((got.ok() && want.ok()));
      CHECK(
          std::bit_cast<std::uint64_t>(got->loss_sum) ==
          std::bit_cast<std::uint64_t>(want->loss_sum));  // a NaN where float16 is used in between
      CHECK(got->finite == want->finite);
      int overflowed[] = {-1, -1};
      for (std::size_t i = 0; i < all; ++i) {
        INFO(i << " as " << tensor::WireTypeName(types[i]));
        std::vector<std::byte> wanted(t.made[i].size());
        tensor::Narrow(types[i], t.wide_made[i].data(), t.wide_made[i].size(), wanted.data());
        CHECK((wanted == t.made[i]));
        int& first = overflowed[i < variables ? 0 : 1];
        if (first < 0 && types[i] != tensor::WireType::kFloat32 &&
            !tensor::AllFinite(types[i], wanted.data(), t.wide[i].size()))
          first = static_cast<int>(i < variables ? i : i - variables);
      }
      named[0] += overflowed[0] >= 0, named[1] += overflowed[1] >= 0;
      CHECK(got->overflowed == overflowed[0]);
      CHECK(got->rows_overflowed == overflowed[1]);
      CHECK((want->overflowed == -1 && want->rows_overflowed == -1));
      const auto seen = steps.Evaluate(
          t.Spans<AnyIn>(t.narrow, 0, variables),
          {&drawn.lookup, t.Spans<AnyIn>(t.narrow, variables, all), {}}, drawn.batch);
      const auto seen_wide = wide_steps.Evaluate(
          {t.wide.begin(), split}, {&drawn.lookup, {split, t.wide.end()}, {}}, drawn.batch);
      REQUIRE((seen.ok() && seen_wide.ok()));
      CHECK(std::bit_cast<std::uint64_t>(seen->loss_sum) ==
            std::bit_cast<std::uint64_t>(seen_wide->loss_sum));
      CHECK((seen->overflowed == -1 && seen->rows_overflowed == -1));
    }
    CHECK((named[0] > 0 && named[1] > 0));
    CHECK(device->device_use(false)->replays > 0);
  }
}

TEST_CASE("after a batch whose rows were out of memory, a batch with fewer rows runs as before") {
  for (const Element type : {Element::kFloat32, Element::kFloat16}) {
    config::ModelSpec model;
    model.inputs = {{"user", {}}};
    model.tables = {TableOf("t", 64, 0.01)};
    model.layers = {EmbeddingSpec("u", "t", {"user"}), DenseSpec("out", "u", 1)};
    model.losses = {LossOf("binary_crossentropy", "out", true)};
    ApartOptions options;
    options.bytes_max = 1 << 20;
    ApartBackend device(options);
    const std::unique_ptr<Graph> graph = *Graph::Build(model, &device);
    HostStep steps(graph.get(), &device);
    const std::vector<float> kernel(64, 0.5f), bias(1), labels(1200, 1);
    std::vector<float> kernel_gradient(64), bias_gradient(1);
    // All steps have the same number of examples, and different numbers of rows.
    const auto step = [&](std::int64_t rows) {
      std::vector<std::int64_t> users(labels.size());
      for (std::size_t i = 0; i < users.size(); ++i) users[i] = static_cast<std::int64_t>(i) % rows;
      Batch batch;
      batch.size = static_cast<std::int64_t>(users.size());
      batch.inputs = {users};
      batch.labels = labels;
      const auto lookup = *graph->Lookup(batch);
      const std::size_t n = static_cast<std::size_t>(rows) * 64;
      std::vector<std::byte> values(n * BytesOf(type)), gradients(n * BytesOf(type));
      return steps
          .TrainStep({kernel, bias}, {&lookup, {AnyIn(values.data(), n, type)}, {}}, batch, 1,
                     {kernel_gradient, bias_gradient}, {AnyOut(gradients.data(), n, type)})
          .status();
    };
    REQUIRE(step(100).ok());
    for (const std::int64_t rows : {1200, 600, 300}) {
      INFO(NameOf(type) << " rows " << rows);
      const absl::Status refused = step(rows);
      if (rows == 1200)
        CHECK_THAT(refused.ToString(), Catch::Contains("RESOURCE_EXHAUSTED") &&
                                           Catch::Contains("out of memory: what="));
      const absl::Status again = step(100);
      CHECK(again.ToString() == "OK");
    }
  }
}

TEST_CASE("the capacity for rows is slightly above their number, and has few sizes") {
  std::set<std::size_t> sizes;
  for (std::size_t rows = 1; rows < 100000; ++rows) {
    const std::size_t room = CapacityForRows(rows);
    if (room < rows + rows / 16 || (rows > 64 && room > rows + rows / 4) ||
        room < CapacityForRows(rows - 1))
      FAIL(rows << " " << room);
    sizes.insert(room);
  }
  CHECK(sizes.size() < 100);
}

TEST_CASE("row gradients of another size than the rows are refused on a device and on the CPU") {
  for (const auto& options : {BackendOptions{"cpu", 1}, EmulatedGpu()}) {
    const auto backend = *MakeBackend(options);
    const auto graph = *Graph::Build(Factorization(), backend.get());
    HostStep steps(graph.get(), backend.get());
    const std::vector<float> kernel(4), bias(1);
    std::vector<float> kernel_gradient(4), bias_gradient(1);
    Drawn drawn(*graph, 1, 8);
    drawn.gradients[1].pop_back();
    CHECK_THAT(std::string(steps
                               .TrainStep({kernel, bias}, drawn.rows(), drawn.batch, 0,
                                          {kernel_gradient, bias_gradient},
                                          {drawn.gradients.begin(), drawn.gradients.end()})
                               .status()
                               .message()),
               Catch::Contains("row gradient elements mismatch: table=other"));
  }
}

TEST_CASE("rows that do not belong to the batch are refused") {
  const auto backend = MakeBackend({"cpu", 1});
  const auto graph = Graph::Build(Factorization(), backend->get());
  const std::vector<std::int64_t> users = {7}, movies = {5, 6, 5};
  const std::vector<float> x(2), labels = {1};
  Batch batch;
  batch.size = 1;
  batch.inputs = {users, movies, x};
  batch.labels = labels;
  const std::vector<float> kernel(4), bias(1), values(6), other(3);
  const std::vector<AnyIn> weights = {kernel, bias};
  CHECK_THAT(std::string((*graph)->Evaluate(weights, batch).status().message()),
             Catch::Contains("wrong number of tables with rows: want=2 got=0"));
  auto lookup = *(*graph)->Lookup(batch);
  Rows rows{&lookup, {values, other}};
  CHECK((*graph)->Evaluate(weights, rows, batch).ok());
  rows.values[0] = std::span<const float>(values).first(4);
  CHECK_THAT(std::string((*graph)->Evaluate(weights, rows, batch).status().message()),
             Catch::Contains("rows mismatch: table=t ids=3 dimension=2"));
}

TEST_CASE(
    "AUC counts predictions in Keras' bins, RMSE adds squares, and both are summed over batches") {
  const auto backend = *MakeBackend({"cpu", 1});
  const auto count = [&](bool from_logits, std::span<const float> output,
                         std::span<const float> labels) {
    MetricSum sum;
    sum.counts.resize(2 * kAucBins);
    backend->CountAuc(from_logits, output, labels, sum.counts);
    return sum;
  };
  const std::vector<float> p = {0, 0.004f, 0.5f, 1, 0.25f}, t = {0, 1, 1, 1, 0};
  MetricSum sum = count(false, std::span(p).first(3), std::span(t).first(3));
  sum.Add(count(false, std::span(p).subspan(3), std::span(t).subspan(3)));
  REQUIRE(sum.counts.size() == 2 * kAucBins);
  CHECK(sum.counts[0] == 1);              // 0.004 is not above 1/199
  CHECK(sum.counts[99] == 1);             // 0.5 is in bin (99/199, 100/199]
  CHECK(sum.counts[198] == 1);            // 1
  CHECK(sum.counts[kAucBins] == 1);       // 0
  CHECK(sum.counts[kAucBins + 49] == 1);  // 0.25 is in bin (49/199, 50/199]
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
