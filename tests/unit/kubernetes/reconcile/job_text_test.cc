// Tests job files made from objects, and the mistakes that a user sees in the status.
#include "kubernetes/reconcile/job_text.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/job_spec.h"
#include "common/schema/yaml_tree.h"
#include "tests/support/paths.h"

namespace evergrad::kubernetes {
namespace {

const std::map<std::string, std::string> kEnvironment = {{"EVERGRAD_DATA", "/data"}};

std::string ReadSource(const std::string& path) {
  std::ifstream file(test::SourceDir() + "/" + path);
  REQUIRE(file.good());
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Reads a plain scalar as YAML 1.1 does, which kubectl uses.
Json JsonOfScalar(const config::Node& node) {
  if (node.quoted) return node.text;
  for (const char* yes : {"true", "yes", "on"})
    if (node.text == yes) return true;
  for (const char* no : {"false", "no", "off"})
    if (node.text == no) return false;
  std::int64_t integer = 0;
  if (absl::SimpleAtoi(node.text, &integer)) return integer;
  double real = 0;
  if (node.text.find_first_not_of("0123456789.eE+-") == std::string::npos &&
      absl::SimpleAtod(node.text, &real))
    return real;
  return node.text;
}

Json JsonOf(const config::Node& node) {
  using Kind = config::Node::Kind;
  switch (node.kind) {
    case Kind::kNull: return Json();
    case Kind::kScalar: return JsonOfScalar(node);
    case Kind::kSequence: {
      Json list = Json::array();
      for (const config::Node& item : node.items) list.push_back(JsonOf(item));
      return list;
    }
    case Kind::kMap: break;
  }
  Json object = Json::object();
  for (const config::YamlEntry& entry : node.entries) object[entry.key] = JsonOf(entry.value);
  return object;
}

Json TreeOf(const std::string& yaml) {
  std::vector<config::Mistake> mistakes;
  const auto root = config::ReadYamlTree(yaml, {"job.yaml"}, &mistakes);
  REQUIRE(root);
  return JsonOf(*root);
}

// The object that the API server stores after `kubectl apply -f` of a job file.
JobObject ApplyFile(const std::string& yaml) {
  std::vector<config::Mistake> mistakes;
  const auto root = config::ReadYamlTree(yaml, {"job.yaml"}, &mistakes);
  REQUIRE(mistakes.empty());
  JobObject object;
  object.name = root->Find("metadata")->Find("name")->text;
  object.uid = "u-1";
  object.spec = JsonOf(*root->Find("spec"));
  return object;
}

JobObject Quickstart() { return ApplyFile(ReadSource("configs/quickstart.yaml")); }

JobObject WithSpec(Json spec) {
  JobObject object;
  object.name = "mlp";
  object.spec = std::move(spec);
  return object;
}

std::string MistakesOf(const JobObject& object) {
  const Submission submission = PrepareSubmission(object, kEnvironment);
  CHECK(submission.yaml.empty() == !submission.mistakes.empty());
  return submission.mistakes;
}

TEST_CASE("an object is printed with one value per line, and each line has the path of its key") {
  const auto text = PrintJob(WithSpec(*ParseJson(
      R"({"a": 1, "b": -2.5, "c": true, "d": null, "e": "x", "f": "5", "g": [], "h": {},
          "i": [1, [2, "3"], {"j": "k", "l": {"m": false}}], "y": "off", "two words": "l\n\"2\"",
          "": "", "1": 1e-7})")));
  REQUIRE(text.status() == absl::OkStatus());
  const std::vector<std::pair<std::string, std::string>> lines = {
      {"apiVersion: evergrad.dev/v1alpha1", "apiVersion"},
      {"kind: TrainingJob", "kind"},
      {"metadata:", "metadata"},
      {"  name: mlp", "metadata.name"},
      {"spec:", "spec"},
      {"  \"\": \"\"", "spec."},
      {"  \"1\": 1e-07", "spec.1"},
      {"  a: 1", "spec.a"},
      {"  b: -2.5", "spec.b"},
      {"  c: true", "spec.c"},
      {"  d: null", "spec.d"},
      {"  e: x", "spec.e"},
      {"  f: \"5\"", "spec.f"},
      {"  g: []", "spec.g"},
      {"  h: {}", "spec.h"},
      {"  i:", "spec.i"},
      {"    - 1", "spec.i[0]"},
      {"    -", "spec.i[1]"},
      {"      - 2", "spec.i[1][0]"},
      {"      - \"3\"", "spec.i[1][1]"},
      {"    -", "spec.i[2]"},
      {"      j: k", "spec.i[2].j"},
      {"      l:", "spec.i[2].l"},
      {"        m: false", "spec.i[2].l.m"},
      {"  \"two words\": \"l\\n\\\"2\\\"\"", "spec.two words"},
      {"  \"y\": \"off\"", "spec.y"},
  };
  std::string yaml;
  std::vector<std::string> paths;
  for (const auto& [line, path] : lines) {
    absl::StrAppend(&yaml, line, "\n");
    paths.push_back(path);
  }
  CHECK(text->yaml == yaml);
  CHECK(text->paths == paths);
}

TEST_CASE("every JSON value is read back from the printed text as it was") {
  const Json spec = *ParseJson(
      R"({"text": ["", " ", "a b", "a: b", "- a", "#a", "null", "true", "1", "1.0", "\"", "\\", "'",
                   "a\tb", "a\u0001b", "a\u007fb", "a\r\nb", "\u00e4\u2028\u0085", "{a}", "[a]",
                   "*a", "&a", "!a", "|", ">", "%a", "@a", "`a", "?", ": ", "---", "...", "~"],
          "lists": [[], [[]], [[1], [2, [3]]], [{}], [{"a": []}, {"b": {"c": [1]}}]],
          "numbers": [0, -1, 9007199254740993, 0.1, 1e300, 1e-300, -0.5],
          "odd: keys": {"": 1, "a.b": 2, "- c": 3, "true": 4, "[0]": 5, "\"q\"": 6, "\n": 7}})");
  const auto text = PrintJob(WithSpec(spec));
  REQUIRE(text.ok());
  CHECK(std::count(text->yaml.begin(), text->yaml.end(), '\n') ==
        static_cast<std::ptrdiff_t>(text->paths.size()));
  std::vector<config::Mistake> mistakes;
  const auto root = config::ReadYamlTree(text->yaml, {"x"}, &mistakes);
  REQUIRE(root);
  for (const config::Mistake& mistake : mistakes) UNSCOPED_INFO(mistake.ToString());
  CHECK(mistakes.empty());
  CHECK(JsonOf(*root->Find("spec")).dump(1) == spec.dump(1));
}

TEST_CASE("an object of each job file of the tree is submitted as psctl submits the file") {
  std::vector<std::string> files = {"configs/quickstart.yaml", "configs/reference.yaml"};
  for (const auto& entry :
       std::filesystem::directory_iterator(test::SourceDir() + "/configs/examples"))
    if (entry.path().extension() == ".yaml")
      files.push_back("configs/examples/" + entry.path().filename().string());
  std::sort(files.begin(), files.end());
  int equal = 0;
  for (const std::string& file : files) {
    CAPTURE(file);
    const std::string yaml = ReadSource(file);
    config::ParseOptions options;
    options.environment = kEnvironment;
    const config::ParsedJob job = config::ParseJob(yaml, options);
    REQUIRE(job.spec);
    const Submission submission = PrepareSubmission(ApplyFile(yaml), kEnvironment);
    const bool absolute = std::all_of(job.paths.begin(), job.paths.end(), [](const auto& path) {
      return absl::StartsWith(path.path, "/") || absl::StrContains(path.path, "://");
    });
    if (absolute) {
      CHECK(submission.mistakes == "");
      // JSON does not keep the order of the members of an object, and the order has no meaning.
      CHECK(TreeOf(submission.yaml).dump(1) == TreeOf(config::EmitYaml(*job.spec)).dump(1));
      const config::ParsedJob again = config::ParseJob(submission.yaml, {});
      REQUIRE(again.spec);
      CHECK(again.spec->checkpoint == job.spec->checkpoint);
      CHECK(again.spec->model.layers.size() == job.spec->model.layers.size());
      ++equal;
    } else {
      CHECK_THAT(submission.mistakes, Catch::Contains("expected an absolute path or a URI"));
    }
  }
  CHECK(equal >= 10);
}

TEST_CASE("each mistake names the key of the object") {
  const struct {
    const char *pointer, *value, *mistake;
  } cases[] = {
      {"/training/epochs", "0", "spec.training.epochs: `epochs`: expected"},
      {"/training/epochs", "2.5", "spec.training.epochs: `epochs`: expected"},
      {"/training/epochs", "\"2\"", "spec.training.epochs: `epochs`: expected"},
      {"/training/epochs", "null", "spec.training.epochs: "},
      {"/training/epohcs", "2", "spec.training.epohcs: unknown key `epohcs`"},
      {"/model/layers/1/units", "\"many\"", "spec.model.layers[1].units: `units`: expected"},
      {"/model/layers/1/units", "-1", "spec.model.layers[1].units: "},
      {"/model/layers/2/unit", "3", "spec.model.layers[2].unit: unknown key `unit`"},
      {"/model/layers/1/type", "\"dens\"",
       "spec.model.layers[1].type: `type` of a layer: expected"},
      {"/model/layers/3", "7", "spec.model.layers[3]: "},
      {"/model/layers", "{}", "spec.model.layers: "},
      {"/model/metrics/0", "\"acuracy\"", "spec.model.metrics[0]: "},
      {"/optimizer/type", "\"adm\"", "spec.optimizer.type: `type` of "},
      {"/strategy/partitioner/min_shard_bytes", "\"64KB2\"",
       "spec.strategy.partitioner.min_shard_bytes: "},
      {"/checkpoint", "true", "spec.checkpoint: `checkpoint`: expected a mapping or off"},
      {"/type", "\"trainig\"", "spec.type: `type`: expected "},
      {"/data/train/images", "\"train.gz\"",
       "spec.data.train.images: expected an absolute path or a URI, because an object is in no "
       "folder, got `train.gz`"},
      {"/data/train/images", "\"${HOME}/train.gz\"",
       "spec.data.train.images: the environment has no variable `HOME`"},
      {"/data/eval/labels", "\"${EVERGRAD_OTHER:-labels.gz}\"",
       "spec.data.eval.labels: expected an absolute path"},
  };
  for (const auto& one : cases) {
    CAPTURE(one.pointer, one.value);
    JobObject object = Quickstart();
    object.spec[Json::json_pointer(one.pointer)] = *ParseJson(one.value);
    CHECK_THAT(MistakesOf(object), Catch::StartsWith(one.mistake));
  }
}

TEST_CASE("a key that is missing is reported at the section that lacks it") {
  JobObject object = Quickstart();
  object.spec.erase("optimizer");
  CHECK_THAT(MistakesOf(object), Catch::StartsWith("spec: missing key `optimizer`"));
  object = Quickstart();
  object.spec["model"]["layers"][1].erase("units");
  CHECK_THAT(MistakesOf(object), Catch::StartsWith("spec.model.layers[1]: missing key `units`"));
}

TEST_CASE("several mistakes are reported together, in the order of the text") {
  JobObject object = Quickstart();
  object.name = "a.b";
  object.spec["training"]["epochs"] = 0;
  object.spec["model"]["layers"][1]["units"] = "many";
  const std::string mistakes = MistakesOf(object);
  const std::size_t name = mistakes.find("metadata.name: `name`: expected a DNS label");
  const std::size_t units = mistakes.find("; spec.model.layers[1].units: ");
  const std::size_t epochs = mistakes.find("; spec.training.epochs: ");
  CHECK(name == 0);
  CHECK(units != std::string::npos);
  CHECK(epochs > units);
  CHECK(epochs != std::string::npos);
  CHECK_THAT(mistakes, Catch::Contains("did you mean `a-b`?"));
}

TEST_CASE("each relative path is reported, once there are no other mistakes") {
  JobObject object = Quickstart();
  object.spec["data"]["train"]["images"] = "train.gz";
  object.spec["data"]["eval"]["labels"] = "../labels.gz";
  const std::string mistakes = MistakesOf(object);
  CHECK_THAT(mistakes, Catch::Contains("spec.data.train.images: expected an absolute path"));
  CHECK_THAT(mistakes, Catch::Contains("; spec.data.eval.labels: expected an absolute path"));
  object.spec["training"]["epochs"] = 0;
  CHECK_THAT(MistakesOf(object), !Catch::Contains("absolute path"));
  // Found by reading: the coordinator refused this path as if it were in no allowed folder.
  object = Quickstart();
  object.spec["checkpoint"]["directory"] = "checkpoints";
  CHECK_THAT(MistakesOf(object), Catch::StartsWith("spec.checkpoint.directory: expected an absol"));
  for (const char* directory : {"/checkpoints", "file:///checkpoints", "s3://bucket/checkpoints"}) {
    object.spec["checkpoint"]["directory"] = directory;
    CHECK(MistakesOf(object) == "");
  }
}

TEST_CASE("the text of many mistakes is limited") {
  JobObject object = Quickstart();
  for (int i = 0; i < 500; ++i) object.spec["training"][absl::StrCat("unknown", i)] = i;
  const std::string mistakes = MistakesOf(object);
  CHECK(mistakes.size() > 2000);
  CHECK(mistakes.size() < 5000);
}

TEST_CASE("a spec that is absent or of another kind is a mistake of spec") {
  for (const char* spec : {"null", "\"text\"", "[]", "[1]", "5", "true", "\"\""}) {
    CAPTURE(spec);
    CHECK_THAT(MistakesOf(WithSpec(*ParseJson(spec))), Catch::StartsWith("spec"));
  }
  CHECK_FALSE(MistakesOf(WithSpec(Json::object())).empty());
}

TEST_CASE("a spec that is nested too deeply is a mistake, at every depth") {
  for (const int depth : {20, 28, 29, 30, 31, 32, 33, 50, 95}) {
    CAPTURE(depth);
    Json lists = 1, objects = 1;
    for (int i = 0; i < depth; ++i) {
      lists = Json::array({lists});
      objects = Json{{"a", objects}};
    }
    CHECK_FALSE(MistakesOf(WithSpec({{"model", lists}})).empty());
    CHECK_FALSE(MistakesOf(WithSpec({{"model", objects}})).empty());
  }
  Json deep = 1;
  for (int i = 0; i < 90; ++i) deep = Json::array({deep});
  CHECK(MistakesOf(WithSpec(deep)) == "spec: nested deeper than 32 levels");
}

TEST_CASE("false and the text off mean the word off, for the keys that may be off only") {
  for (const Json& off : {Json(false), Json("off")}) {
    JobObject object = Quickstart();
    object.spec["checkpoint"] = off;
    object.spec["data"]["shuffle"] = off;
    const Submission submission = PrepareSubmission(object, kEnvironment);
    REQUIRE(submission.mistakes == "");
    CHECK_THAT(submission.yaml, Catch::Contains("\n  checkpoint: off\n"));
    CHECK_THAT(submission.yaml, Catch::Contains("shuffle: off"));
    object.spec["strategy"]["deterministic"] = off;
    object.spec["training"]["epochs"] = off;
    const std::string mistakes = MistakesOf(object);
    CHECK_THAT(mistakes, Catch::Contains("spec.training.epochs: "));
    CHECK(absl::StrContains(mistakes, "spec.strategy.deterministic: ") == (off == "off"));
  }
}

TEST_CASE("a variable is replaced by its value, and the text of a user is escaped in mistakes") {
  JobObject object = Quickstart();
  object.spec["data"]["train"]["images"] = "${EVERGRAD_DATA}/x.gz";
  const Submission submission = PrepareSubmission(object, kEnvironment);
  REQUIRE(submission.mistakes == "");
  CHECK_THAT(submission.yaml, Catch::Contains("/data/x.gz"));
  object.spec["type"] = "a\n\xe2\x80\xae";
  object.spec["b\nc"] = 1;
  const std::string mistakes = MistakesOf(object);
  CHECK_THAT(mistakes, !Catch::Contains("\n"));
  CHECK_THAT(mistakes, !Catch::Contains("\xe2\x80\xae"));
}

// An object of 200 kB needed 385 MB, because each line stored the whole path of its key.
TEST_CASE("an object that is too large for a job file is refused before it is printed") {
  const auto refusal = [](Json spec) {
    JobObject object;
    object.name = "large";
    object.spec = std::move(spec);
    return std::string(PrintJob(object).status().message());
  };
  Json deep = Json::array();
  for (int i = 0; i < 50'000; ++i) deep.push_back(0);
  CHECK(refusal(deep).empty());
  for (int i = 0; i < 25; ++i) {
    Json outer = Json::object();
    outer[std::string(60, 'k')] = std::move(deep);
    deep = std::move(outer);
  }
  const std::string limits = "spec: too large for a job file: bytes_max=1048576 values_max=65536";
  CHECK(refusal(std::move(deep)) == limits);
  Json flat = Json::array();
  for (int i = 0; i < 700'000; ++i) flat.push_back(0);
  CHECK(refusal(std::move(flat)) == limits);
  CHECK(refusal({{"a", std::string(2u << 20, 'x')}}) == limits);
}

TEST_CASE("hostile objects never end the process") {
  for (const Json& spec :
       {Json{{std::string(5000, 'k'), 1}}, Json{{"model", std::string(2 << 20, 'x')}},
        Json{{"model", Json::array({nullptr, nullptr})}}, Json{{"data", {{"train", {1, 2}}}}},
        Json{{"a\0b", "c\0d"}}, Json{{"model", {{"layers", {{"type", 5}}}}}}}) {
    CHECK_FALSE(MistakesOf(WithSpec(spec)).empty());
  }
  Json many = Json::array();
  for (int i = 0; i < 70'000; ++i) many.push_back(i);
  CHECK_FALSE(MistakesOf(WithSpec({{"model", many}})).empty());
}

}  // namespace
}  // namespace evergrad::kubernetes
