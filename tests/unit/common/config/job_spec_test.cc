#include "common/config/job_spec.h"

#include <algorithm>
#include <fstream>
#include <random>
#include <sstream>

#include <catch2/catch.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/config/job_type.h"
#include "common/layers/layer_descriptor.h"
#include "common/optimizers/registry.h"
#include "common/schema/scalar.h"
#include "common/schema/yaml_tree.h"
#include "tests/support/paths.h"

namespace evergrad::config {
namespace {

std::string ReadSource(const std::string& path) {
  std::ifstream file(test::SourceDir() + "/" + path);
  REQUIRE(file.good());
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

constexpr char kCnn[] = R"(apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: fashion-cnn}            # a DNS label, unique among live jobs
spec:
  data:
    train: {format: idx, images: "${EVERGRAD_DATA:-../data}/fashion-mnist/train-images-idx3-ubyte.gz", labels: "${EVERGRAD_DATA:-../data}/fashion-mnist/train-labels-idx1-ubyte.gz"}
    eval:  {format: idx, images: "${EVERGRAD_DATA:-../data}/fashion-mnist/t10k-images-idx3-ubyte.gz", labels: "/there/t10k-labels-idx1-ubyte.gz"}
    fields:                               # transforms live here and nowhere else; model inputs only name fields
      image: {transforms: [{scale: 0.00392156862}]}
    batch_size: 128                       # examples per step of one worker; in sync modes: global_batch_size
    shuffle: {seed: 7}                    # or off
  model:
    inputs: {image: {shape: [28, 28, 1]}}
    layers:                               # Keras names; `input:` (one or a list) makes it a DAG, default is the layer above
      - {name: conv1, type: conv2d, filters: 32, kernel_size: 3, activation: relu, input: image}
      - {name: pool1, type: max_pooling2d, pool_size: 2}
      - {name: flat,  type: flatten}
      - {name: logits, type: dense, units: 10}
    losses: [{type: sparse_categorical_crossentropy, from_logits: true, output: logits, labels: label}]   # one mapping is allowed
    metrics: [accuracy]
  optimizer: {type: adam, learning_rate: 0.001}
  strategy: {mode: async, pipeline: 0, deterministic: false, partitioner: {type: min_size, min_shard_bytes: 64KiB}}
  training: {epochs: 3, steps_per_closure: 16, evaluate_every: 1 epoch}
)";

constexpr char kCounting[] = R"(apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: count-1}
spec:
  type: counting
  counting: {examples: 600, shards: 8, step_ms: 2}
  data: {batch_size: 10, shuffle: {seed: 7}}
  training: {epochs: 2, steps_per_closure: 4}
)";

constexpr char kCsv[] = R"(apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: clicks}
spec:
  data:
    train: {format: csv, path: clicks.csv.gz, header: true, separator: ", ", quoting: false, missing: ["?", ""], split: {modulo: 10, equals: 9, take: eval}}
    fields:
      user: {column: 0, type: int, transforms: [{hash: {buckets: 1000}}]}
      words: {column: [w1, w2, "3"], type: string, default: "none", transforms: [{vocabulary: {min_count: 2}}, {offset: 5}]}
      counts: {column: [c1, c2, c3], type: float, transforms: [{offset: -1}, log1p, {scale: 0.5}]}
      age: {column: age, type: int, transforms: [{bucketize: [18, 25.5, 60]}]}
      label: {column: label, type: string, transforms: [{map: {"<=50K": 0, ">50K": 1}}]}
    batch_size: 8
  model:
    inputs: {user: {shape: []}, words: {shape: [3]}, counts: {shape: [3]}, age: {shape: []}}
    tables:
      emb/all: {dimension: 4, initializer: {type: truncated_normal, stddev: 0.01}, embeddings_regularizer: {l2: 0.02}, admit_after: 3, default_row: 0.5, ttl_steps: 1000, bytes_max: 1MiB, evict: lru}
      emb/words: {dimension: 4}
    layers:
      - {name: u, type: embedding, table: emb/all, input: user}
      - {name: a, type: embedding, table: emb/all, input: [age, user], combiner: mean}
      - {name: w, type: embedding, table: emb/words, input: words, combiner: sqrtn, weights: counts}
      - {name: s, type: add, input: [u, a]}
      - {name: fm, type: factorization_machine, input: [u, a, w]}
      - {name: d, type: dot, input: [u, w], normalize: true}
      - {name: all, type: concatenate, input: [s, fm, d]}
      - {name: out, type: dense, units: 1, kernel_regularizer: {l2: 0.1}, bias_regularizer: {l2: 0.01}}
    losses: {type: binary_crossentropy, from_logits: true, labels: label}
    metrics: [auc, binary_accuracy]
  optimizers:
    - {match: "emb/*", type: rowwise_adagrad, learning_rate: 0.1, initial_accumulator_value: 0, epsilon: 1e-8}
    - {match: "out/k*", type: ftrl, learning_rate_power: -0.25, l1_regularization_strength: 0.1, l2_regularization_strength: 0.2, beta: 1}
    - {type: adamw, weight_decay: 0.01}
  strategy: {mode: async, table_slots: 64}
)";

std::string Messages(const ParsedJob& parsed) {
  return absl::StrJoin(parsed.mistakes, "\n", [](std::string* out, const Mistake& mistake) {
    absl::StrAppend(out, mistake.ToString());
  });
}
JobSpec Parse(absl::string_view yaml, ParseOptions options = {}) {
  if (options.file_name.empty()) options.file_name = "job.yaml";
  const ParsedJob parsed = ParseJob(yaml, options);
  INFO(Messages(parsed));
  REQUIRE(parsed.spec.has_value());
  return *parsed.spec;
}
// Returns all mistakes that the parser reports for a text.
std::string Refusal(absl::string_view yaml, std::vector<Override> overrides = {}) {
  ParseOptions options;
  options.file_name = "job.yaml";
  options.overrides = std::move(overrides);
  const ParsedJob parsed = ParseJob(yaml, options);
  CHECK_FALSE(parsed.spec.has_value());
  return Messages(parsed);
}
std::string RefusalWith(absl::string_view from, absl::string_view to) {
  INFO(from);
  REQUIRE(std::string(kCnn).find(std::string(from)) != std::string::npos);
  return Refusal(absl::StrReplaceAll(kCnn, {{from, to}}));
}
void ForgetPlaces(JobSpec* spec) {
  for (auto* source : {&spec->data.train, &spec->data.eval})
    if (*source) (*source)->where = {};
  for (InputSpec& input : spec->model.inputs) input.where = {};
  for (LayerSpec& layer : spec->model.layers) layer.where = {};
  for (TableSpec& table : spec->model.tables) table.where = {};
  for (LossSpec& loss : spec->model.losses) loss.where = {};
  spec->optimizers_where = {};
}

TEST_CASE("the job of the design page is parsed into typed values") {
  ParseOptions options;
  options.base_folder = "/home/user/my jobs";
  const JobSpec spec = Parse(kCnn, options);
  CHECK(spec.name == "fashion-cnn");
  CHECK(spec.type == "training");
  CHECK(spec.data.train->images == "/home/user/data/fashion-mnist/train-images-idx3-ubyte.gz");
  CHECK(spec.data.eval->labels == "/there/t10k-labels-idx1-ubyte.gz");
  REQUIRE(spec.data.fields.size() == 1);
  CHECK(spec.data.fields[0].name == "image");
  CHECK(spec.data.fields[0].transforms == std::vector<Transform>{{"scale", 0.00392156862}});
  CHECK(spec.data.batch_size == 128);
  CHECK(spec.data.shuffle);
  CHECK(spec.data.shuffle_seed == 7);
  REQUIRE(spec.model.inputs.size() == 1);
  CHECK(spec.model.inputs[0].name == "image");
  CHECK(spec.model.inputs[0].shape == std::vector<std::uint64_t>{28, 28, 1});
  REQUIRE(spec.model.layers.size() == 4);
  CHECK(spec.model.layers[0].kernel_h == 3);
  CHECK(spec.model.layers[0].kernel_w == 3);
  CHECK(spec.model.layers[0].stride_h == 1);
  CHECK(spec.model.layers[0].activation == "relu");
  CHECK(spec.model.layers[0].inputs == std::vector<std::string>{"image"});
  CHECK(spec.model.layers[0].where.ToString() == "job.yaml:15:9");
  CHECK(spec.model.layers[1].stride_h == 2);
  CHECK(spec.model.layers[1].inputs == std::vector<std::string>{"conv1"});
  CHECK(spec.model.layers[3].units == 10);
  CHECK(spec.model.losses[0].from_logits);
  CHECK(spec.model.metrics == std::vector<std::string>{"accuracy"});
  CHECK(spec.optimizer.type == "adam");
  CHECK(spec.strategy.partitioner.min_shard_bytes == 65536);
  CHECK(spec.training.evaluate_every_epochs == 1);
}

TEST_CASE(
    "a job with a csv file has typed fields, transforms, a split, tables and several optimizers") {
  ParseOptions options;
  options.base_folder = "/jobs";
  const JobSpec spec = Parse(kCsv, options);
  const SourceSpec& train = *spec.data.train;
  CHECK(train.format == "csv");
  CHECK(train.path == "/jobs/clicks.csv.gz");
  CHECK(train.separator == ", ");
  CHECK_FALSE(train.quoting);
  CHECK(train.missing == std::vector<std::string>{"?", ""});
  CHECK(train.split == SplitSpec{10, 9, false});
  REQUIRE(spec.data.eval);  // The key `split` makes it.
  CHECK(spec.data.eval->path == train.path);
  CHECK(spec.data.eval->split == SplitSpec{10, 9, true});
  REQUIRE(spec.data.fields.size() == 5);
  CHECK(spec.data.fields[0].columns == std::vector<std::string>{"0"});
  CHECK(spec.data.fields[0].transforms[0].buckets == 1000);
  CHECK_FALSE(spec.data.fields[0].list);
  CHECK(spec.data.fields[1].list);
  CHECK(spec.data.fields[1].default_text == "none");
  CHECK(spec.data.fields[1].transforms[0].min_count == 2);
  CHECK(spec.data.fields[2].transforms[1].type == "log1p");
  CHECK(spec.data.fields[3].transforms[0].bounds == std::vector<double>{18, 25.5, 60});
  CHECK(spec.data.fields[4].transforms[0].entries ==
        std::vector<std::pair<std::string, double>>{{"<=50K", 0}, {">50K", 1}});
  CHECK(spec.model.inputs[0].shape.empty());
  const TableSpec& table = spec.model.tables[0];
  CHECK(table.name == "emb/all");
  CHECK(table.dimension == 4);
  CHECK(table.initializer.stddev == 0.01);
  CHECK(table.l2 == 0.02);
  CHECK(table.admit_after == 3);
  CHECK(table.default_row == 0.5);
  CHECK(table.ttl_steps == 1000);
  CHECK(table.bytes_max == 1u << 20);
  CHECK(table.evict == "lru");
  CHECK(spec.model.layers[2].weights == "counts");
  CHECK(spec.model.layers[2].combiner == "sqrtn");
  CHECK(spec.model.layers[5].normalize);
  CHECK(spec.model.layers[7].kernel_l2 == 0.1);
  CHECK(spec.model.layers[7].bias_l2 == 0.01);
  CHECK(spec.strategy.table_slots == 64);
  CHECK(Parse(kCnn).strategy.table_slots == 128);
  // The first pattern that matches a variable is used. Patterns may have `*` and `?`.
  CHECK(OptimizerFor(spec, "emb/words")->type == "rowwise_adagrad");
  CHECK(OptimizerFor(spec, "emb/words")->initial_accumulator_value == 0);
  CHECK(OptimizerFor(spec, "out/kernel")->type == "ftrl");
  CHECK(OptimizerFor(spec, "out/kernel")->learning_rate_power == -0.25);
  CHECK(OptimizerFor(spec, "out/bias")->type == "adamw");
  CHECK(OptimizerFor(spec, "out/bias")->weight_decay == 0.01);
  JobSpec last = spec;
  last.optimizers.pop_back();
  CHECK(OptimizerFor(last, "out/bias") == nullptr);
  CHECK(OptimizerFor(Parse(kCnn), "x")->type == "adam");
  CHECK(GlobMatches("*", ""));
  CHECK(GlobMatches("a*b?c", "aXbXbYc"));
  CHECK_FALSE(GlobMatches("a*b?c", "aXbXbc"));
  CHECK_FALSE(GlobMatches("emb/", "emb/x"));
}

TEST_CASE("the defaults of the optimizers are those of Keras") {
  const auto with = [](const std::string& type) {
    return Parse(absl::StrReplaceAll(
                     kCnn, {{"{type: adam, learning_rate: 0.001}", "{type: " + type + "}"}}))
        .optimizer;
  };
  for (const char* type : {"adamw", "adagrad", "rmsprop", "ftrl"}) {
    CHECK(with(type).learning_rate == 0.001);
    CHECK(with(type).epsilon == 1e-7);
    CHECK(with(type).initial_accumulator_value == 0.1);
  }
  CHECK(with("adamw").weight_decay == 0.004);
  CHECK(with("rmsprop").rho == 0.9);
  CHECK(with("rmsprop").momentum == 0);
  CHECK(with("ftrl").learning_rate_power == -0.5);
  CHECK(with("ftrl").l1_regularization_strength == 0);
}

// Returns the refusal of the csv job with `from` replaced by `to`.
std::string RefusalOfCsv(absl::string_view from, absl::string_view to) {
  INFO(from);
  REQUIRE(std::string(kCsv).find(std::string(from)) != std::string::npos);
  return Refusal(absl::StrReplaceAll(kCsv, {{from, to}}));
}

TEST_CASE("mistakes about csv data are reported at their lines") {
  CHECK_THAT(
      RefusalOfCsv("format: csv", "format: cvs"),
      Catch::Contains(
          "job.yaml:6:21: `format` of a data source: expected one of idx, csv, jsonl, synthetic, "
          "got `cvs`; did you mean `csv`?"));
  CHECK_THAT(RefusalOfCsv("path: clicks.csv.gz, ", ""),
             Catch::Contains("missing key `path` in a csv source"));
  CHECK_THAT(RefusalOfCsv("separator: \", \"", "separator: \"\""),
             Catch::Contains("`separator`: expected 1 to 8 characters"));
  CHECK_THAT(RefusalOfCsv("equals: 9, take", "equals: 10, take"),
             Catch::Contains("`split`: `equals` must be below `modulo`: modulo=10 equals=10"));
  CHECK_THAT(RefusalOfCsv("take: eval", "take: train"),
             Catch::Contains("not built yet: split.take `train`"));
  CHECK_THAT(RefusalOfCsv("    fields:", "    eval: {format: csv, path: x}\n    fields:"),
             Catch::Contains("data.train has a `split`, which makes data.eval"));
  CHECK_THAT(
      RefusalOfCsv(", split: {modulo: 10, equals: 9, take: eval}}",
                   "}\n    eval: {format: synthetic, examples: 3}"),
      Catch::Contains("data.train and data.eval have different formats: train=csv eval=synthetic"));
  CHECK_THAT(RefusalOfCsv("header: true", "header: false"),
             Catch::Contains("column `w1` is a name, but `header: false` in data.train means that "
                             "the file has no names"));
  CHECK_THAT(RefusalOfCsv("type: int, transforms: [{hash", "type: number, transforms: [{hash"),
             Catch::Contains("`type`: expected one of int, float, string, got `number`"));
  CHECK_THAT(RefusalOfCsv("column: age, ", ""),
             Catch::Contains("missing key `column` in a field of a csv source"));
  CHECK_THAT(RefusalOfCsv("[{map: {\"<=50K\": 0, \">50K\": 1}}]", "[]"),
             Catch::Contains(
                 "a field of type string needs a transform that converts the text to a number"));
  CHECK_THAT(RefusalOfCsv("{bucketize: [18, 25.5, 60]}", "{bucketize: [18, 17]}"),
             Catch::Contains("expected rising numbers, got 17 after 18"));
  CHECK_THAT(RefusalOfCsv("type: string, transforms: [{map", "type: float, transforms: [{map"),
             Catch::Contains(
                 "transform `map` takes a text or an integer, but its input is a real number"));
  CHECK_THAT(
      RefusalOfCsv("{hash: {buckets: 1000}}", "{hash: {buckets: 0}}"),
      Catch::Contains("`buckets`: expected an integer from 1 to 4611686018427387904, got `0`"));
  CHECK_THAT(RefusalOfCsv("{hash: {buckets: 1000}}", "{hahs: {buckets: 1000}}"),
             Catch::Contains("unknown transform `hahs`; did you mean `hash`?"));
  CHECK_THAT(RefusalOfCsv("{vocabulary: {min_count: 2}}, ", "{vocabulary: {}}, {vocabulary: {}}, "),
             Catch::Contains("a field has at most one transform `vocabulary`"));
  // The result of a field's type and transforms must suit the layer that reads the field.
  CHECK_THAT(
      RefusalOfCsv("type: int, transforms: [{hash: {buckets: 1000}}]",
                   "type: int, transforms: [{scale: 2}]"),
      Catch::Contains("an embedding reads ids, but the field `user` has real numbers (float32): "
                      "expected integers"));
  CHECK_THAT(RefusalOfCsv("weights: counts", "weights: words"),
             Catch::Contains("weights must be real numbers, but the field `words` has integers"));
  CHECK_THAT(RefusalOfCsv("input: [u, w], normalize", "input: [u, user], normalize"),
             Catch::Contains("a layer of type dot reads real numbers, but the field `user` has"));
  // A default is parsed like a value in the data file.
  CHECK_THAT(RefusalOfCsv("c3], type: float", "c3], default: many, type: float"),
             Catch::Contains("`default`: a field of type float expects a number, got `many`"));
  CHECK_THAT(
      RefusalOfCsv("type: int, transforms: [{hash", "type: int, default: 1.5, transforms: [{hash"),
      Catch::Contains("`default`: a field of type int expects an integer, got `1.5`"));
  CHECK_THAT(RefusalOfCsv("type: string, transforms: [{map",
                          "type: string, default: unknown, transforms: [{map"),
             Catch::Contains("`default`: expected one of the texts of `map`, got `unknown`"));
  // The default is looked up by its integer value, as in the reader, and not by its spelling.
  CHECK(Parse(absl::StrReplaceAll(
                  kCsv, {{"type: int, transforms: [{hash",
                          "type: int, default: \"07\", transforms: [{map: {7: 1, 8: 2}}, {hash"}}))
            .data.fields.size() == Parse(kCsv).data.fields.size());
  CHECK_THAT(RefusalOfCsv("type: int, transforms: [{hash",
                          "type: int, default: 9, transforms: [{map: {7: 1, 8: 2}}, {hash"),
             Catch::Contains("`default`: expected one of the texts of `map`, got `9`"));
}

TEST_CASE("mistakes about tables, the layers that read them, and metrics are reported") {
  CHECK_THAT(
      RefusalOfCsv("inputs: {user:", "inputs: {usr:"),
      Catch::Contains(
          "model input `usr` is not a field of the data that a model can read: expected user, "
          "words, counts, age, label; did you mean `user`?"));
  CHECK_THAT(RefusalOfCsv("labels: label", "labels: lable"),
             Catch::Contains("`labels`: no field `lable` that can be a label"));
  CHECK_THAT(RefusalOfCsv("table: emb/words", "table: emb/word"),
             Catch::Contains("no table `emb/word` in model.tables; did you mean `emb/words`?"));
  CHECK_THAT(RefusalOfCsv("table: emb/words", "table: emb/all"),
             Catch::Contains("table `emb/words`: no embedding layer reads it"));
  CHECK_THAT(RefusalOfCsv("weights: counts", "weights: count"),
             Catch::Contains("no model input `count`; did you mean `counts`?"));
  CHECK_THAT(RefusalOfCsv("combiner: sqrtn, ", ""), Catch::Contains("`weights` need a combiner"));
  CHECK_THAT(RefusalOfCsv("combiner: sqrtn", "combiner: max"),
             Catch::Contains("not built yet: embedding.combiner `max`"));
  CHECK_THAT(
      RefusalOfCsv("emb/words, input: words", "emb/words, input: u"),
      Catch::Contains("an embedding reads ids, which only model inputs have: `u` is a layer"));
  CHECK_THAT(RefusalOfCsv("input: [u, w], normalize", "input: [u, w, a], normalize"),
             Catch::Contains("a dot layer reads two inputs, got 3"));
  CHECK_THAT(RefusalOfCsv("input: [u, a]}", "input: [u]}"),
             Catch::Contains("an add layer reads at least two inputs, got 1"));
  CHECK_THAT(RefusalOfCsv("admit_after: 3, ", ""),
             Catch::Contains("`default_row` needs an `admit_after` above 1"));
  CHECK_THAT(RefusalOfCsv("dimension: 4}", "dimension: 0}"),
             Catch::Contains("`dimension`: expected an integer from 1 to 4096"));
  CHECK_THAT(RefusalOfCsv("dimension: 4}", "dimension: 4096}"),
             Catch::Contains("`dimension`: a row and its optimizer state have too many numbers: "
                             "optimizer=rowwise_adagrad got=4097 limit=4096"));
  // The table has 64 slots. The share of each slot in `bytes_max` is less than one row, by the
  // storage's own count.
  CHECK_THAT(RefusalOfCsv("dimension: 4}", "dimension: 4, bytes_max: 2KiB}"),
             Catch::Contains("`bytes_max`: the share of one slot must hold at least one row: "
                             "strategy.table_slots=64 share_bytes=32 row_bytes=44"));
  CHECK(Parse(absl::StrReplaceAll(kCsv, {{"dimension: 4}", "dimension: 4, bytes_max: 2816}"}}))
            .model.tables[1]
            .bytes_max == 2816);
  CHECK_THAT(RefusalOfCsv("emb/words: {", "emb//words: {"),
             Catch::Contains("name of a table: expected names"));
  CHECK_THAT(RefusalOfCsv("{l2: 0.1}", "{l1: 0.1}"),
             Catch::Contains("not built yet: key `l1` in a regularizer"));
  CHECK_THAT(RefusalOfCsv("metrics: [auc, binary_accuracy]", "metrics: [rmse]"),
             Catch::Contains("did you mean `root_mean_squared_error`?"));
  CHECK_THAT(
      RefusalOfCsv("metrics: [auc, binary_accuracy]", "metrics: [root_mean_squared_error]"),
      Catch::Contains("the metric root_mean_squared_error needs the loss mean_squared_error, but "
                      "the loss is binary_crossentropy"));
  CHECK_THAT(RefusalOfCsv("metrics: [auc, binary_accuracy]", "metrics: [auc, auc]"),
             Catch::Contains("`metrics`: duplicate metric auc"));
}

TEST_CASE("mistakes about optimizers, slots and transforms are reported") {
  CHECK_THAT(
      RefusalOfCsv("  optimizers:\n", "  optimizer: {type: sgd}\n  optimizers:\n"),
      Catch::Contains("`optimizers` and `optimizer` cannot both be set: remove one of the two"));
  CHECK_THAT(RefusalOfCsv("{match: \"emb/*\", type: rowwise_adagrad", "{type: rowwise_adagrad"),
             Catch::Contains("an entry without `match` fits all names"));
  CHECK_THAT(
      Refusal(absl::StrReplaceAll(kCsv, {{"{match: \"emb/*\"", "{match: \"emp/*\""},
                                         {"    - {type: adamw, weight_decay: 0.01}\n", ""}})),
      Catch::Contains("no entry of `optimizers` fits the table `emb/all`"));
  CHECK_THAT(RefusalOfCsv("table_slots: 64", "table_slots: 65537"),
             Catch::Contains("`table_slots`: expected an integer from 1 to 65536"));
  CHECK_THAT(RefusalWith("optimizer: {type: adam, learning_rate: 0.001}\n", ""),
             Catch::Contains("missing key `optimizer` in spec"));
  CHECK_THAT(RefusalWith("type: adam, learning_rate: 0.001", "type: rowwise_adagrad"),
             Catch::Contains("rowwise_adagrad is for embedding tables"));
  CHECK_THAT(RefusalWith("{scale: 0.00392156862}", "{hash: {buckets: 3}}"),
             Catch::Contains("transform `hash` is only for fields of format csv or jsonl"));
}

TEST_CASE(
    "the first entry that matches a variable's name gives its wire type, and the default is "
    "float32") {
  const auto with = [](const std::string& value) {
    return absl::StrReplaceAll(
        kCnn, {{"training: {", absl::StrCat("training: {wire_dtype: ", value, ", ")}});
  };
  CHECK(Parse(kCnn).training.wire.empty());
  CHECK(WireTypeFor(Parse(kCnn), "logits/kernel") == "float32");
  CHECK(WireTypeFor(Parse(with("fp16")), "logits/kernel") == "fp16");
  CHECK(Parse(with("float32")).training.wire.empty());
  CHECK(Parse(with("[{dtype: float32}]")).training.wire.empty());
  const JobSpec some =
      Parse(with("[{match: \"*/bias\", dtype: float32}, {match: \"conv1/*\", dtype: fp16}, {match: "
                 "\"logits/*\", dtype: bf16}]"));
  CHECK(WireTypeFor(some, "conv1/bias") == "float32");
  CHECK(WireTypeFor(some, "conv1/kernel") == "fp16");
  CHECK(WireTypeFor(some, "logits/kernel") == "bf16");
  CHECK(WireTypeFor(some, "emb") == "float32");
  for (const char* value : {"float32", "bf16", "[{match: \"a*\", dtype: fp16}]",
                            "[{match: a, dtype: bf16}, {dtype: fp16}]"}) {
    JobSpec spec = Parse(with(value)), again = Parse(EmitYaml(spec));
    ForgetPlaces(&spec);
    ForgetPlaces(&again);
    CHECK(spec.training == again.training);
  }
  const auto says = [](const std::string& words) { return Catch::Contains(words); };
  CHECK_THAT(Refusal(with("bfloat16")), says("`wire_dtype`: expected one of float32, bf16, fp16, "
                                             "got `bfloat16`; did you mean `bf16`?"));
  CHECK_THAT(
      Refusal(with("[{match: x, dtype: half}]")),
      says("`dtype`: expected one of float32, bf16, fp16, got `half`; did you mean `fp16`?"));
  CHECK_THAT(Refusal(with("[]")), says("`wire_dtype`: expected at least one entry"));
  CHECK_THAT(Refusal(with("[{match: x}]")),
             says("missing key `dtype` in an entry of `wire_dtype`"));
  CHECK_THAT(Refusal(with("[{match: \"\", dtype: bf16}]")), says("`match`: expected a pattern"));
  CHECK_THAT(Refusal(with("[{dtype: bf16}, {match: x, dtype: fp16}]")),
             says("an entry without `match` fits all names"));
  CHECK_THAT(Refusal(with("{match: x, dtype: fp16}")), says("`wire_dtype`: expected"));
}

TEST_CASE(
    "a precision is one of Keras' policies, is float32 by default, and needs a training job") {
  const auto with = [](const std::string& value) {
    return absl::StrReplaceAll(
        kCnn, {{"training: {", absl::StrCat("training: {precision: ", value, ", ")}});
  };
  CHECK(Parse(kCnn).training.precision == "float32");
  for (const char* value : {"float32", "tf32", "mixed_bfloat16", "mixed_float16"}) {
    CHECK(Parse(with(value)).training.precision == value);
    CHECK(Parse(EmitYaml(Parse(with(value)))).training.precision == value);
  }
  CHECK_THAT(Refusal(with("mixed_float61")),
             Catch::Contains("`precision`: expected one of float32, tf32, mixed_bfloat16, "
                             "mixed_float16, got `mixed_float61`; "
                             "did you mean `mixed_float16`?"));
  // A counting job computes nothing, so it does not have the key `precision`. A functions job does
  // not have the key, either.
  CHECK_THAT(Refusal(absl::StrReplaceAll(
                 kCounting, {{"training: {", "training: {precision: mixed_bfloat16, "}})),
             Catch::Contains("unknown key `precision`"));
}

TEST_CASE("the dtype of a layer is float32, or follows from the job's precision") {
  const auto with = [](const std::string& value) {
    return absl::StrReplaceAll(kCnn, {{"name: logits,", "name: logits, dtype: " + value + ","}});
  };
  const JobSpec spec = Parse(with("float32"));
  CHECK(spec.model.layers.back().dtype == "float32");
  CHECK(spec.model.layers.front().dtype.empty());
  CHECK(Parse(EmitYaml(spec)).model.layers.back().dtype == "float32");
  CHECK(Parse(EmitYaml(Parse(kCnn))).model.layers.back().dtype.empty());
  CHECK_THAT(Refusal(with("mixed_bfloat16")),
             Catch::Contains("not built yet: dtype `mixed_bfloat16`"));
  CHECK_THAT(
      Refusal(with("float23")),
      Catch::Contains("`dtype`: expected one of float32, got `float23`; did you mean `float32`?"));
  // A flatten layer computes nothing, and shares the memory of its input.
  CHECK_THAT(
      Refusal(absl::StrReplaceAll(kCnn, {{"type: flatten", "type: flatten, dtype: float32"}})),
      Catch::Contains("not built yet: key `dtype` in a flatten layer"));
}

TEST_CASE("the fields of a synthetic source are random") {
  const std::string text = ReadSource("configs/examples/deepfm.yaml");
  const JobSpec spec = Parse(text);
  CHECK(spec.data.train->examples == 1000000);
  CHECK(spec.data.eval->skip == 1000000);
  CHECK(spec.data.fields[0].ids == 100000);
  CHECK(spec.data.fields[0].size == 26);
  CHECK(spec.data.fields[0].distribution == "zipf");
  CHECK(spec.data.fields[1].type == "label");
  const auto with = [&](absl::string_view from, absl::string_view to) {
    REQUIRE(text.find(std::string(from)) != std::string::npos);
    return Refusal(absl::StrReplaceAll(text, {{from, to}}));
  };
  CHECK_THAT(with("ids: 100000, ", ""), Catch::Contains("a field of type ids needs `ids`"));
  CHECK_THAT(with("ids: 100000, distribution: zipf", "ids: 100000000, distribution: zipf"),
             Catch::Contains("`ids`: zipf allows at most 16777216 ids, got 100000000"));
  CHECK_THAT(with("distribution: zipf", "distribution: uniform"),
             Catch::Contains("`exponent` applies only to the distribution zipf"));
  CHECK_THAT(with("{type: label}", "{type: label, size: 2}"),
             Catch::Contains("a label has no `size`"));
  CHECK_THAT(with("{type: label}", "{type: label, transforms: []}"),
             Catch::Contains("not built yet: key `transforms` in a field of a synthetic source"));
  CHECK_THAT(with("examples: 1000000, ", ""),
             Catch::Contains("missing key `examples` in a synthetic source"));
  CHECK(spec.data.fields[1].classes == 2);
  CHECK_THAT(with("{type: label}", "{type: label, classes: 1}"),
             Catch::Contains("`classes`: expected an integer from 2 to 16777216, got `1`"));
  CHECK_THAT(with("size: 26", "shape: [26]"),
             Catch::Contains("`shape` applies only to fields of type float: type=ids"));
  CHECK_THAT(with("size: 26", "size: 26, classes: 3"),
             Catch::Contains("`classes` applies only to fields of type label: type=ids"));
  CHECK_THAT(with("click: {type: label}",
                  "click: {type: label}\n      x: {type: float, size: 4, shape: [2, 2]}"),
             Catch::Contains("`shape` and `size` cannot both be set"));
  CHECK_THAT(with("click: {type: label}",
                  "click: {type: label}\n      x: {type: float, size: 4, shape: []}"),
             Catch::Contains("`shape` and `size` cannot both be set"));
  CHECK_THAT(with("click: {type: label}",
                  "click: {type: label}\n      x: {type: float, shape: [16777216, 17]}"),
             Catch::Contains("`shape`: too many elements: limit=268435456"));
  const JobSpec images = Parse(ReadSource("deploy/bundle/jobs/cnn.yaml"));
  CHECK(images.data.fields[0].shape == std::vector<std::uint64_t>{28, 28, 1});
  CHECK(images.data.fields[1].classes == 10);
  CHECK(EmitYaml(Parse(EmitYaml(images))) == EmitYaml(images));
}

TEST_CASE("normalization layers have the keys and defaults of Keras, and limits") {
  const auto with = [](absl::string_view layer) {
    return absl::StrReplaceAll(kCnn,
                               {{"{name: flat,  type: flatten}",
                                 absl::StrCat("{name: flat, type: flatten}\n      - ", layer)}});
  };
  const auto find = [](const JobSpec& spec) {
    return *std::find_if(spec.model.layers.begin(), spec.model.layers.end(),
                         [](const LayerSpec& l) { return l.name == "n"; });
  };
  const LayerSpec batch = find(Parse(with("{name: n, type: batch_normalization}")));
  CHECK((batch.momentum == 0.99 && batch.epsilon == 1e-3 && batch.center && batch.scale));
  CHECK((batch.gamma_initializer.type == "ones" && batch.beta_initializer.type == "zeros"));
  CHECK((batch.moving_mean_initializer.type == "zeros" &&
         batch.moving_variance_initializer.type == "ones"));
  const LayerSpec layer =
      find(Parse(with("{name: n, type: layer_normalization, epsilon: 0.5, center: false, "
                      "gamma_regularizer: {l2: 0.125}}")));
  CHECK((layer.epsilon == 0.5 && !layer.center && layer.scale && layer.gamma_l2 == 0.125));
  CHECK_THAT(Refusal(with("{name: n, type: batch_normalization, momentum: 1}")),
             Catch::Contains("`momentum`: expected a number from 0 to 1 (excluded)"));
  CHECK_THAT(Refusal(with("{name: n, type: layer_normalization, epsilon: 0}")),
             Catch::Contains("`epsilon`: expected a number from 0 (excluded)"));
  CHECK_THAT(Refusal(with("{name: n, type: layer_normalization, momentum: 0.5}")),
             Catch::Contains("unknown key `momentum`"));
  CHECK_THAT(Refusal(with("{name: n, type: batch_normalization, axis: 1}")),
             Catch::Contains("not built yet: key `axis`"));
}

TEST_CASE("a counting job has keys for counting and no model") {
  const JobSpec spec = Parse(kCounting);
  CHECK(spec.type == "counting");
  CHECK(spec.counting.examples == 600);
  CHECK(spec.counting.step_ms == 2);
  CHECK(spec.data.batch_size == 10);
  CHECK(spec.optimizer.type == "counting");
  CHECK(Refusal(std::string(kCounting) + "  model: {}\n") ==
        "job.yaml:9:3: unknown key `model` in spec of a counting job");
  REQUIRE(CountingOf(spec) == &spec.counting);
  CHECK(CountingOf(Parse(kCnn)) == nullptr);
}

TEST_CASE("each type of jobs states which files, clients and daemons it needs") {
  const auto type = [](const char* name) -> const JobType& {
    JobSpec spec;
    spec.type = name;
    return TypeOf(spec);
  };
  for (const std::string name : {"training", "functions", "counting"}) {
    const JobType& found = type(name.c_str());
    CHECK(found.name == name);
    CHECK(found.trains_model == (name == "training"));
    CHECK(found.scheduled_by_client == (name == "functions"));
    CHECK(found.for_tests_only == (name == "counting"));
  }
  CHECK(JobTypes().size() == 3);
  CHECK(&TypeOf(JobSpec{}) == &type("training"));
}

TEST_CASE("names are joined by commas, and the last one by `or`") {
  CHECK(JoinWithOr({}).empty());
  CHECK(JoinWithOr({"a"}) == "a");
  CHECK(JoinWithOr({"a", "b"}) == "a or b");
  CHECK(JoinWithOr({"a", "b", "c"}) == "a, b or c");
}

TEST_CASE("the effective YAML reads back as the same job") {
  std::vector<std::string> texts = {kCnn, kCounting, ReferenceYaml()};
  for (const char* name :
       {"configs/quickstart.yaml", "configs/examples/fashion-cnn.yaml",
        "configs/examples/mlp-12k.yaml", "configs/examples/cnn-12k.yaml",
        "configs/examples/cnn-peer.yaml", "configs/examples/counting.yaml",
        "configs/examples/beside.yaml", "configs/examples/matrix_factorization.yaml",
        "configs/examples/deepfm.yaml", "configs/examples/resnet-12k.yaml",
        "configs/examples/resnet50.yaml"})
    texts.push_back(ReadSource(name));
  // In these jobs every setting has another value than its default, and some texts need quotes.
  texts.push_back(kCsv);
  texts.push_back(absl::StrReplaceAll(
      kCnn, {{"/there/t10k-labels", "/a b/$${HOME}: \\\"x\\\" # \\u00e9"},
             {"evaluate_every: 1 epoch", "evaluate_every: end, seed: 18446744073709551615"},
             {"shuffle: {seed: 7}", "shuffle: off"},
             {"{type: adam, learning_rate: 0.001}",
              "{type: sgd, learning_rate: 1e-7, momentum: 0.9, nesterov: true}"},
             {"{type: min_size, min_shard_bytes: 64KiB}",
              "{type: max_size, max_shard_bytes: 65537, max_shards: 3}"},
             {"kernel_size: 3",
              "kernel_size: [3, 5], strides: [2, 1], padding: same, use_bias: false, "
              "kernel_initializer: he_normal, bias_initializer: {type: "
              "constant, value: -0.25}"},
             {"{name: flat,  type: flatten}",
              "{name: drop, type: dropout, rate: 0.25, seed: 3}\n      - {name: flat, type: "
              "flatten}\n      - {name: a, type: activation, "
              "activation: tanh}\n      - {name: b, type: batch_normalization, momentum: 0.5, "
              "epsilon: 0.01, center: false, gamma_initializer: zeros, "
              "beta_initializer: ones, moving_mean_initializer: ones, moving_variance_initializer: "
              "{type: constant, value: 2}, gamma_regularizer: {l2: "
              "0.5}}\n      - {name: l, type: layer_normalization, epsilon: 0.5, scale: false, "
              "beta_regularizer: {l2: 0.25}}"},
             {"metrics: [accuracy]", "metrics: []"},
             {"pipeline: 0", "pipeline: 1"}}));
  for (const std::string& text : texts) {
    ParseOptions options;
    options.base_folder = "/jobs";
    JobSpec first = Parse(text, options);
    const std::string emitted = EmitYaml(first);
    INFO(emitted);
    JobSpec second = Parse(emitted);
    ForgetPlaces(&first);
    ForgetPlaces(&second);
    CHECK(first == second);
    CHECK(EmitYaml(second) == emitted);
    CHECK(EmitGiven(second) == EmitGiven(first));
  }
}

TEST_CASE("default values are not part of the text that identifies a model") {
  const auto given = [](const std::string& model) {
    return EmitGiven(
        Parse("apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: a}\nspec:\n  "
              "data: {batch_size: 128, train: {format: "
              "synthetic, examples: 9}, fields: {x: {type: float, size: 2}, y: {type: label}, z: "
              "{type: ids, ids: 9}}}\n" +
              model));
  };
  const std::string least =
      "  model: {inputs: {x: {shape: [2]}}, layers: [{type: dense, name: d, units: 2}], losses: "
      "[{type: sparse_categorical_crossentropy, labels: "
      "y}]}\n"
      "  optimizer: {type: adam}\n";
  const std::string want = given(least);
  INFO(want);
  // The settings include `classes` of a label and `distribution` of ids. If the type of a field has
  // no such setting, the field keeps the default.
  for (const char* word : {"batch_size", "activation", "use_bias", "beta_1", "seed", "epochs",
                           "classes", "distribution"})
    CHECK_THAT(want, !Catch::Contains(word));
  for (const char* word : {"{type: dense, name: d, units: 2", "type: adam", "size: 2",
                           "{type: label}", "{type: ids, ids: 9}"})
    CHECK_THAT(want, Catch::Contains(word));
  std::string spelled = least;
  spelled.replace(spelled.find("units: 2"), 8, "units: 2, activation: linear, use_bias: true");
  spelled.replace(spelled.find("type: adam"), 10, "type: adam, beta_1: 0.9, learning_rate: 0.001");
  CHECK(given(spelled + "  strategy: {mode: async}\n") == want);
  spelled.replace(spelled.find("use_bias: true"), 14, "use_bias: false");
  CHECK(given(spelled) != want);
}

TEST_CASE(
    "twelve mistakes in one file are reported together, each with line, column and suggestion") {
  ParseOptions options;
  options.file_name = "twelve.yaml";
  const ParsedJob parsed =
      ParseJob(ReadSource("tests/unit/common/config/testdata/twelve.yaml"), options);
  CHECK_FALSE(parsed.spec.has_value());
  CHECK(Messages(parsed) + "\n" == ReadSource("tests/unit/common/config/testdata/twelve.txt"));
  CHECK(parsed.mistakes.size() >= 12);
}

TEST_CASE("keys and modes that are not built yet are refused by name") {
  CHECK(RefusalWith("mode: async", "mode: bounded") ==
        "job.yaml:22:20: not built yet: strategy.mode `bounded`");
  CHECK(RefusalWith("mode: async", "mode: allreduce") ==
        "job.yaml:22:20: not built yet: strategy.mode `allreduce`");
  CHECK(RefusalWith("mode: async", "mode: local") ==
        "job.yaml:22:20: not built yet: strategy.mode `local`");
  CHECK(RefusalWith("type: flatten", "type: lstm") ==
        "job.yaml:17:29: not built yet: a layer of type `lstm`");
  CHECK(RefusalWith("train: {format: idx", "train: {format: tsv") ==
        "job.yaml:6:21: not built yet: a data source of format `tsv`");
  CHECK(RefusalWith("kind: TrainingJob", "kind: PredictionJob") ==
        "job.yaml:2:7: not built yet: kind `PredictionJob`");
  CHECK(RefusalWith("type: sparse_categorical_crossentropy", "type: huber") ==
        "job.yaml:19:21: not built yet: a loss of type `huber`");
  CHECK(RefusalWith("optimizer: {type: adam, learning_rate: 0.001}",
                    "optimizer: {type: sgd}\n  predict: []\n  export: {}") ==
        "job.yaml:22:3: not built yet: key `predict` in spec\njob.yaml:23:3: not built yet: key "
        "`export` in spec");
  CHECK(RefusalWith("learning_rate: 0.001", "learning_rate: {type: cosine}") ==
        "job.yaml:21:42: not built yet: learning-rate schedules; expected a number");
  CHECK(RefusalWith("{scale: 0.00392156862}", "{clip: [0, 1]}") ==
        "job.yaml:9:29: not built yet: transform `clip`");
  CHECK(RefusalWith("metrics: [accuracy]", "metrics: [precision]") ==
        "job.yaml:20:15: not built yet: metric `precision`");
}

TEST_CASE("every optimizer and every key that is not built yet is refused by name") {
  for (const std::string& type : optimizers::TypesNotBuilt())
    CHECK(RefusalWith("type: adam, learning_rate: 0.001", "type: " + type) ==
          "job.yaml:21:21: not built yet: the optimizer of type `" + type + "`");
  for (const std::string& key : optimizers::KeysNotBuilt())
    CHECK(RefusalWith("learning_rate: 0.001", key + ": 1") ==
          "job.yaml:21:27: not built yet: key `" + key + "` in the optimizer adam");
}

TEST_CASE("every optimizer of the registry is parsed with its defaults, limits and rules") {
  for (const optimizers::Descriptor& descriptor : optimizers::All()) {
    const std::string& type = descriptor.defaults.type;
    INFO(type);
    const std::string line = "type: adam, learning_rate: 0.001";
    if (descriptor.internal) {
      CHECK_THAT(RefusalWith(line, "type: " + type),
                 Catch::Contains("`type` of the optimizer: expected one of adam, sgd, "));
      continue;
    }
    // The list has the type of the optimizer, because a type may be allowed for tables only.
    const std::string csv =
        absl::StrReplaceAll(kCsv, {{"type: rowwise_adagrad, learning_rate: 0.1, "
                                    "initial_accumulator_value: 0, epsilon: 1e-8}",
                                    "type: " + type + "}"}});
    REQUIRE(csv.find("type: " + type + "}") != std::string::npos);
    const JobSpec spec = Parse(csv);
    const optimizers::Settings& read = *OptimizerFor(spec, "emb/words");
    CHECK(read == descriptor.defaults);
    for (const optimizers::Parameter& parameter : descriptor.parameters) {
      INFO(parameter.member.name);
      const std::string key(parameter.member.name);
      CHECK_THAT(Refusal(absl::StrReplaceAll(
                     csv, {{"type: " + type + "}", "type: " + type + ", " + key + ": -100}"}})),
                 Catch::Contains("`" + key + "`: expected "));
    }
  }
}

// Returns the text of a job with `body` as its spec.
std::string JobWith(const std::string& body) {
  return "apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: a}\nspec:\n" +
         body;
}
std::vector<std::string> Lines(const std::string& text) { return absl::StrSplit(text, '\n'); }

TEST_CASE("a mistake about a transform names its position") {
  const auto refusal = [](const std::string& transform) {
    return Refusal(absl::StrReplaceAll(kCsv, {{"{vocabulary: {min_count: 2}}", transform}}));
  };
  CHECK_THAT(refusal("vocabulary"),
             Catch::Contains("transform `vocabulary` needs its settings: expected something like "
                             "{vocabulary: {min_count: 1}}"));
  for (const char* name : {"vocabulary", "hash", "map", "scale", "offset", "bucketize"}) {
    for (const std::string& line : Lines(refusal(name)))
      CHECK_THAT(line, Catch::StartsWith("job.yaml:9:"));
    for (const std::string& line : Lines(refusal(std::string("{") + name + ": }")))
      CHECK_THAT(line, Catch::StartsWith("job.yaml:9:"));
  }
  CHECK_THAT(
      refusal("hash"),
      Catch::Contains(
          "transform `hash` needs its settings: expected something like {hash: {buckets: 1000}}"));
}

TEST_CASE("an unknown format is one mistake, and the mistakes in its section are reported too") {
  const std::string body =
      "  data:\n    train: {format: cvs, path: x.csv, header: maybe}\n    fields: {x: {column: 0, "
      "type: float}, y: {column: 1, type: floot}}\n"
      "  model: {inputs: {x: {shape: []}}, layers: [{name: d, type: dense, units: 1}], losses: "
      "{type: mean_squared_error, labels: y}}\n"
      "  optimizer: {type: sgd}\n";
  CHECK(Refusal(JobWith(body)) ==
        "job.yaml:6:21: `format` of a data source: expected one of idx, csv, jsonl, synthetic, got "
        "`cvs`; "
        "did you mean `csv`?\n"
        "job.yaml:6:47: `header`: expected true or false, got `maybe`\n"
        "job.yaml:7:64: `type`: expected one of int, float, string, got `floot`; did you mean "
        "`float`?");
  // If the parser cannot guess the intended format, it checks only the keys that all formats have.
  CHECK(Refusal(JobWith(absl::StrReplaceAll(body, {{"cvs", "parquet"}, {"floot", "float"}}))) ==
        "job.yaml:6:21: not built yet: a data source of format `parquet`\n"
        "job.yaml:6:51: `header`: expected true or false, got `maybe`");
  CHECK(Refusal(JobWith(absl::StrReplaceAll(
            body, {{"format: cvs, ", ""}, {"maybe", "true"}, {"floot", "float"}}))) ==
        "job.yaml:6:12: missing key `format` in a data source: expected one of idx, csv, jsonl, "
        "synthetic");
}

TEST_CASE("an unknown or unbuilt type does not hide the mistakes in its section") {
  // The word is almost the name of a type. The layer is treated as one of that type, whose missing
  // keys are reported, too.
  CHECK(
      RefusalWith("{name: logits, type: dense, units: 10", "{name: logits, type: dens, unit: 10") ==
      absl::StrCat("job.yaml:18:9: missing key `units` in a dense layer: expected integer from 1 "
                   "to 16777216\n"
                   "job.yaml:18:30: `type` of a layer: expected one of ",
                   absl::StrJoin(LayerTypes(), ", "),
                   ", got `dens`; did you mean `dense`?\n"
                   "job.yaml:18:36: unknown key `unit` in a dense layer; did you mean `units`?"));
  // This type of layer is not built. Keys that every layer would refuse are reported. Keys that
  // this layer might have are not reported.
  const std::string lstm = RefusalWith(
      "type: flatten", "type: lstm, units: -3, name2: x, return_sequences: 5, activation: rellu");
  CHECK_THAT(lstm,
             Catch::Contains("not built yet: a layer of type `lstm`") &&
                 Catch::Contains("`units`: expected an integer from 1 to 16777216, got `-3`") &&
                 Catch::Contains("did you mean `relu`?") && !Catch::Contains("return_sequences") &&
                 !Catch::Contains("name2"));
  CHECK(Lines(lstm).size() == 3);
  CHECK_THAT(RefusalWith("type: sparse_categorical_crossentropy, from_logits: true",
                         "type: huber, from_logits: 7, output: nobody"),
             Catch::Contains("not built yet: a loss of type `huber`") &&
                 Catch::Contains("`from_logits`: expected true or false, got `7`") &&
                 Catch::Contains("`output`: no layer `nobody`"));
  CHECK_THAT(RefusalWith("type: adam, learning_rate: 0.001", "type: lamb, learning_rate: -1"),
             Catch::Contains("not built yet: the optimizer of type `lamb`") &&
                 Catch::Contains(
                     "`learning_rate`: expected a number from 0 (excluded) to 1e+06, got `-1`"));
  // The same is true for the type of the whole job.
  for (const char* type : {"prediction", "nonsense", "trainin"}) {
    INFO(type);
    const std::string text =
        absl::StrReplaceAll(kCnn, {{"spec:\n", std::string("spec:\n  type: ") + type + "\n"},
                                   {"units: 10", "units: 0"},
                                   {"mode: async", "mode: asink"}});
    const std::string refusal = Refusal(text);
    CHECK_THAT(refusal, Catch::Contains(type) &&
                            Catch::Contains("`units`: expected an integer from 1") &&
                            Catch::Contains("`mode`: expected one of async"));
    CHECK(Lines(refusal).size() == 3);
  }
}

TEST_CASE("the path of a data file names one file, on a local disk or in an object store") {
  const auto with = [](const std::string& path) {
    return absl::StrReplaceAll(kCsv, {{"path: clicks.csv.gz", "path: \"" + path + "\""}});
  };
  CHECK(Parse(with("s3://bucket/x.csv")).data.train->path == "s3://bucket/x.csv");
  CHECK_THAT(Refusal(with("s3://b/x.csv")), Catch::Contains("job.yaml:6:32: `path`: "));
  CHECK_THAT(Refusal(with("https://host/x.csv")),
             Catch::Contains("`path`: unsupported URI scheme: scheme=https"));
  CHECK_THAT(Refusal(with("data/*.csv")),
             Catch::Contains("`path`: expected the path of one file, got the text \"data/*.csv\": "
                             "not built yet: patterns"));
  CHECK_THAT(Refusal(with("")), Catch::Contains("`path`: expected a path, got nothing"));
  CHECK(Parse(with("file:///data/x.csv")).data.train->path == "/data/x.csv");
  CHECK(Parse(EmitYaml(Parse(with("file:///data/x.csv")))).data.train->path == "/data/x.csv");
}

TEST_CASE("each file of a job is listed once, with its line and its variables") {
  ParseOptions options;
  options.file_name = "job.yaml";
  options.base_folder = "/jobs";
  options.environment = {{"EVERGRAD_DATA", "/data"}};
  const ParsedJob parsed = ParseJob(
      absl::StrReplaceAll(kCsv, {{"path: clicks.csv.gz", "path: \"${EVERGRAD_DATA}/clicks.csv\""}}),
      options);
  REQUIRE(parsed.spec);
  REQUIRE(parsed.spec->data.eval);  // a split: the same file
  REQUIRE(parsed.paths.size() == 1);
  CHECK(parsed.paths[0].path == "/data/clicks.csv");
  CHECK(parsed.paths[0].where.ToString() == "job.yaml:6:32");
  CHECK(parsed.paths[0].variables == std::vector<std::string>{"EVERGRAD_DATA"});
  const ParsedJob own = ParseJob(kCsv, options);
  REQUIRE(own.paths.size() == 1);
  CHECK(own.paths[0].path == "/jobs/clicks.csv.gz");
  CHECK(own.paths[0].variables.empty());
}

TEST_CASE(
    "a submission carries the lines of the user's file, which do not change the job's identity") {
  ParseOptions options;
  options.file_name = "my job\n\x1b.yaml";
  options.overrides = {{"spec.model.layers.out.units", "1", ""}};
  const JobSpec first = Parse(kCsv, options);
  const std::string text = EmitSubmission(first);
  INFO(text);
  ParseOptions received;
  received.file_name = "job.yaml";
  received.submission = true;
  JobSpec second = Parse(text, received);
  CHECK(second == first);  // including the lines and columns
  CHECK(second.model.layers[1].where.ToString() == "my job\n\x1b.yaml:21:9");
  CHECK(EmitSubmission(second) == text);
  CHECK(EmitYaml(second) == EmitYaml(first));
  CHECK(EmitGiven(second) == EmitGiven(first));
  // If the text came from a submission whose user had a file, the line numbers are those of that
  // file.
  received.submission = false;
  CHECK(Parse(text, received).model.layers[1].where.file == "job.yaml");

  // If another text or none is at that place, only the positions are lost. The line in front of
  // them may differ, because earlier versions wrote another line.
  received.submission = true;
  const std::string line =
      "# Messages name the following places in the user's file: [file, line, column].\n";
  REQUIRE_THAT(text, Catch::Contains(line));
  CHECK(Parse(absl::StrReplaceAll(text, {{line, "# Other words.\n"}}), received) == second);
  const auto without = [&](const std::string& bad) {
    JobSpec read = Parse(bad, received);
    CHECK(read.model.layers[0].where.file == "job.yaml");
    ForgetPlaces(&read);
    JobSpec want = first;
    ForgetPlaces(&want);
    CHECK(read == want);
  };
  const std::string yaml = EmitYaml(first);
  const std::string head = line + "# places: ";
  without(yaml);
  for (const char* places : {"{}", "{files: []}", "{files: [a], layers: [[0, 1, 1]]}",
                             "{files: x, layers: y}", "{files: [a]", "&a {files: [a]}"})
    without(yaml + head + places + "\n");
  for (const char* item :
       {"[1, 1, 1]", "[0, 0, 1]", "[0, 1]", "[0, -1, 1]", "[0, 99999999999, 1]", "x", "{a: 1}"})
    without(yaml + head + "{files: [a], layers: [" +
            absl::StrJoin(std::vector<std::string>(8, item), ", ") + "]}\n");
  without(absl::StrReplaceAll(text, {{"# places", "# placed"}}));
  without(head + "{files: [a], layers: []}\n" + yaml);
}

TEST_CASE("the reference states when the optimizer is required") {
  CHECK_THAT(ReferenceYaml(), Catch::Contains("required, unless `optimizers` is given)"));
  CHECK_THAT(RefusalWith("  optimizer: {type: adam, learning_rate: 0.001}\n", ""),
             Catch::Contains("missing key `optimizer` in spec"));
}

TEST_CASE("the checkpoint section has values and defaults, and can turn checkpoints off") {
  const auto with = [](const std::string& text) {
    return absl::StrCat(kCnn, "  checkpoint: ", text, "\n");
  };
  CHECK(Parse(kCnn).checkpoint == CheckpointSpec{});
  CHECK(Parse(kCnn).checkpoint.on);
  CHECK_FALSE(Parse(kCnn).checkpoint.given);
  CheckpointSpec want{.given = true};
  CHECK(Parse(with("{}")).checkpoint == want);
  want = {.given = true,
          .every = std::chrono::milliseconds(1500),
          .keep = 100,
          .resume = true,
          .directory = "/shared/x"};
  CHECK(Parse(with("{every: 1.5s, keep: 100, resume: true, directory: /shared/x}")).checkpoint ==
        want);
  want = {.on = false, .given = true};
  CHECK(Parse(with("off")).checkpoint == want);
  CHECK(Parse(with("{every: 10ms}")).checkpoint.every == std::chrono::milliseconds(10));
  CHECK(Parse(with("{every: 24h}")).checkpoint.every == std::chrono::hours(24));

  CHECK_THAT(Refusal(with("false")),
             Catch::Contains("expected a mapping or off, got `false`; did you mean `off`?"));
  CHECK_THAT(Refusal(with("{every: 9ms}")),
             Catch::Contains("`every`: expected a duration from 10ms to 24h, got `9ms`"));
  CHECK_THAT(Refusal(with("{every: 25h}")),
             Catch::Contains("`every`: expected a duration from 10ms to 24h"));
  CHECK_THAT(Refusal(with("{every: 60}")),
             Catch::Contains("the unit is missing; did you mean `60s`?"));
  CHECK_THAT(Refusal(with("{keep: 0}")),
             Catch::Contains("`keep`: expected an integer from 1 to 100"));
  CHECK_THAT(Refusal(with("{keep: 101}")),
             Catch::Contains("`keep`: expected an integer from 1 to 100"));
  CHECK_THAT(Refusal(with("{evry: 1s}")),
             Catch::Contains("unknown key `evry` in spec.checkpoint; did you mean `every`?"));
  CHECK(Parse(with("{directory: 's3://bucket/x'}")).checkpoint.directory == "s3://bucket/x");
  CHECK_THAT(Refusal(with("{directory: 'hdfs://host/x'}")),
             Catch::Contains("`directory`: unsupported URI scheme: scheme=hdfs"));
  CHECK_THAT(Refusal(with("{directory: 's3://b/x'}")), Catch::StartsWith("job.yaml:24:27: "));
  CHECK_THAT(Refusal(with("{directory: 'file://host/x'}")),
             Catch::Contains("`directory`: a file URI must start with file:///"));
  CHECK_THAT(Refusal(with("{directory: ''}")), Catch::Contains("`directory`: expected a folder"));
  CHECK_THAT(Refusal(with("{every_steps: 3}")),
             Catch::Contains("not built yet: key `every_steps` in spec.checkpoint"));
}

TEST_CASE(
    "a checkpoint directory may hold variables, is relative to the job file, and stays in the "
    "effective YAML") {
  ParseOptions options;
  options.base_folder = "/home/user/my jobs";
  options.environment = {{"TEAM", "vision"}};
  const auto parse = [&](const std::string& text) {
    return Parse(absl::StrCat(kCnn, "  checkpoint: ", text, "\n"), options);
  };
  CHECK(parse("{directory: ../saved}").checkpoint.directory == "/home/user/saved");
  CHECK(parse("{directory: '/saved/${TEAM}'}").checkpoint.directory == "/saved/vision");
  CHECK(parse("{directory: '${NOBODY:-here}'}").checkpoint.directory == "/home/user/my jobs/here");
  CHECK(parse("{directory: 'file:///x'}").checkpoint.directory == "file:///x");
  CHECK_THAT(Refusal(std::string(kCnn) + "  checkpoint: {directory: '${NOBODY}'}\n"),
             Catch::Contains("the environment has no variable `NOBODY`"));
  for (const std::string text : {"off", "{}", "{every: 90s, keep: 7, resume: true}",
                                 "{directory: '/a b/$${HOME}: \"x\"'}"}) {
    JobSpec first = parse(text);
    const std::string emitted = EmitYaml(first);
    INFO(emitted);
    JobSpec second = Parse(emitted);
    CHECK(first.checkpoint == second.checkpoint);
    CHECK(EmitYaml(second) == emitted);
  }
  // If the section is missing, its defaults are emitted as a comment. The emitted job then does not
  // have the section either.
  const std::string emitted = EmitYaml(Parse(kCnn, options));
  CHECK_THAT(emitted, Catch::EndsWith("\n  # checkpoint: {every: 1m, keep: 3, resume: false}\n"));
  CHECK_FALSE(Parse(emitted).checkpoint.given);
}

TEST_CASE("an initializer is a name, or a mapping if it has a value") {
  const auto with = [](const std::string& text) {
    return absl::StrReplaceAll(kCnn, {{"units: 10", "units: 10, bias_initializer: " + text}});
  };
  CHECK(Parse(with("{type: constant, value: -0.5}")).model.layers[3].bias_initializer ==
        InitializerSpec{"constant", -0.5});
  CHECK(Parse(with("{type: he_normal}")).model.layers[3].bias_initializer ==
        InitializerSpec{"he_normal"});
  CHECK(Parse(with("ones")).model.layers[3].bias_initializer == InitializerSpec{"ones"});
  CHECK(Refusal(with("constant")) ==
        "job.yaml:18:66: `bias_initializer`: `constant` needs its value: expected {type: constant, "
        "value: NUMBER}");
  CHECK_THAT(Refusal(with("{type: constant}")),
             Catch::Contains("missing key `value` in the initializer constant"));
  CHECK_THAT(Refusal(with("{type: constant, value: .nan}")),
             Catch::Contains("`value`: expected a number"));
  CHECK_THAT(Refusal(with("{type: zeros, value: 1}")),
             Catch::Contains("unknown key `value` in the initializer zeros"));
  CHECK(Parse(with("{type: truncated_normal, stddev: 0.01}"))
            .model.layers[3]
            .bias_initializer.stddev == 0.01);
  CHECK(Parse(with("truncated_normal")).model.layers[3].bias_initializer.stddev == 0.05);
  CHECK_THAT(Refusal(with("{type: truncated_normal, stddev: 0}")),
             Catch::Contains("`stddev`: expected a number"));
  CHECK_THAT(Refusal(with("{type: he_normal, stddev: 1}")),
             Catch::Contains("not built yet: key `stddev`"));
  CHECK(Refusal(with("he_uniform")) ==
        "job.yaml:18:66: not built yet: bias_initializer `he_uniform`");
  CHECK_THAT(Refusal(with("zeroes")), Catch::Contains("did you mean `zeros`?"));
}

TEST_CASE("ambiguous YAML scalars and structures have one defined meaning") {
  CHECK(RefusalWith("epochs: 3", "epochs: 010") ==
        "job.yaml:23:22: `epochs`: expected an integer from 1 to 1000000, got `010`: leading zeros "
        "are refused, because YAML 1.1 reads them as octal");
  CHECK(RefusalWith("deterministic: false", "deterministic: no") ==
        "job.yaml:22:55: `deterministic`: expected true or false, got `no`; did you mean `false`?");
  CHECK(RefusalWith("epochs: 3", "epochs: \"3\"") ==
        "job.yaml:23:22: `epochs`: expected an integer from 1 to 1000000, got the text \"3\": "
        "write it without quotes");
  CHECK(RefusalWith("epochs: 3", "epochs: 3, epochs: 4") ==
        "job.yaml:23:25: duplicate key `epochs`: first given on line 23");
  CHECK(RefusalWith("epochs: 3", "epochs: !!int 3") ==
        "job.yaml:23:22: tags are refused: got `tag:yaml.org,2002:int`");
  CHECK(RefusalWith("epochs: 3", "epochs: 0x10") ==
        "job.yaml:23:22: `epochs`: expected an integer from 1 to 1000000, got `0x10`");
  CHECK(RefusalWith("epochs: 3", "epochs:") ==
        "job.yaml:23:14: `epochs`: expected an integer from 1 to 1000000, got nothing");
  CHECK(RefusalWith("learning_rate: 0.001", "learning_rate: .inf") ==
        "job.yaml:21:42: `learning_rate`: expected a number, got `.inf`");
  CHECK_THAT(Refusal(std::string(kCnn) + "---\na: 1\n"),
             Catch::Contains("several documents in one file"));
  CHECK_THAT(Refusal("a: [1\nb: }"), Catch::Contains("not readable as YAML"));
  CHECK_THAT(Refusal("a:\n  b: 1\n\tc: 2\n"),
             Catch::Contains("not readable as YAML") &&
                 Catch::EndsWith("; line 3 is indented with a tab: expected spaces"));
  CHECK_THAT(Refusal(std::string("a: \0b", 5)), Catch::Contains("NUL byte"));
  CHECK_THAT(
      Refusal(""),
      Catch::Contains("expected a mapping with apiVersion, kind, metadata and spec, got nothing"));
}

TEST_CASE("names that do not match are reported at their lines") {
  CHECK(RefusalWith("name: fashion-cnn", "name: Fashion_CNN") ==
        "job.yaml:3:18: `name`: expected a DNS label (lower-case letters, digits and inner dashes, "
        "at most 63), got `Fashion_CNN`; did you mean "
        "`fashion-cnn`?");
  CHECK(RefusalWith("{name: flat,  type: flatten}", "{name: flat, type: flatten, input: pol1}") ==
        "job.yaml:17:44: no layer or model input `pol1`; did you mean `pool1`?");
  CHECK(RefusalWith("{name: flat,  type: flatten}", "{name: flat, type: flatten, input: logits}") ==
        "job.yaml:17:44: layer `logits` is below this layer: a layer reads layers above it");
  CHECK(RefusalWith("{name: flat,  type: flatten}",
                    "{name: flat, type: flatten, input: [pool1, conv1]}") ==
        "job.yaml:17:44: a flatten layer reads one input, got 2");
  CHECK(RefusalWith("name: pool1", "name: conv1") ==
        "job.yaml:16:16: duplicate layer name `conv1`: first given on line 15");
  CHECK(RefusalWith("name: pool1", "name: image") ==
        "job.yaml:16:16: layer `image` has the name of a model input");
  CHECK(RefusalWith("output: logits", "output: logit") ==
        "job.yaml:19:81: `output`: no layer `logit`; did you mean `logits`?");
  CHECK(RefusalWith("labels: label}]", "labels: lable}]") ==
        "job.yaml:19:97: `labels`: no field `lable` that can be a label: expected label; did you "
        "mean `label`?");
  CHECK(RefusalWith("pipeline: 0, deterministic: false", "pipeline: 1, deterministic: true") ==
        "job.yaml:22:55: `deterministic: true` needs pipeline 0 (and one worker): a pipelined pull "
        "races with the pushes of the previous step");
  CHECK(RefusalWith("{type: adam, learning_rate: 0.001}", "{type: sgd, nesterov: true}") ==
        "job.yaml:21:36: `nesterov: true` needs a momentum above 0");
  CHECK_THAT(RefusalWith("inputs: {image:", "inputs: {imgae:"),
             Catch::Contains("job.yaml:13:14: model input `imgae` is not a field of the data that "
                             "a model can read: expected image; did you mean `image`?"));
  CHECK_THAT(RefusalWith("type: sparse_categorical_crossentropy, from_logits: true",
                         "type: mean_squared_error"),
             Catch::Contains("the metric accuracy needs a loss with classes"));
}

TEST_CASE("the loss reads the last layer and the label by default") {
  const JobSpec spec =
      Parse(absl::StrReplaceAll(kCnn, {{"losses: [{type: sparse_categorical_crossentropy, "
                                        "from_logits: true, output: logits, labels: label}]",
                                        "losses: {type: sparse_categorical_crossentropy}"},
                                       {"metrics: [accuracy]", "metrics: []"}}));
  REQUIRE(spec.model.losses.size() == 1);
  CHECK(spec.model.losses[0].output == "logits");
  CHECK(spec.model.losses[0].labels == "label");
}

TEST_CASE("the defaults of an optimizer depend on its type") {
  CHECK(Parse(absl::StrReplaceAll(kCnn, {{"{type: adam, learning_rate: 0.001}", "{type: adam}"}}))
            .optimizer.learning_rate == 0.001);
  CHECK(Parse(absl::StrReplaceAll(kCnn, {{"{type: adam, learning_rate: 0.001}", "{type: sgd}"}}))
            .optimizer.learning_rate == 0.01);
}

TEST_CASE("an override with --set is typed, takes effect, and is refused under its own name") {
  ParseOptions options;
  options.overrides = {{"spec.training.epochs", "5"},
                       {"spec.model.layers.logits.units", "12"},
                       {"spec.model.layers.0.filters", "8"},
                       {"spec.strategy.partitioner", "{type: fixed_shards, num_shards: 4}"},
                       {"spec.data.train.images", "\"/with space/x.gz\""}};
  const JobSpec spec = Parse(kCnn, options);
  CHECK(spec.training.epochs == 5);
  CHECK(spec.model.layers[3].units == 12);
  CHECK(spec.model.layers[0].filters == 8);
  CHECK(spec.strategy.partitioner.num_shards == 4);
  CHECK(spec.data.train->images == "/with space/x.gz");
  CHECK(Refusal(kCnn, {{"spec.training.epochs", "3"}, {"spec.training.epochs", "many"}}) ==
        "<--set 2>:1:22: `epochs`: expected an integer from 1 to 1000000, got `many`");
  CHECK(Refusal(kCnn, {{"spec.training.epoch", "3"}}) ==
        "<--set 1>:1:15: unknown key `epoch` in spec.training; did you mean `epochs`?");
  CHECK(Refusal(kCnn, {{"spec.model.layers.dense9.units", "3"}}) ==
        "<--set 1>:1:19: no item `dense9` in the list `spec.model.layers`: items=4");
  CHECK(Refusal(kCnn, {{"spec..epochs", "3"}}) ==
        "<--set 1>:1:6: expected a path like spec.training.epochs, got `spec..epochs`");
  CHECK(Refusal(kCnn, {{"spec.data.batch_size.x", "3"}}) ==
        "<--set 1>:1:22: `spec.data.batch_size` is `128`, so it has no `x`");
  CHECK(Refusal(kCnn, {{"spec.strategy.mode", "sync\n", "mode.yaml"}}) ==
        "mode.yaml:1:1: not built yet: strategy.mode `sync`");
  CHECK(Refusal(absl::StrReplaceAll(kCnn, {{"epochs: 3", "epochs: x"}}),
                {{"spec.data.batch_size", "0"}}) ==
        "job.yaml:23:22: `epochs`: expected an integer from 1 to 1000000, got `x`\n<--set 1>:1:22: "
        "`batch_size`: expected an integer from 1 to "
        "1048576, got `0`");
}

TEST_CASE("environment variables are substituted only in the data section") {
  ParseOptions options;
  options.environment = {{"EVERGRAD_DATA", "/data sets"}, {"EMPTY", ""}};
  CHECK(Parse(kCnn, options).data.train->images ==
        "/data sets/fashion-mnist/train-images-idx3-ubyte.gz");
  const auto with = [&](const std::string& path) {
    return Parse(absl::StrReplaceAll(kCnn, {{"/there/t10k-labels-idx1-ubyte.gz", path}}), options)
        .data.eval->labels;
  };
  CHECK(with("/${EMPTY:-full}") == "/full");
  CHECK(with("/${EMPTY}x") == "/x");
  CHECK(with("/$${EMPTY}") == "/${EMPTY}");
  CHECK(with("/$EMPTY") == "/$EMPTY");
  CHECK(RefusalWith("/there/t10k-labels-idx1-ubyte.gz", "/${NOWHERE}/x") ==
        "job.yaml:7:111: the environment has no variable `NOWHERE`: set it, or write "
        "${NOWHERE:-default}");
  CHECK_THAT(RefusalWith("/there/t10k-labels-idx1-ubyte.gz", "/${1x}"),
             Catch::Contains("expected ${NAME} or ${NAME:-default}"));
  CHECK_THAT(RefusalWith("/there/t10k-labels-idx1-ubyte.gz", "/${x"),
             Catch::Contains("expected ${NAME} or ${NAME:-default}"));
  CHECK_THAT(RefusalWith("name: fashion-cnn", "name: \"${HOME}\""),
             Catch::Contains("expected a DNS label"));
}

TEST_CASE("YAML bombs, large files and deep nesting are refused at once") {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i)
    absl::StrAppend(&bomb, "a", i, ": &a", i, " [*a", i - 1, ", *a", i - 1, ", *a", i - 1, ", *a",
                    i - 1, "]\n");
  CHECK_THAT(Refusal(bomb), Catch::Contains("aliases (`*name`) are refused"));
  CHECK(Refusal(std::string((1 << 20) + 1, ' ')) ==
        "job.yaml:1:1: the file is too large: bytes=1048577 limit=1048576");
  CHECK_THAT(Refusal("a: " + std::string(100000, '[')),
             Catch::Contains("the nesting is too deep: limit=32"));
  CHECK_THAT(Refusal(std::string(100000, '{')),
             Catch::Contains("the nesting is too deep: limit=32"));
  std::string block;
  for (int i = 0; i < 200; ++i) block += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  CHECK_THAT(Refusal(block), Catch::Contains("the nesting is too deep: limit=32"));
  std::string dashes;
  for (int i = 0; i < 5000; ++i) dashes += "- ";
  CHECK_THAT(Refusal(dashes), Catch::Contains("the nesting is too deep: limit=32"));
  std::string many = "a: [";
  for (int i = 0; i < 70000; ++i) many += "1,";
  CHECK_THAT(Refusal(many + "]"), Catch::Contains("too many values: limit=65536"));
}

const char kFunctions[] = R"(apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: line}
spec:
  type: functions
  functions:
    variables:
      - {name: line/slope, shape: [3, 1]}
      - {name: bias, shape: [], initializer: {type: constant, value: 2}, optimizer: {type: adam, learning_rate: 0.5}}
    queue_limit: 2
    argument_bytes_max: 1MiB
    result_bytes_max: 3MiB
  optimizer: {type: sgd, learning_rate: 0.1}
  strategy: {partitioner: {type: fixed_shards, num_shards: 2}}
  training: {seed: 5}
  checkpoint: {every: 1s}
)";

TEST_CASE("a functions job has variables, limits and optimizers, and no data") {
  const JobSpec spec = Parse(kFunctions);
  CHECK(spec.type == "functions");
  REQUIRE(spec.functions.variables.size() == 2);
  CHECK(spec.functions.variables[0].name == "line/slope");
  CHECK(spec.functions.variables[0].shape == std::vector<std::uint64_t>{3, 1});
  CHECK(spec.functions.variables[0].initializer.type == "zeros");
  CHECK_FALSE(spec.functions.variables[0].optimizer);
  CHECK(spec.functions.variables[1].shape.empty());
  CHECK(spec.functions.variables[1].initializer.value == 2);
  CHECK(spec.functions.variables[1].optimizer->learning_rate == 0.5);
  CHECK(spec.functions.queue_limit == 2);
  CHECK(spec.functions.argument_bytes_max == 1u << 20);
  CHECK(spec.functions.result_bytes_max == 3u << 20);
  CHECK(spec.optimizer.learning_rate == 0.1);
  CHECK(spec.training.seed == 5);
  ParseOptions options;
  options.file_name = "again.yaml";
  const ParsedJob again = ParseJob(EmitYaml(spec), options);
  INFO(EmitYaml(spec) << Messages(again));
  REQUIRE(again.spec);
  CHECK(*again.spec == spec);

  const auto refusal = [&](const std::string& from, const std::string& to) {
    const std::string text = absl::StrReplaceAll(kFunctions, {{from, to}});
    REQUIRE(text != kFunctions);
    return Refusal(text);
  };
  CHECK_THAT(refusal("name: bias", "name: line/slope"),
             Catch::Contains("duplicate variable `line/slope`"));
  CHECK_THAT(refusal("line/slope", "line//slope"), Catch::Contains("expected names of letters"));
  CHECK_THAT(refusal("queue_limit: 2", "queue_limit: 0"),
             Catch::Contains("expected an integer from 1 to 65536"));
  CHECK_THAT(refusal("argument_bytes_max: 1MiB", "argument_bytes_max: 1KiB"),
             Catch::Contains("expected a size from 1MiB to 256MiB"));
  CHECK_THAT(refusal("result_bytes_max", "result_bytes"),
             Catch::Contains("did you mean `result_bytes_max`?"));
  CHECK_THAT(refusal("[3, 1]", "[4294967296, 4294967296]"), Catch::Contains("too many elements"));
  CHECK_THAT(refusal("shape: [3, 1]", "shape: [0]"), Catch::Contains("`shape`"));
  CHECK_THAT(refusal("{type: adam,", "{type: sgd, nesterov: true,"),
             Catch::Contains("needs a momentum above 0"));
  CHECK_THAT(refusal("{every: 1s}", "{resume: true}"),
             Catch::Contains("not built yet: `resume: true` of a functions job"));
  // Embedding tables are for training jobs only. There, a batch names the rows to be pulled. A step
  // of a function names whole variables.
  CHECK_THAT(refusal("    queue_limit: 2",
                     "    tables: [{name: items, dimension: 16}]\n    queue_limit: 2"),
             Catch::Contains("not built yet: key `tables`"));
  CHECK_THAT(refusal("strategy: {", "strategy: {deterministic: true, "),
             Catch::Contains("not built yet: key `deterministic`"));
  CHECK_THAT(refusal("{seed: 5}", "{epochs: 2}"),
             Catch::Contains("unknown key `epochs` in spec.training of a functions job"));
  CHECK_THAT(refusal("  training:", "  data: {}\n  training:"),
             Catch::Contains("unknown key `data` in spec of a functions job"));
  CHECK_THAT(refusal("type: functions", "type: closures"),
             Catch::Contains("`type`: expected training, functions or counting, got `closures`"));
}

TEST_CASE("no mutation of a job file crashes the parser, and accepted jobs survive a round trip") {
  // Bytes are changed, duplicated and removed, and pieces of other texts are inserted. The seed is
  // fixed, so that a failure can be repeated.
  const std::vector<std::string> seeds = {
      kCnn, kCounting, kFunctions, ReferenceYaml(),
      ReadSource("tests/unit/common/config/testdata/twelve.yaml")};
  const std::string alphabet = "{}[]:,-&*!|>'\"%@`#\n\t ?~0aZ$\\\x01\x7f\xc3\xff";
  const std::vector<std::string> pieces = {
      "&a ",          "*a",        "!!map ",  "? ",          "- ",          "--- ",
      "<<: ",         "|\n  x",    "${X:-y}", "null",        "010",         "1e999",
      "{a: {a: {a: ", "\"\\u12\"", "'",       "%YAML 1.2\n", "\xef\xbb\xbf"};
  int accepted = 0;
  std::map<std::string, std::string> by_given;
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    std::string text = seeds[seed % seeds.size()];
    for (std::uint32_t n = random() % 6; n-- > 0;) {
      const std::size_t at = random() % text.size();
      switch (random() % 5) {
        case 0: text[at] = alphabet[random() % alphabet.size()]; break;
        case 1: text.insert(at, 1, alphabet[random() % alphabet.size()]); break;
        case 2: text.erase(at, 1 + random() % 20); break;
        case 3: text.insert(at, pieces[random() % pieces.size()]); break;
        default: text.insert(at, text.substr(random() % text.size(), random() % 60)); break;
      }
      if (text.empty()) text = " ";
    }
    ParseOptions options;
    options.file_name = "job.yaml";
    const ParsedJob parsed = ParseJob(text, options);
    if (!parsed.spec) {
      if (parsed.mistakes.empty()) FAIL("seed " << seed << ": refused without a reason");
      continue;
    }
    ++accepted;
    const std::string emitted = EmitYaml(*parsed.spec);
    const ParsedJob again = ParseJob(emitted, options);
    if (!again.spec || EmitYaml(*again.spec) != emitted)
      FAIL("seed " << seed << ":\n" << emitted << Messages(again));
    JobSpec same = *parsed.spec;
    same.name = "same";
    const auto known = by_given.emplace(EmitGiven(same), EmitYaml(same)).first;
    if (known->second != EmitYaml(same))
      FAIL("seed " << seed << ": two jobs, one text: " << known->first << "\n" << emitted);
  }
  CHECK(accepted > 100);
}

TEST_CASE("the reference shows every kind of field and every transform") {
  const std::string text = ReferenceYaml();
  for (const char* words : {"# a field of a csv source:", "#   column: age", "#     - {scale: 0.5}",
                            "#     - {offset: -1}", "#     - log1p",
                            "#     - {bucketize:", "#     - {hash: {buckets: 1000}}",
                            "#     - {vocabulary: {min_count: 2}}",
                            "#     - {map:", "split: {modulo: 10, equals: 9, take: eval}",
                            "# a field of a synthetic source:", "#   ids: 100000",
                            "#   distribution: zipf", "#   exponent: 1.05", "#   classes: 2"})
    CHECK_THAT(text, Catch::Contains(words));
}

TEST_CASE("no line of the reference is wider than 100 characters") {
  for (const absl::string_view line : absl::StrSplit(ReferenceYaml(), '\n')) {
    INFO(line);
    CHECK(std::count_if(line.begin(), line.end(), [](char c) {
            return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
          }) <= 100);
  }
}

TEST_CASE("the committed reference equals the generated one") {
  CHECK(ReadSource("configs/reference.yaml") == ReferenceYaml());
}

}  // namespace
}  // namespace evergrad::config
