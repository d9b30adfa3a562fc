// Reads the example job of a matrix factorization from its file, and trains it in one process. The
// training uses the csv reader, lookups, embedding layers, L2 and RMSE. It must reach the result
// that a correct implementation reaches on the same ratings. The rows are in plain maps, with the
// lazy Adam of the job, which has a step count t for each row.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <unordered_map>

#include "common/config/job_spec.h"
#include "common/random/philox.h"
#include "tests/support/paths.h"
#include "worker/data/dataset.h"
#include "worker/graph/graph.h"

namespace evergrad {
namespace {

struct Row {
  std::vector<double> w, m, v;
  int t = 0;
};

class Table {
 public:
  Table(const config::TableSpec& spec, std::uint64_t seed)
      : spec_(spec), key_(random::KeyOf(seed, spec.name)) {}
  Row& At(std::int64_t id) {
    Row& row = rows_[id];
    if (row.w.empty()) {
      row.m.resize(spec_.dimension), row.v.resize(spec_.dimension);
      for (std::uint64_t d = 0; d < spec_.dimension; ++d) {
        const double z =
            random::TruncatedNormal(key_, static_cast<std::uint64_t>(id) * spec_.dimension + d);
        row.w.push_back(spec_.initializer.type == "zeros" ? 0 : spec_.initializer.stddev * z);
      }
    }
    return row;
  }
  void Push(std::int64_t id, const float* g, const optimizers::Settings& o) {
    Row& row = At(id);
    ++row.t;
    for (std::size_t d = 0; d < row.w.size(); ++d) {
      row.m[d] += (g[d] - row.m[d]) * (1 - o.beta_1);
      row.v[d] += (static_cast<double>(g[d]) * g[d] - row.v[d]) * (1 - o.beta_2);
      const double rate = o.learning_rate * std::sqrt(1 - std::pow(o.beta_2, row.t)) /
                          (1 - std::pow(o.beta_1, row.t));
      row.w[d] -= rate * row.m[d] / (std::sqrt(row.v[d]) + o.epsilon);
    }
  }

 private:
  const config::TableSpec spec_;
  const std::uint64_t key_;
  std::unordered_map<std::int64_t, Row> rows_;
};

struct Loaded {
  std::vector<tensor::AlignedBuffer> fields;
  worker::Batch batch;
};
Loaded Load(const worker::Dataset& data, const worker::Graph& graph, const std::string& labels,
            const std::vector<std::uint64_t>& examples) {
  Loaded loaded;
  std::vector<std::span<std::byte>> to;
  for (const worker::Field& field : data.fields()) {
    tensor::AlignedBuffer& buffer =
        loaded.fields.emplace_back(examples.size() * field.example_bytes());
    to.emplace_back(buffer.data(), buffer.size());
  }
  REQUIRE(data.Read(examples, to).ok());
  loaded.batch.size = static_cast<std::int64_t>(examples.size());
  for (const worker::GraphInput& input : graph.inputs())
    loaded.batch.inputs.emplace_back(worker::Int64s(loaded.fields[*data.FindField(input.name)]));
  loaded.batch.labels = loaded.fields[*data.FindField(labels)].floats();
  return loaded;
}

// Trains the example on the file ratings.csv in the folder `set` of the data folder. Returns the
// last RMSE. If the file is missing, prints a message and returns nullopt.
std::optional<double> RmseOn(const std::string& set, std::uint64_t ratings) {
  std::ifstream file(test::SourceDir() + "/configs/examples/matrix_factorization.yaml");
  std::stringstream text;
  text << file.rdbuf();
  config::ParseOptions options;
  options.environment = {{"EVERGRAD_DATA", test::DataDir()}};
  options.overrides.push_back(
      {"spec.data.train.path", test::DataDir() + "/" + set + "/ratings.csv", ""});
  const config::ParsedJob parsed = config::ParseJob(text.str(), options);
  REQUIRE(parsed.spec);
  const config::JobSpec& spec = *parsed.spec;
  if (!std::ifstream(spec.data.train->path).good()) {
    std::cout << "skipped: no " << spec.data.train->path << " (`./evergrad data " << set << "`)\n";
    return std::nullopt;
  }
  const auto train = worker::OpenDataset(*spec.data.train, spec.data.fields, nullptr);
  INFO(train.status());
  REQUIRE(train.ok());
  const auto eval = worker::OpenDataset(*spec.data.eval, spec.data.fields, train->get());
  REQUIRE(eval.ok());
  CHECK((*train)->examples() + (*eval)->examples() == ratings);
  const auto backend = worker::MakeBackend({"cpu", 1});
  const auto graph = worker::Graph::Build(spec.model, backend->get());
  INFO(graph.status());
  REQUIRE(graph.ok());

  std::vector<Table> tables;
  for (const config::TableSpec& table : (*graph)->tables())
    tables.emplace_back(table, spec.training.seed);
  worker::UniqueIds scratch;
  std::vector<worker::TableRows> lookup;
  std::vector<std::vector<float>> values(tables.size()), gradients(tables.size());
  const auto pull = [&](const worker::Batch& batch) {
    REQUIRE((*graph)->Lookup(batch, &scratch, &lookup).ok());
    worker::Rows rows;
    rows.lookup = &lookup;
    for (std::size_t t = 0; t < tables.size(); ++t) {
      values[t].clear();
      for (const std::int64_t id : lookup[t].ids) {
        const Row& row = tables[t].At(id);
        values[t].insert(values[t].end(), row.w.begin(), row.w.end());
      }
      rows.values.emplace_back(values[t]);
    }
    return rows;
  };
  double rmse = 0;
  for (std::uint64_t epoch = 0; epoch < spec.training.epochs; ++epoch) {
    const random::Permutation order((*train)->examples(),
                                    random::KeyOf(spec.data.shuffle_seed, std::to_string(epoch)));
    for (std::uint64_t begin = 0; begin < order.size(); begin += spec.data.batch_size) {
      std::vector<std::uint64_t> examples;
      for (std::uint64_t i = begin; i < std::min(order.size(), begin + spec.data.batch_size); ++i)
        examples.push_back(order(i));
      const Loaded loaded = Load(**train, **graph, "rating", examples);
      const worker::Rows rows = pull(loaded.batch);
      std::vector<worker::AnyOut> row_gradients;
      for (std::size_t t = 0; t < tables.size(); ++t) {
        gradients[t].resize(values[t].size());
        row_gradients.emplace_back(gradients[t]);
      }
      const auto step = (*graph)->TrainStep({}, rows, loaded.batch, 0, {}, row_gradients);
      INFO(step.status());
      REQUIRE(step.ok());
      for (std::size_t t = 0; t < tables.size(); ++t) {
        const std::size_t dimension = (*graph)->tables()[t].dimension;
        for (std::size_t i = 0; i < lookup[t].ids.size(); ++i)
          tables[t].Push(lookup[t].ids[i], gradients[t].data() + i * dimension,
                         *config::OptimizerFor(spec, (*graph)->tables()[t].name));
      }
    }
    worker::MetricSum sum;
    for (std::uint64_t begin = 0; begin < (*eval)->examples(); begin += spec.data.batch_size) {
      std::vector<std::uint64_t> examples;
      for (std::uint64_t i = begin; i < std::min((*eval)->examples(), begin + spec.data.batch_size);
           ++i)
        examples.push_back(i);
      const Loaded loaded = Load(**eval, **graph, "rating", examples);
      const auto result = (*graph)->Evaluate({}, pull(loaded.batch), loaded.batch);
      REQUIRE(result.ok());
      sum.Add(result->metrics[0]);
    }
    rmse = std::sqrt(sum.sum / static_cast<double>((*eval)->examples()));
    std::cout << "epoch " << epoch + 1 << ": root_mean_squared_error " << rmse << "\n";
  }
  return rmse;
}

TEST_CASE("the example of matrix factorization finds the structure of the synthetic ratings") {
  const auto rmse = RmseOn("ratings", 105170);
  if (rmse) CHECK(*rmse <= 0.640);  // a model of the biases alone reaches 0.786
}

TEST_CASE("the example of matrix factorization reaches an RMSE of 0.870 on the MovieLens ratings") {
  const auto rmse = RmseOn("ml-latest-small", 100836);
  if (rmse) CHECK(*rmse <= 0.870);
}

}  // namespace
}  // namespace evergrad
