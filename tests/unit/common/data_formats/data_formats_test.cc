// Tests the descriptor of every transform and every format. A new descriptor is tested without a
// change here, except that a new format must have an example job.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/config/job_spec.h"
#include "common/data_formats/data_format.h"
#include "common/data_formats/transform_type.h"
#include "common/data_formats/typed_field.h"
#include "tests/support/paths.h"

namespace evergrad::config {
namespace {

// Returns the data section of a valid job for a format.
std::string ExampleOf(const std::string& format) {
  if (format == "idx") return "{train: {format: idx, images: a, labels: b}}";
  if (format == "synthetic")
    return "{train: {format: synthetic, examples: 10}, fields: {x: {type: float, size: 2}, y: "
           "{type: label}}}";
  return absl::StrCat("{train: {format: ", format,
                      ", path: x}, fields: {x: {column: [a, b], type: "
                      "float, transforms: [TRANSFORM]}, y: {column: c, type: int}}}");
}

ParsedJob ParseData(const std::string& data) {
  const bool images = absl::StrContains(data, "idx");
  return ParseJob(
      absl::StrCat("apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: a}\n"
                   "spec:\n  data: ",
                   data, "\n  model: {inputs: {", images ? "image" : "x",
                   ": {shape: [2]}}, layers: [{name: d, type: dense, units: 1}], losses: {type: "
                   "mean_squared_error, labels: ",
                   images ? "label" : "y", "}}\n  optimizer: {type: sgd}\n"),
      {.file_name = "job.yaml", .base_folder = "/jobs"});
}

std::string Errors(const ParsedJob& job) {
  std::string text;
  for (const Mistake& mistake : job.mistakes) absl::StrAppend(&text, mistake.ToString(), "\n");
  return text;
}

// Reads a field of `format` from its settings. Appends the mistakes to `mistakes`, each on a line.
FieldSpec ReadFieldOf(const DataFormat& format, const std::string& yaml, std::string* mistakes) {
  std::vector<Mistake> found;
  const auto node = ReadYamlTree(yaml, {"field.yaml"}, &found);
  REQUIRE(node);
  Reader reader(&found);
  FieldSpec field;
  format.field.Read(reader, *node, &field);
  for (const Mistake& mistake : found) absl::StrAppend(mistakes, mistake.ToString(), "\n");
  return field;
}

TEST_CASE("every transform parses its example of the reference and prints it again") {
  std::set<std::string> names;
  for (const TransformType* type : TransformTypes()) {
    INFO(type->name);
    CHECK(names.insert(type->name).second);
    CHECK_FALSE(type->help.empty());
    const std::string yaml =
        absl::StrCat("{column: a, type: int, transforms: [", type->example, "]}");
    std::string mistakes;
    const FieldSpec field = ReadFieldOf(*FindDataFormat("csv"), yaml, &mistakes);
    CHECK(mistakes == "");
    REQUIRE(field.transforms.size() == 1);
    CHECK(field.transforms[0].type == type->name);
    Node written;
    FindDataFormat("csv")->field.Write(field, &written);
    const FieldSpec again = ReadFieldOf(*FindDataFormat("csv"), PrintFlow(written), &mistakes);
    CHECK(mistakes == "");
    CHECK(again == field);
    // load.py must find the name and every setting of the transform in model.json.
    const auto json = DescribeField("csv", field)["transforms"][0];
    CHECK(json["type"] == type->name);
    CHECK(json.size() == (type->settings_example.empty() ? 1 : 2));
  }
}

TEST_CASE("every transform takes two kinds of value and refuses the third kind by name") {
  for (const TransformType* type : TransformTypes()) {
    INFO(type->name);
    std::string mistakes;
    const FieldSpec field = ReadFieldOf(
        *FindDataFormat("csv"),
        absl::StrCat("{column: a, type: int, transforms: [", type->example, "]}"), &mistakes);
    REQUIRE(field.transforms.size() == 1);
    int taken = 0;
    for (const ValueKind kind : {ValueKind::kText, ValueKind::kInteger, ValueKind::kReal}) {
      const auto after = KindAfter(field.transforms[0], kind);
      taken += after.ok() ? 1 : 0;
      if (after.ok())
        CHECK(*after != ValueKind::kText);
      else
        CHECK_THAT(std::string(after.status().message()),
                   Catch::Contains(type->name) && Catch::Contains(std::string(NameOf(kind))));
    }
    CHECK(taken == 2);
    CHECK(KindAfter(field.transforms[0], ValueKind::kInteger).ok());
  }
}

TEST_CASE("a transform with missing or unused settings is refused by name") {
  for (const TransformType* type : TransformTypes()) {
    INFO(type->name);
    const auto refusal = [&](const std::string& item) {
      std::string mistakes;
      ReadFieldOf(*FindDataFormat("csv"),
                  absl::StrCat("{column: a, type: int, transforms: [", item, "]}"), &mistakes);
      return mistakes;
    };
    if (type->settings_example.empty()) {
      CHECK(refusal(type->name) == "");
      CHECK_THAT(refusal(absl::StrCat("{", type->name, ": 3}")),
                 Catch::Contains(absl::StrCat("`", type->name, "` has no value")));
    } else {
      CHECK_THAT(refusal(type->name),
                 Catch::Contains(absl::StrCat("expected something like {", type->name, ": ",
                                              type->settings_example, "}")));
      CHECK(refusal(absl::StrCat("{", type->name, ": ", type->settings_example, "}")) == "");
      CHECK(refusal(absl::StrCat("{", type->name, ": }")) != "");
    }
  }
}

TEST_CASE("the example of every format is a valid job, and so is its effective job") {
  std::set<std::string> names;
  for (const DataFormat* format : DataFormats()) {
    INFO(format->name);
    CHECK(names.insert(format->name).second);
    CHECK(format->defaults.format == format->name);
    const ParsedJob job =
        ParseData(absl::StrReplaceAll(ExampleOf(format->name), {{"TRANSFORM", "{scale: 2}"}}));
    CHECK(Errors(job) == "");
    REQUIRE(job.spec);
    const ParsedJob again = ParseJob(EmitYaml(*job.spec), {.file_name = "again.yaml"});
    CHECK(Errors(again) == "");
    REQUIRE(again.spec);
    CHECK(EmitYaml(*again.spec) == EmitYaml(*job.spec));
    // The paths of a source must be made absolute, and all of them must be in the list of paths.
    CHECK(job.paths.size() == format->files.size());
    for (const SourceFile& file : format->files)
      CHECK_THAT((*job.spec->data.train).*file.member, Catch::StartsWith("/jobs/"));
    CHECK(FirstFile(*job.spec->data.train) == (job.paths.empty() ? "" : job.paths[0].path));
    // The text of a plan contains no sources. When it is read, the format is derived from the
    // fields. It must be the same format, or one that writes the fields in the same way.
    DataSpec alone = job.spec->data;
    alone.train.reset();
    for (const FieldSpec& field : alone.fields) {
      Node own, told;
      format->field.Write(field, &own);
      FormatOfField(alone, field).field.Write(field, &told);
      CHECK(PrintFlow(own) == PrintFlow(told));
    }
    CHECK(DescribeSource(*job.spec->data.train)["format"] == format->name);
  }
}

TEST_CASE("the fields of a format refuse every transform that the format does not have") {
  for (const DataFormat* format : DataFormats()) {
    for (const TransformType* type : TransformTypes()) {
      INFO(format->name << " " << type->name);
      std::string mistakes;
      ReadFieldOf(*format, absl::StrCat("{transforms: [", type->example, "]}"), &mistakes);
      const bool has = std::find(format->transforms.begin(), format->transforms.end(),
                                 type->name) != format->transforms.end();
      CHECK(has != (absl::StrContains(mistakes, "is only for fields of ") ||
                    absl::StrContains(mistakes, "not built yet: key `transforms`")));
    }
  }
}

TEST_CASE("the kind of a field follows from its format, its type and its transforms") {
  const auto kinds = [](const std::string& format, const std::string& yaml) {
    std::string mistakes;
    const FieldSpec field = ReadFieldOf(*FindDataFormat(format), yaml, &mistakes);
    CHECK(mistakes == "");
    return FindDataFormat(format)->kind(field);
  };
  CHECK(kinds("idx", "{transforms: [{scale: 2}]}") == ValueKind::kReal);
  CHECK(kinds("synthetic", "{type: ids, ids: 3}") == ValueKind::kInteger);
  CHECK(kinds("synthetic", "{type: float}") == ValueKind::kReal);
  CHECK_FALSE(kinds("synthetic", "{type: label}"));
  CHECK(kinds("csv", "{column: a, type: int}") == ValueKind::kInteger);
  CHECK(kinds("csv", "{column: a, type: int, transforms: [{offset: 1}]}") == ValueKind::kInteger);
  CHECK(kinds("csv", "{column: a, type: int, transforms: [{offset: 0.5}]}") == ValueKind::kReal);
  CHECK(kinds("csv", "{column: a, type: string, transforms: [{map: {a: 1}}]}") ==
        ValueKind::kInteger);
  CHECK(kinds("csv", "{column: a, type: string, transforms: [{map: {a: 1.5}}]}") ==
        ValueKind::kReal);
  CHECK_FALSE(kinds("csv", "{column: a, type: string}"));
}

TEST_CASE("model.json has the bytes that every run's load.py expects") {
  SourceSpec csv;
  csv.format = "csv", csv.separator = "\t", csv.missing = {"?", ""};
  CHECK(DescribeSource(csv).dump() ==
        R"({"format":"csv","header":true,"separator":"\t","quoting":true,"missing":["?",""]})");
  CHECK(DescribeSource(SourceSpec{}).dump() == R"({"format":"idx"})");
  std::string mistakes;
  FieldSpec field = ReadFieldOf(
      *FindDataFormat("csv"),
      "{column: [a, b], type: string, default: x, transforms: [{map: {x: 0.5, y: 2}}, {scale: 2}, "
      "log1p, {bucketize: [1, 2.5]}, {hash: {buckets: 7}}, {vocabulary: {min_count: 3}}]}",
      &mistakes);
  field.name = "f";
  CHECK(mistakes == "");
  CHECK(DescribeField("csv", field).dump() ==
        R"({"name":"f","type":"string","columns":["a","b"],"list":true,"default":"x",)"
        R"("transforms":[{"type":"map","entries":[["x",0.5],["y",2.0]]},)"
        R"({"type":"scale","value":2.0},{"type":"log1p"},{"type":"bucketize","bounds":[1.0,2.5]},)"
        R"({"type":"hash","buckets":7},{"type":"vocabulary","min_count":3}]})");
}

TEST_CASE("the example of a jsonl source in docs/data.md is valid") {
  std::ostringstream text;
  text << std::ifstream(test::SourceDir() + "/docs/data.md").rdbuf();
  std::string page = text.str();
  page = page.substr(page.find("## Fields of a jsonl source"));
  const std::size_t begin = page.find("```yaml\n") + 8;
  const std::string data = page.substr(begin, page.find("```", begin) - begin);
  const ParsedJob job = ParseJob(
      absl::StrCat("apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: a}\n"
                   "spec:\n  ",
                   absl::StrReplaceAll(data, {{"\n", "\n  "}}),
                   "model: {inputs: {pixels: {shape: [4]}}, layers: [{name: d, type: dense, "
                   "units: 1, activation: sigmoid}], losses: {type: binary_crossentropy, "
                   "labels: income}}\n"
                   "  optimizer: {type: sgd}\n"),
      {.file_name = "job.yaml", .base_folder = "/jobs"});
  CHECK(Errors(job) == "");
  REQUIRE(job.spec);
  CHECK(job.spec->data.eval);
  CHECK(job.spec->data.fields.size() == 4);
}

TEST_CASE("a jsonl source has settings of its own, and mistakes are reported at their lines") {
  const auto refusal = [](const std::string& source, const std::string& field) {
    return Errors(ParseData(absl::StrCat("{train: {format: jsonl, ", source,
                                         "}, fields: {x: {column: a, type: float, ", field,
                                         "}, y: {column: c, type: int}}}")));
  };
  CHECK(refusal("path: x", "size: 3") == "");
  CHECK_THAT(refusal("header: true, path: x", "size: 3"),
             Catch::Contains("unknown key `header` in a jsonl source"));
  CHECK_THAT(refusal("missing: \"?\"", "size: 3"),
             Catch::Contains("missing key `path` in a jsonl source"));
  CHECK_THAT(refusal("path: x", "size: 5000"), Catch::Contains("`size`: expected an integer"));
  CHECK_THAT(refusal("path: x", "default: x"),
             Catch::Contains("`default`: a field of type float expects a number"));
  CHECK_THAT(refusal("path: x", "transforms: [{hash: {buckets: 3}}]"),
             Catch::Contains("transform `hash` takes a text or an integer"));
  CHECK_THAT(Errors(ParseData(
                 "{train: {format: jsonl, path: x}, fields: {x: {column: [a, b], type: float, "
                 "size: 2}, y: {column: c, type: int}}}")),
             Catch::Contains("job.yaml:5:91: `size` is the length of the list in one member"));
  // The text of a plan has no sources, so `size` must be written into it.
  DataSpec data;
  FieldSpec& list = data.fields.emplace_back();
  list.name = "x", list.type = "float", list.columns = {"a"}, list.size = 3;
  CHECK(FormatOfField(data, list).name == "jsonl");
  CHECK(DescribeField("jsonl", list)["size"] == 3);
  CHECK_FALSE(DescribeField("csv", list).contains("size"));
}

TEST_CASE("a split puts every example into exactly one of its two sources") {
  const SplitSpec none, train{10, 9, false}, eval{10, 9, true};
  for (std::uint64_t n = 0; n < 40; ++n) {
    CHECK(none.Takes(n));
    CHECK(eval.Takes(n) == (n % 10 == 9));
    CHECK(train.Takes(n) != eval.Takes(n));
  }
}

}  // namespace
}  // namespace evergrad::config
