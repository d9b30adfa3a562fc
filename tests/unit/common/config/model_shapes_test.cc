// Tests that shapes that do not fit are refused before anything runs. The message must name the
// place where the user wrote them.
#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/config/job_spec.h"

namespace evergrad::config {
namespace {

// The layers begin on line 17 of the file, and the loss is on the line below the last layer.
constexpr char kJob[] = R"(apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: shapes}
spec:
  data:
    train: {format: synthetic, examples: 10}
    fields:
      x: {type: float, size: 784}
      image: {type: float, shape: [28, 28, 1]}
      ids: {type: ids, size: 3, ids: 10}
      more: {type: float, size: 4}
      y: {type: label}
      three: {type: float, size: 3}
  model:
    inputs: {x: {shape: [784]}, image: {shape: [28, 28, 1]}, ids: {shape: [3]}, more: {shape: [4]}}
    tables: {t: {dimension: 8}}
LAYERS
    losses: {type: LOSS, LABELS}
    metrics: [METRICS]
  optimizer: {type: sgd}
)";

struct Job {
  std::vector<std::string> layers;
  std::string loss = "binary_crossentropy", labels = "labels: y", metrics = "";
};

std::string Yaml(const Job& job) {
  std::string layers = "    layers:";
  // At least one layer must read the embedding table.
  absl::StrAppend(&layers, " [{name: bag, type: embedding, table: t, combiner: sum, input: ids}");
  for (const std::string& layer : job.layers) absl::StrAppend(&layers, ",\n      {", layer, "}");
  return absl::StrReplaceAll(kJob, {{"LAYERS", layers + "]"},
                                    {"LOSS", job.loss},
                                    {"LABELS", job.labels},
                                    {"METRICS", job.metrics}});
}

std::string Refusal(const Job& job) {
  ParseOptions options;
  options.file_name = "job.yaml";
  const ParsedJob parsed = ParseJob(Yaml(job), options);
  CHECK(parsed.spec.has_value() == parsed.mistakes.empty());
  return absl::StrJoin(parsed.mistakes, "\n", [](std::string* out, const Mistake& mistake) {
    absl::StrAppend(out, mistake.ToString());
  });
}

TEST_CASE("layers whose inputs do not fit are refused at their lines") {
  const std::string out = "name: out, type: dense, units: 1";
  CHECK(Refusal({{out + ", input: bag"}}).empty());
  CHECK(Refusal({{"name: c, type: conv2d, filters: 4, kernel_size: 3, input: x", out}}) ==
        "job.yaml:18:7: layer `c`: conv2d needs an input (height, width, channels), got (784)");
  CHECK(Refusal({{"name: a, type: dense, units: 256, input: x", "name: s, type: add, input: [x, a]",
                  out}}) ==
        "job.yaml:19:7: layer `s`: add needs inputs of the same shape, got (784), (256)");
  CHECK(Refusal({{"name: c, type: conv2d, filters: 4, kernel_size: [29, 3], input: image",
                  "name: f, type: flatten", out}}) ==
        "job.yaml:18:7: layer `c`: the kernel is larger than its input: kernel=29x3 "
        "input=(28, 28, 1)");
  CHECK(Refusal({{"name: p, type: max_pooling2d, input: bag", out}}) ==
        "job.yaml:18:7: layer `p`: max_pooling2d needs an input (height, width, channels), got "
        "(8)");
  CHECK(Refusal({{"name: d, type: dot, input: [more, bag]", out}}) ==
        "job.yaml:18:7: layer `d`: dot needs two vectors of the same size, got (4), (8)");
  CHECK(Refusal({{"name: c, type: concatenate, input: [image, bag]", out}}) ==
        "job.yaml:18:7: layer `c`: concatenate needs inputs that agree in all axes but the last, "
        "got (28, 28, 1), (8)");
  CHECK(Refusal({{"name: w, type: embedding, table: t, combiner: sum, input: ids, weights: more",
                  out}}) ==
        "job.yaml:18:7: layer `w`: weights need one input of ids with the shape of the weights: "
        "weights=(4) "
        "ids=(3)");
  CHECK(Refusal({{"name: big, type: dense, units: 16777216, input: x", out}}) ==
        "job.yaml:18:7: layer `big`: its kernel has too many elements: shape=(784, 16777216) "
        "elements=13153337344 limit=2147483647");
}

TEST_CASE("a layer whose input was refused is not checked, even beside another mistake") {
  CHECK(Refusal({{"name: c, type: conv2d, filters: 4, kernel_size: 3, input: x",
                  "name: below, type: max_pooling2d, input: c",
                  "name: s, type: add, input: [x, more]", "name: out, type: dense, units: 1"}}) ==
        "job.yaml:18:7: layer `c`: conv2d needs an input (height, width, channels), got (784)\n"
        "job.yaml:20:7: layer `s`: add needs inputs of the same shape, got (784), (4)");
}

TEST_CASE("a refused value leads to no report about shapes") {
  CHECK(Refusal({{"name: a, type: dense, units: many, input: x"}}) ==
        "job.yaml:18:37: `units`: expected an integer from 1 to 16777216, got `many`");
}

TEST_CASE("an output that does not fit its loss, labels or metrics is refused at the loss") {
  const std::string ten = "name: ten, type: dense, units: 10, input: x";
  CHECK(Refusal({{ten}, "sparse_categorical_crossentropy"}).empty());
  CHECK(Refusal({{ten}}) ==
        "job.yaml:19:13: loss `binary_crossentropy`: a field has the wrong number of labels per "
        "example: field=`y` want=10 got=1 output=`ten` (10)");
  CHECK(Refusal({{ten}, "mean_squared_error", "labels: three"}) ==
        "job.yaml:19:13: loss `mean_squared_error`: a field has the wrong number of labels per "
        "example: field=`three` want=10 got=3 output=`ten` (10)");
  CHECK(Refusal({{ten}, "sparse_categorical_crossentropy", "labels: three"}) ==
        "job.yaml:19:13: loss `sparse_categorical_crossentropy`: a field has the wrong number of "
        "labels per example: field=`three` want=1 got=3 output=`ten` (10)");
  CHECK(Refusal(
            {{"name: one, type: dense, units: 1, input: x"}, "sparse_categorical_crossentropy"}) ==
        "job.yaml:19:13: loss `sparse_categorical_crossentropy`: needs at least 2 classes in the "
        "last axis: output=`one` shape=(1)");
  CHECK(Refusal({{ten + ", activation: softmax"},
                 "sparse_categorical_crossentropy",
                 "labels: y, from_logits: true"}) ==
        "job.yaml:19:13: loss `sparse_categorical_crossentropy`: from_logits is set, but output "
        "`ten` ends in softmax; remove the key or the activation");
  CHECK(Refusal({{"name: three_out, type: dense, units: 3, input: x"},
                 "binary_crossentropy",
                 "labels: three",
                 "accuracy"}) ==
        "job.yaml:19:13: loss `binary_crossentropy`: metric `accuracy` needs one label per "
        "example: output=`three_out` labels=3");
}

TEST_CASE("the label of an idx source and the columns of a csv field are counted") {
  const auto refusal = [](absl::string_view data, absl::string_view units) {
    ParseOptions options;
    options.file_name = "job.yaml";
    const ParsedJob parsed =
        ParseJob(absl::StrCat("apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\n"
                              "metadata: {name: a}\nspec:\n  data: ",
                              data,
                              "\n  model:\n    inputs: {image: {shape: [4]}}\n"
                              "    layers: [{name: out, type: dense, units: ",
                              units,
                              "}]\n    losses: {type: mean_squared_error, labels: label}\n"
                              "  optimizer: {type: sgd}\n"),
                 options);
    return parsed.mistakes.empty() ? std::string() : parsed.mistakes[0].ToString();
  };
  const std::string idx = "{train: {format: idx, images: a, labels: b}}";
  const std::string csv =
      "{train: {format: csv, path: a, header: false}, fields: {image: {column: [0, 1, 2, 3], type: "
      "float}, label: {column: [4, 5], type: float}}}";
  CHECK(refusal(idx, "1").empty());
  CHECK(refusal(idx, "2") ==
        "job.yaml:9:13: loss `mean_squared_error`: a field has the wrong number of labels per "
        "example: field=`label` want=2 got=1 output=`out` (2)");
  CHECK(refusal(csv, "2").empty());
  CHECK(refusal(csv, "1") ==
        "job.yaml:9:13: loss `mean_squared_error`: a field has the wrong number of labels per "
        "example: field=`label` want=1 got=2 output=`out` (1)");
}

TEST_CASE("shapes of a submission that do not fit are refused at the lines of the user's file") {
  ParseOptions written;
  written.file_name = "my.yaml";
  ParsedJob parsed =
      ParseJob(Yaml({{"name: a, type: dense, units: 4, input: x",
                      "name: s, type: add, input: [a, more]", "name: out, type: dense, units: 1"}}),
               written);
  REQUIRE(parsed.spec);
  parsed.spec->model.layers[1].units = 5;
  ParseOptions received;
  received.file_name = "job.yaml";
  received.submission = true;
  const ParsedJob again = ParseJob(EmitSubmission(*parsed.spec), received);
  REQUIRE(again.mistakes.size() == 1);
  CHECK(again.mistakes[0].ToString() ==
        "my.yaml:19:7: layer `s`: add needs inputs of the same shape, got (5), (4)");
}

}  // namespace
}  // namespace evergrad::config
