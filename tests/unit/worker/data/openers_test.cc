// Tests that a worker implements each format and each transform that common/data_formats describes
// for job files.
#include <catch2/catch.hpp>
#include <fstream>
#include <set>

#include "common/base/status.h"
#include "common/data_formats/data_format.h"
#include "common/data_formats/transform_type.h"
#include "tests/support/temp_folder.h"
#include "worker/data/openers.h"
#include "worker/data/transforms.h"

namespace evergrad::worker {
namespace {

void Write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

config::FieldSpec Field(const std::string& name, const std::string& type) {
  config::FieldSpec field;
  field.name = name, field.type = type;
  return field;
}

TEST_CASE("every format of a job file has exactly one opener") {
  std::set<std::string> described, opened;
  for (const config::DataFormat* format : config::DataFormats()) described.insert(format->name);
  for (const Opener& opener : kOpeners) opened.insert(std::string(opener.format));
  CHECK(described == opened);
  CHECK(opened.size() == std::size(kOpeners));
  config::SourceSpec source;
  source.format = "parquet";
  const absl::Status status = OpenDataset(source, {}, nullptr).status();
  CHECK(BlameOf(status) == Blame::kUser);
  CHECK_THAT(std::string(status.message()), Catch::Contains("unknown data format: got=parquet"));
}

TEST_CASE("a field has the dtype in its format's descriptor") {
  const test::TempFolder folder;
  Write(folder / "images", std::string("\0\0\x08\x02\0\0\0\1\0\0\0\1x", 13));
  Write(folder / "labels", std::string("\0\0\x08\x01\0\0\0\1\2", 9));
  Write(folder / "x.csv", "a,b\n1,2.5\n");
  config::SourceSpec idx;
  idx.images = folder / "images", idx.labels = folder / "labels";
  Write(folder / "x.jsonl", "{\"a\": 1, \"b\": 2.5}\n");
  config::SourceSpec jsonl;
  jsonl.format = "jsonl", jsonl.path = folder / "x.jsonl";
  config::SourceSpec csv;
  csv.format = "csv", csv.path = folder / "x.csv";
  config::SourceSpec synthetic;
  synthetic.format = "synthetic", synthetic.examples = 1;
  config::FieldSpec number = Field("number", "int"), real = Field("real", "float");
  number.columns = {"a"}, real.columns = {"b"};
  config::FieldSpec ids = Field("ids", "ids");
  ids.ids = 5;
  const std::vector<std::pair<config::SourceSpec, std::vector<config::FieldSpec>>> cases = {
      {idx, {Field("image", "")}},
      {csv, {number, real}},
      {jsonl, {number, real}},
      {synthetic, {ids, Field("x", "float")}}};
  CHECK(cases.size() == config::DataFormats().size());
  for (const auto& [source, fields] : cases) {
    INFO(source.format);
    const auto data = OpenDataset(source, fields, nullptr);
    INFO(data.status());
    REQUIRE(data.ok());
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const auto kind = config::FindDataFormat(source.format)->kind(fields[f]);
      REQUIRE(kind);
      CHECK(((*data)->fields()[f].dtype == tensor::DType::kInt64) ==
            (*kind == config::ValueKind::kInteger));
    }
  }
}

TEST_CASE("every transform has a computation with a result of the described kind") {
  const Value values[] = {TextValue("7"), IntegerValue(7), RealValue(7.5)};
  for (const config::TransformType* type : config::TransformTypes()) {
    config::Transform transform;
    transform.type = type->name;
    transform.value = 2, transform.bounds = {1, 2}, transform.buckets = 10;
    transform.entries = {{"7", 0.5}};
    for (const Value& value : values) {
      INFO(type->name << " of " << config::NameOf(value.kind));
      const auto gives = config::KindAfter(transform, value.kind);
      const auto step = MakeTransformStep(transform, value.kind);
      CHECK(step.ok() == (gives.ok() && !type->learned));
      if (!step.ok()) continue;
      const auto result = (*step)(value);
      REQUIRE(result.ok());
      CHECK(result->kind == *gives);
    }
  }
}

TEST_CASE("a transform without a result reports what it expected") {
  config::Transform map, offset;
  map.type = "map", map.entries = {{"yes", 1}};
  offset.type = "offset", offset.value = 2;
  const auto look_up = MakeTransformStep(map, config::ValueKind::kText);
  const auto add = MakeTransformStep(offset, config::ValueKind::kInteger);
  REQUIRE(look_up.ok());
  REQUIRE(add.ok());
  CHECK((*look_up)(TextValue("yes"))->integer == 1);
  CHECK((*look_up)(TextValue("no")).status().message() ==
        "expected one of the texts of `map`, got `no`");
  CHECK((*add)(IntegerValue(-3))->integer == -1);
  CHECK((*add)(IntegerValue(INT64_MAX - 1)).status().message() ==
        "expected an integer of 64 bits after the offset, got `9223372036854775…`");
}

}  // namespace
}  // namespace evergrad::worker
