// Tests jsonl files. Every value must be converted and transformed like the same value in a csv
// file. Every fault must be a user error that names file:line and the member.
#include <zlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/random/philox.h"
#include "tests/support/temp_folder.h"
#include "worker/data/openers.h"

namespace evergrad::worker {
namespace {

using test::TempFolder;

void Write(const std::string& path, const std::string& bytes, bool gz = false) {
  if (!gz) {
    std::ofstream(path, std::ios::binary) << bytes;
    return;
  }
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

config::Transform T(const std::string& type, double value = 1) {
  config::Transform t;
  t.type = type, t.value = value;
  return t;
}
config::FieldSpec Field(const std::string& name, const std::string& type,
                        std::vector<std::string> columns,
                        std::vector<config::Transform> transforms = {}) {
  config::FieldSpec field;
  field.name = name, field.type = type, field.list = columns.size() > 1;
  field.columns = std::move(columns), field.transforms = std::move(transforms);
  return field;
}
config::FieldSpec List(const std::string& name, const std::string& type, std::uint64_t size) {
  config::FieldSpec field = Field(name, type, {name});
  field.size = size;
  return field;
}
config::SourceSpec Source(const std::string& format, const std::string& path) {
  config::SourceSpec source;
  source.format = format, source.path = path;
  if (format == "jsonl") source.missing = {};
  return source;
}

// Returns the values of all examples, by field.
std::map<std::string, std::vector<double>> ReadAll(const Dataset& data) {
  std::vector<std::uint64_t> indices(data.examples());
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = i;
  std::vector<tensor::AlignedBuffer> buffers;
  std::vector<std::span<std::byte>> to;
  for (const worker::Field& field : data.fields()) {
    tensor::AlignedBuffer& buffer = buffers.emplace_back(indices.size() * field.example_bytes());
    to.emplace_back(buffer.data(), buffer.size());
  }
  REQUIRE(data.Read(indices, to).ok());
  std::map<std::string, std::vector<double>> values;
  for (std::size_t f = 0; f < buffers.size(); ++f) {
    std::vector<double>& all = values[data.fields()[f].name];
    if (data.fields()[f].dtype == tensor::DType::kInt64)
      for (const std::int64_t v : Int64s(buffers[f])) all.push_back(static_cast<double>(v));
    else
      for (const float v : buffers[f].floats()) all.push_back(v);
  }
  return values;
}

std::string Fault(const std::string& text, const std::vector<config::FieldSpec>& fields,
                  const std::vector<std::string>& missing = {}) {
  const TempFolder folder;
  Write(folder / "x.jsonl", text);
  config::SourceSpec source = Source("jsonl", folder / "x.jsonl");
  source.missing = missing;
  const auto data = OpenDataset(source, fields, nullptr, {2000});
  if (data.ok()) return "none";
  CHECK(BlameOf(data.status()) == Blame::kUser);
  return std::string(data.status().message());
}

TEST_CASE("a jsonl file gives the examples of a csv file with the same data") {
  // The records are random, with missing values, quotes and escapes. The gzip file must be read
  // like the plain one, and the evaluation data must use the vocabulary of the training data.
  const TempFolder folder;
  const std::string words[] = {"Bern", "Genf", "na\xc3\xafve", "a,b", "\"", "Z\xc3\xbcrich"};
  const std::string escaped[] = {"Bern", "Genf", "na\\u00efve", "a,b", "\\\"", "Z\xc3\xbcrich"};
  std::string csv = "age,city,user,w1,w2,label\n", jsonl = "\xef\xbb\xbf";
  for (std::uint64_t i = 0; i < 500; ++i) {
    const std::uint64_t draw = random::Bits64(7, i);
    const std::size_t word = draw % 6;
    const bool no_age = (draw >> 8) % 5 == 0, no_city = (draw >> 16) % 7 == 0;
    const auto age = static_cast<std::int64_t>((draw >> 24) % 80);
    const double w1 = static_cast<double>((draw >> 32) % 1000) / 8 - 60;
    const std::string quoted = words[word] == "\"" ? "\"\"\"\"" : "\"" + words[word] + "\"";
    absl::StrAppend(&csv, no_age ? "" : absl::StrCat(age), ",", no_city ? "" : quoted, ",", i * 3,
                    ",", w1, ",1e-3,", i % 2 == 0 ? "yes" : "no", "\n");
    absl::StrAppend(&jsonl, "{ \"label\":\"", i % 2 == 0 ? "yes" : "no", "\", \"user\": ", i * 3);
    if (!no_age)
      absl::StrAppend(&jsonl, ",\"age\": ", age);
    else if (i % 2 == 0)
      absl::StrAppend(&jsonl, ",\"age\": null");
    if (!no_city) absl::StrAppend(&jsonl, ",\"city\" :\"", escaped[word], "\"");
    absl::StrAppend(&jsonl, ",\"w1\":", w1, ",\"w2\":1e-3,\"w\":[", w1, ",0.001],",
                    "\"other\":{\"city\":[1,{}],\"w1\":\"x\"}}", i % 3 == 0 ? "\r\n" : "\n",
                    i % 50 == 0 ? " \n" : "");
  }
  config::Transform vocabulary = T("vocabulary"), hash = T("hash"), map = T("map"),
                    bucketize = T("bucketize");
  vocabulary.min_count = 60, hash.buckets = 97, bucketize.bounds = {18, 40};
  map.entries = {{"yes", 1}, {"no", 0}};
  config::FieldSpec age = Field("age", "float", {"age"}, {T("scale", 0.5), T("log1p")});
  age.default_text = "40";
  config::FieldSpec bucket = Field("bucket", "int", {"age"}, {bucketize, T("offset", 2)});
  bucket.default_text = "17";
  const std::vector<config::FieldSpec> fields = {
      age,
      bucket,
      Field("city", "string", {"city"}, {vocabulary, T("offset", 10)}),
      Field("user", "int", {"user"}, {hash}),
      Field("w", "float", {"w1", "w2"}, {T("offset", 1)}),
      Field("label", "string", {"label"}, {map})};
  const bool gz = GENERATE(false, true), split = GENERATE(false, true);
  std::map<std::string, std::vector<double>> train[2], eval[2];
  std::vector<FieldVocabulary> vocabularies[2];
  for (const int json : {0, 1}) {
    Write(folder / "x", json ? jsonl : csv, gz);
    config::SourceSpec source = Source(json ? "jsonl" : "csv", folder / "x");
    if (split) source.split = {10, 9, false};
    const auto opened = OpenDataset(source, fields, nullptr);
    INFO(opened.status());
    REQUIRE(opened.ok());
    CHECK((*opened)->examples() == (split ? 450 : 500));
    CHECK((*opened)->Warnings().empty());
    CHECK((*opened)->fields()[4].shape == tensor::Shape{2});
    train[json] = ReadAll(**opened);
    vocabularies[json] = (*opened)->Vocabularies();
    source.split.taken = split;
    const auto other = OpenDataset(source, fields, opened->get());
    REQUIRE(other.ok());
    eval[json] = ReadAll(**other);
    CHECK((split == ((*other)->Fingerprint() != (*opened)->Fingerprint())));
  }
  CHECK((train[0] == train[1]));
  CHECK((eval[0] == eval[1]));
  REQUIRE(vocabularies[1].size() == 1);
  CHECK(vocabularies[0][0].words == vocabularies[1][0].words);
  CHECK(vocabularies[1][0].words.size() > 1);
}

TEST_CASE("a list in a member gives a field of its size, and may have missing elements") {
  const TempFolder folder;
  Write(folder / "x.jsonl",
        "{\"w\": [1, 2.5, -3e1], \"ids\": [7, 8], \"0\": 4}\n"
        "{\"w\": [1, null, \"?\"], \"0\": 5, \"ids\": null}");
  config::FieldSpec w = List("w", "float", 3), ids = List("ids", "int", 2);
  w.default_text = "9";
  ids.default_text = "-1";
  config::SourceSpec source = Source("jsonl", folder / "x.jsonl");
  source.missing = {"?"};
  const auto data = OpenDataset(source, {w, ids, Field("n", "int", {"0"})}, nullptr);
  INFO(data.status());
  REQUIRE(data.ok());
  CHECK((*data)->fields()[0].shape == tensor::Shape{3});
  CHECK((*data)->fields()[2].shape == tensor::Shape{});
  auto values = ReadAll(**data);
  CHECK(values["w"] == std::vector<double>{1, 2.5, -30, 1, 9, 9});
  CHECK(values["ids"] == std::vector<double>{7, 8, -1, -1});
  CHECK(values["n"] == std::vector<double>{4, 5});
}

TEST_CASE("a list of one element makes a field of shape [1]") {
  const TempFolder folder;
  Write(folder / "x.jsonl", "{\"w\": [3]}\n");
  const auto data =
      OpenDataset(Source("jsonl", folder / "x.jsonl"), {List("w", "int", 1)}, nullptr);
  REQUIRE(data.ok());
  CHECK((*data)->fields()[0].shape == tensor::Shape{1});
}

TEST_CASE("every value of a wrong type is a user's error with file, line, member and value") {
  const std::string good = "{\"a\": 1}\n\n";
  const auto fault = [&](const std::string& value, const config::FieldSpec& field) {
    return Fault(absl::StrCat(good, "{\"a\": ", value, "}\n"), {field});
  };
  const config::FieldSpec integer = Field("f", "int", {"a"}), real = Field("f", "float", {"a"});
  struct Case {
    const char* value;
    const config::FieldSpec& field;
    const char* words;
  };
  const Case cases[] = {
      {"\"39\"", integer, "expected an integer of 64 bits, got the text `39`"},
      {"2.0", integer, "expected an integer of 64 bits, got the number 2"},
      {"9223372036854775808", integer,
       "expected an integer of 64 bits, got the number 9223372036854775808"},
      {"true", integer, "expected an integer of 64 bits, got true"},
      {"[1]", integer, "expected an integer of 64 bits, got a list"},
      {"{\"a\": 1}", real, "expected a finite number, got an object"},
      {"\"x\"", real, "expected a finite number, got the text `x`"},
      {"1e39", real, "the value is beyond the range of float32"},
      {"null", real, "the value is missing (null) and the field has no `default`"},
      {"\"$6$salt$0123456789abcdef\"", real, "got the text `$6$salt$01234567…`"},
      {"\"\\u001b[2J\\u202e\"", real, "got the text `\\x1b[2J\\u202e`"}};
  for (const Case& c : cases) {
    INFO(c.value);
    CHECK_THAT(fault(c.value, c.field),
               Catch::Contains("x.jsonl:3:a: field `f`: ") && Catch::Contains(c.words));
  }
  CHECK_THAT(Fault("{\"b\": 1}", {integer}),
             Catch::Contains("x.jsonl:1:a: field `f`: the value is missing (no such member)"));
  config::FieldSpec text = Field("f", "string", {"a"}, {T("hash")});
  CHECK_THAT(Fault("{\"a\": 1}", {text}), Catch::Contains("expected a text, got the number 1"));
  CHECK_THAT(Fault("{\"a\": \"?\"}", {integer}, {"?"}),
             Catch::Contains("the value is missing (the text `?`)"));
  CHECK_THAT(
      Fault("{\"a\": [1, 2]}", {List("a", "int", 3)}),
      Catch::Contains("x.jsonl:1:a: field `a`: expected a list of 3 values, got a list of 2"));
  CHECK_THAT(Fault("{\"a\": 1}", {List("a", "int", 3)}),
             Catch::Contains("expected a list of 3 values, got the number 1"));
  CHECK_THAT(Fault("{\"a\": [1, [2], 3]}", {List("a", "int", 3)}),
             Catch::Contains("expected an integer of 64 bits, got a list"));
  std::string many;
  for (int i = 0; i < 300; ++i) many += "{\"a\": 1}\n";
  CHECK_THAT(Fault(many, {integer}), Catch::Contains("data set too large: file="));
}

TEST_CASE("every line that is no JSON object is a user's error with a short quotation") {
  struct Case {
    std::string line, words;
  };
  const std::string deep(65, '['), shut(65, ']');
  const std::vector<Case> cases = {
      {"{\"a\": 1,}", "the line is not JSON at byte 8: got `}`"},
      {"{\"a\": 1} {\"a\": 2}", "the line is not JSON at byte 9"},
      {"{\"a\": 1", "the line ends in the middle of a JSON object"},
      {"{\"a\": \"x", "the line ends in the middle of a JSON object"},
      {"{\"a\": 'root:$6$salt$0123456789abcdef'}", "at byte 6: got `'root:$6$salt$01…`"},
      {"{\"a\": NaN}", "the line is not JSON at byte 6"},
      {"{\"a\": 01}", "the line is not JSON at byte 7"},
      {"{\"a\": 1e999}", "the line is not JSON at byte"},
      {"{\"a\": 1} // x", "the line is not JSON at byte 9"},
      {"{\"a\": \"\\ud800\"}", "the line is not JSON at byte"},
      {"{\"a\": \"\xff\"}", "got `\\xff"},
      {"{\"a\": \"\t\"}", "got `\\t"},
      {std::string("{\"a\": 1}\0x", 10), "the line has a NUL byte"},
      {"\xef\xbb\xbf{\"a\": 1}", "a byte order mark may stand only at the start of the file"},
      {"[1]", "expected a JSON object, got a list"},
      {"17", "expected a JSON object, got the number 17"},
      {"null", "expected a JSON object, got null"},
      {"{\"a\": 1, \"b\": 2, \"a\": 3}", "duplicate member `a`"},
      {"{\"a\": 1, \"b\": " + deep + shut + "}", "nested deeper than 64"},
      {"{\"a\": 1, \"b\": " + std::string(500000, '[') + "}", "nested deeper than 64"},
      {"{\"a\": 1, \"b\": \"" + std::string(1 << 20, 'x') + "\"}",
       "the line is longer than 1048576 bytes"}};
  for (const Case& c : cases) {
    INFO(c.line.substr(0, 60));
    const std::string message =
        Fault("{\"a\": 1}\n\n" + c.line + "\n{\"a\": 2}\n", {Field("f", "int", {"a"})});
    CHECK_THAT(message, Catch::Contains("bad record: ") && Catch::Contains("x.jsonl:3: ") &&
                            Catch::Contains(c.words));
    CHECK(message.size() < 300);
    CHECK_FALSE(absl::StrContains(message, "0123456789"));
  }
  CHECK_THAT(Fault("", {Field("f", "int", {"a"})}),
             Catch::Contains("data file without an example"));
  CHECK_THAT(Fault("{\"a\": 1}\n" + std::string(3 << 20, ' '), {Field("f", "int", {"a"})}),
             Catch::Contains("x.jsonl:2: the line is longer than"));
}

TEST_CASE("unused members may be nested up to the limit and may be duplicates") {
  const std::string nested = std::string(63, '[') + std::string(63, ']');
  CHECK(Fault("{\"b\": " + nested + ", \"a\": 1, \"b\": {\"a\": 2}}", {Field("f", "int", {"a"})}) ==
        "none");
}

TEST_CASE("lines may cross the reader's blocks, and the longest permitted line is read") {
  const TempFolder folder;
  std::string text;
  std::vector<double> want;
  for (std::uint64_t i = 0; text.size() < 3000000; ++i) {
    const std::uint64_t draw = random::Bits64(3, i);
    const std::size_t length = draw % 4001 == 0 ? (1u << 20) - 100 : draw % 300;
    absl::StrAppend(&text, "{\"b\": \"", std::string(length, 'x'), "\", \"a\": ", i, "}",
                    draw >> 63 ? "\r\n" : "\n");
    want.push_back(static_cast<double>(i));
  }
  const std::string longest = "{\"a\": 1, \"b\": \"\"}";
  absl::StrAppend(&text, "{\"a\": 1, \"b\": \"", std::string((1u << 20) - longest.size(), 'y'),
                  "\"}");
  want.push_back(1);
  Write(folder / "x.jsonl", text);
  const auto data =
      OpenDataset(Source("jsonl", folder / "x.jsonl"), {Field("f", "int", {"a"})}, nullptr);
  INFO(data.status());
  REQUIRE(data.ok());
  CHECK((ReadAll(**data)["f"] == want));
}

TEST_CASE("a member that is absent from all lines causes a warning") {
  const TempFolder folder;
  Write(folder / "x.jsonl", "{\"age\": 1}\n{\"age\": 2}\n");
  config::FieldSpec field = Field("f", "int", {"agee"});
  field.default_text = "0";
  const auto data = OpenDataset(Source("jsonl", folder / "x.jsonl"), {field}, nullptr);
  REQUIRE(data.ok());
  REQUIRE((*data)->Warnings().size() == 1);
  CHECK_THAT((*data)->Warnings()[0],
             Catch::Contains("no line of a jsonl file has the member `agee`"));
}

TEST_CASE("a damaged or foreign jsonl file is refused like any data file") {
  const TempFolder folder;
  CHECK_THAT(
      std::string(OpenDataset(Source("jsonl", "/nowhere/x.jsonl"), {}, nullptr).status().message()),
      Catch::Contains("cannot open data file: file=/nowhere/x.jsonl"));
  std::string text;
  for (std::uint64_t i = 0; i < 20000; ++i) absl::StrAppend(&text, "{\"a\": ", i * i, "}\n");
  Write(folder / "x.gz", text, true);
  std::filesystem::resize_file(folder / "x.gz", std::filesystem::file_size(folder / "x.gz") / 2);
  CHECK_THAT(
      std::string(OpenDataset(Source("jsonl", folder / "x.gz"), {Field("f", "int", {"a"})}, nullptr)
                      .status()
                      .message()),
      Catch::Contains("damaged data file"));
  Write(folder / "x.jsonl", "{\"a\": 1}\n");
  const DataOptions options{.roots = fs::Roots::Only({folder / "data"}, "--data-root")};
  CHECK(absl::IsPermissionDenied(
      OpenDataset(Source("jsonl", folder / "x.jsonl"), {Field("f", "int", {"a"})}, nullptr, options)
          .status()));
}

}  // namespace
}  // namespace evergrad::worker
