// Tests that every record is read as RFC 4180 defines it, and that every value is converted to its
// type and transformed. Every fault must be a user error that names file:line and the column.
#include <zlib.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/random/philox.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/temp_folder.h"
#include "worker/data/csv_records.h"
#include "worker/data/openers.h"
#include "worker/data/typed_value.h"

namespace evergrad::worker {
namespace {

using test::TempFolder;
using Record = std::vector<std::string>;

void Write(const std::string& path, const std::string& bytes, bool gz = false) {
  if (!gz) {
    std::ofstream(path, std::ios::binary) << bytes;
    return;
  }
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

struct Parsed {
  std::vector<Record> records;
  std::vector<std::uint64_t> lines;
  absl::Status error;
};
Parsed ParseText(const std::string& text, const std::string& separator = ",", bool quoting = true,
                 bool gz = false) {
  TempFolder folder;
  Write(folder / "x.csv", text, gz);
  auto records = CsvRecords::Open(folder / "x.csv", separator, quoting);
  REQUIRE(records.ok());
  Parsed parsed;
  std::vector<absl::string_view> fields;
  while (true) {
    const auto more = (*records)->Next(&fields);
    if (!more.ok()) {
      parsed.error = more.status();
      return parsed;
    }
    if (!*more) return parsed;
    Record& record = parsed.records.emplace_back();
    for (const absl::string_view field : fields) record.emplace_back(field);
    parsed.lines.push_back((*records)->line());
  }
}

TEST_CASE("records are parsed as RFC 4180 specifies") {
  const bool gz = GENERATE(false, true);
  const auto read = [&](const std::string& text, const std::string& separator = ",") {
    const Parsed parsed = ParseText(text, separator, true, gz);
    CHECK(parsed.error.ok());
    return parsed.records;
  };
  CHECK(read("").empty());
  CHECK(read("\n\r\n\n").empty());
  CHECK(read("a,b\nc,d") == std::vector<Record>{{"a", "b"}, {"c", "d"}});
  CHECK(read("a,b\r\nc,d\r\n") == std::vector<Record>{{"a", "b"}, {"c", "d"}});
  CHECK(read("\xef\xbb\xbf"
             "a,\n,b\n") == std::vector<Record>{{"a", ""}, {"", "b"}});
  CHECK(read("\"a,\"\"b\"\"\",\"\"\n\"line\nend\",x\n") ==
        std::vector<Record>{{"a,\"b\"", ""}, {"line\nend", "x"}});
  CHECK(read("\"\"\"\",\"a\"\"\",\"\"\"b\"") == std::vector<Record>{{"\"", "a\"", "\"b"}});
  CHECK(read("39, State-gov, \"x, y\"\n", ", ") ==
        std::vector<Record>{{"39", "State-gov", "x, y"}});
  CHECK(read("a,b\r") == std::vector<Record>{{"a", "b"}});
  CHECK(read("a\rb,c\n") == std::vector<Record>{{"a\rb", "c"}});
  CHECK(ParseText("a\n\n\"b\nc\"\nd\n").lines == std::vector<std::uint64_t>{1, 3, 5});
  CHECK(ParseText("5\" disk,a\"b\n", ",", false).records ==
        std::vector<Record>{{"5\" disk", "a\"b"}});
}

TEST_CASE("an error in a record names file and line") {
  const auto fault = [](const std::string& text) {
    const Parsed parsed = ParseText(text);
    REQUIRE_FALSE(parsed.error.ok());
    CHECK(BlameOf(parsed.error) == Blame::kUser);
    return std::string(parsed.error.message());
  };
  CHECK_THAT(fault("a,b\n\"c,d\n"), Catch::Contains("x.csv:2: a closing quote is missing"));
  CHECK_THAT(fault("a\n\"b\"c\n"),
             Catch::Contains("x.csv:2: text after the closing quote of column 0"));
  CHECK_THAT(fault("a\nb,c\"d\n"),
             Catch::Contains("x.csv:2: a quote inside column 1; `quoting: false`"));
  CHECK_THAT(fault("a\n" + std::string(kRecordBytesMax + 1000, 'x') + "\n"),
             Catch::Contains("x.csv:2: the record is longer than"));
  CHECK_THAT(fault("a\n\"" + std::string(3 * kRecordBytesMax, '\n') + "\n"),
             Catch::Contains("x.csv:2: the record is longer than"));
  CHECK_THAT(fault(std::string(kRecordColumnsMax + 1, ',') + "\n"),
             Catch::Contains("x.csv:1: the record has more columns than"));
  CHECK_THAT(std::string(CsvRecords::Open("/nowhere/x.csv", ",", true).status().message()),
             Catch::Contains("cannot open data file: file=/nowhere/x.csv"));
  TempFolder folder;
  Write(folder / "x.gz", std::string(100000, 'a'), true);
  std::filesystem::resize_file(folder / "x.gz", std::filesystem::file_size(folder / "x.gz") / 2);
  auto cut = CsvRecords::Open(folder / "x.gz", ",", true);
  std::vector<absl::string_view> fields;
  absl::Status status = cut.status();
  if (cut.ok()) status = (*cut)->Next(&fields).status();
  CHECK_THAT(std::string(status.message()), Catch::Contains("damaged data file"));
}

// A second, simple reader that follows the same rules. It reads a whole text at once.
std::vector<Record> Dumb(const std::string& text, const std::string& separator) {
  std::vector<Record> records;
  std::size_t at = 0;
  while (at < text.size()) {
    if (text[at] == '\n') {
      ++at;
      continue;
    }
    Record record(1);
    while (true) {
      if (at < text.size() && text[at] == '"') {
        for (++at; text[at] != '"' || (at + 1 < text.size() && text[at + 1] == '"'); ++at) {
          if (text[at] == '"') ++at;
          record.back() += text[at];
        }
        ++at;
      }
      while (at < text.size() && text[at] != '\n' &&
             text.compare(at, separator.size(), separator) != 0)
        record.back() += text[at++];
      if (at >= text.size() || text[at] == '\n') break;
      at += separator.size();
      record.emplace_back();
    }
    ++at;
    records.push_back(record);
  }
  return records;
}

TEST_CASE("records that cross the reader's blocks are parsed like others") {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const std::string separator = seed % 2 == 0 ? "," : "::";
    std::string text;
    for (std::uint64_t i = 0; text.size() < 600000; ++i) {
      const std::uint64_t draw = random::Bits64(seed, i);
      const std::string word(draw % 41 + (draw % 5003 == 0 ? 90000 : 0),
                             static_cast<char>('a' + draw % 26));
      if (draw >> 60 < 4) {
        text += "\"" + word + ((draw >> 50) % 2 == 0 ? "\"\"" : separator) +
                ((draw >> 51) % 2 == 0 ? "\n" : "") + word + "\"";
      } else {
        text += word;
      }
      text += (draw >> 40) % 7 == 0 ? "\n" : separator;
    }
    const Parsed parsed = ParseText(text, separator, true, seed % 3 == 0);
    INFO(parsed.error);
    CHECK(parsed.error.ok());
    CHECK((parsed.records == Dumb(text, separator)));
  }
}

// ---- data sets

config::Transform T(const std::string& type, double value = 1) {
  config::Transform t;
  t.type = type, t.value = value;
  return t;
}
config::Transform Vocabulary(std::uint64_t min_count) {
  config::Transform t = T("vocabulary");
  t.min_count = min_count;
  return t;
}
config::Transform Map(std::vector<std::pair<std::string, double>> entries) {
  config::Transform t = T("map");
  t.entries = std::move(entries);
  return t;
}
config::Transform Hash(std::uint64_t buckets) {
  config::Transform t = T("hash");
  t.buckets = buckets;
  return t;
}
config::Transform Bucketize(std::vector<double> bounds) {
  config::Transform t = T("bucketize");
  t.bounds = std::move(bounds);
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
config::SourceSpec Csv(const std::string& path) {
  config::SourceSpec source;
  source.format = "csv", source.path = path;
  return source;
}

struct Table {
  std::map<std::string, std::vector<std::int64_t>> ints;
  std::map<std::string, std::vector<float>> reals;
};
Table ReadAll(const Dataset& data) {
  std::vector<std::uint64_t> indices(data.examples());
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = i;
  std::vector<tensor::AlignedBuffer> buffers;
  std::vector<std::span<std::byte>> to;
  for (const worker::Field& field : data.fields()) {
    tensor::AlignedBuffer& buffer = buffers.emplace_back(indices.size() * field.example_bytes());
    to.emplace_back(buffer.data(), buffer.size());
  }
  REQUIRE(data.Read(indices, to).ok());
  Table table;
  for (std::size_t f = 0; f < buffers.size(); ++f) {
    if (data.fields()[f].dtype == tensor::DType::kInt64) {
      const auto values = Int64s(buffers[f]);
      table.ints[data.fields()[f].name].assign(values.begin(), values.end());
    } else {
      const auto values = buffers[f].floats();
      table.reals[data.fields()[f].name].assign(values.begin(), values.end());
    }
  }
  return table;
}

TEST_CASE(
    "columns become typed fields, by number or by the header's name, with transforms in order") {
  TempFolder folder;
  Write(folder / "x.csv",
        "user,city,age,w1,w2,label\n"
        "7,Bern,18,1,2.5,yes\n"
        "-3,?,25,3,-4,no\n"
        "7,Bern,60,0,1e2,yes\n"
        "9, Genf ,17.5,-1,0,no\n");
  config::SourceSpec source = Csv(folder / "x.csv");
  source.missing = {"?"};
  config::FieldSpec filled =
      Field("filled", "string", {"city"}, {Map({{"Bern", 1.5}, {" Genf ", 2}, {"none", -1}})});
  filled.default_text = "none";
  const auto data = OpenCsv(source,
                            {Field("user", "int", {"0"}),
                             Field("city", "string", {"city"}, {Vocabulary(2), T("offset", 10)}),
                             filled, Field("age", "float", {"age"}, {Bucketize({18, 25, 40})}),
                             Field("w", "float", {"w1", "4"}, {T("offset", 1), T("scale", 0.5)}),
                             Field("log", "int", {"w1"}, {T("log1p")}),
                             Field("label", "string", {"label"}, {Map({{"yes", 1}, {"no", 0}})}),
                             Field("bucket", "int", {"user"}, {Hash(1000)})},
                            nullptr);
  INFO(data.status());
  REQUIRE(data.ok());
  CHECK((*data)->examples() == 4);
  CHECK((*data)->fields()[0].shape == tensor::Shape{});
  CHECK((*data)->fields()[4].shape == tensor::Shape{2});
  Table t = ReadAll(**data);
  CHECK(t.ints["user"] == std::vector<std::int64_t>{7, -3, 7, 9});
  // Genf occurs only once, so it is not in the vocabulary. A missing value counts as an unseen one.
  CHECK(t.ints["city"] == std::vector<std::int64_t>{11, 10, 11, 10});
  CHECK(t.reals["filled"] == std::vector<float>{1.5f, -1, 1.5f, 2});
  // A value that is equal to a bound belongs to the bucket above this bound.
  CHECK(t.ints["age"] == std::vector<std::int64_t>{1, 2, 3, 0});
  CHECK(t.reals["w"] == std::vector<float>{1, 1.75f, 2, -1.5f, 0.5f, 50.5f, 0, 0.5f});
  CHECK(t.reals["log"] ==
        std::vector<float>{std::log1p(1.0f), std::log1p(3.0f), 0, -std::log1p(1.0f)});
  CHECK(t.ints["label"] == std::vector<std::int64_t>{1, 0, 1, 0});
  CHECK(t.ints["bucket"][0] == t.ints["bucket"][2]);
  CHECK(t.ints["bucket"][0] != t.ints["bucket"][1]);
  for (const std::int64_t bucket : t.ints["bucket"]) CHECK((bucket >= 0 && bucket < 1000));
  // The bucket of a text or number must be the same in every release.
  CHECK(t.ints["bucket"][0] == static_cast<std::int64_t>(random::KeyOf(0, "7") % 1000));

  // Examples can be read in any order. The reader must refuse a number beyond the last example.
  std::vector<std::int64_t> user(3);
  std::vector<std::span<std::byte>> to(8);
  std::vector<std::vector<std::byte>> rest;
  for (std::size_t f = 0; f < 8; ++f) rest.emplace_back(3 * (*data)->fields()[f].example_bytes());
  for (std::size_t f = 0; f < 8; ++f) to[f] = rest[f];
  to[0] = std::as_writable_bytes(std::span(user));
  REQUIRE((*data)->Read({3, 1, 3}, to).ok());
  CHECK(user == std::vector<std::int64_t>{9, -3, 9});
  CHECK_FALSE((*data)->Read({3, 4, 3}, to).ok());
  CHECK_FALSE((*data)->Read({3}, to).ok());
}

TEST_CASE("the hash of a text or an integer is the one that docs/data.md specifies") {
  // These values are in the documentation, so that other programs can compute the same ids.
  struct Vector {
    const char* text;
    const char* type;
    std::int64_t of_1000, of_2_32;
  };
  const Vector vectors[] = {{"\"\"", "string", 883, 2721479699},
                            {"a", "string", 490, 2787691650},
                            {"United-States", "string", 446, 1447682758},
                            {"unknown", "string", 551, 4118101095},
                            {"0", "int", 978, 337596258},
                            {"39", "int", 173, 245289837},
                            {"39", "string", 173, 245289837},
                            {"-1", "int", 228, 1628933796},
                            {"na\xc3\xafve", "string", 923, 2545462763}};
  for (const Vector& vector : vectors) {
    for (const auto& [buckets, want] : {std::pair{std::uint64_t{1000}, vector.of_1000},
                                        std::pair{std::uint64_t{1} << 32, vector.of_2_32}}) {
      const TempFolder folder;
      Write(folder / "x.csv", absl::StrCat(vector.text, ",x\n"));
      config::SourceSpec source;
      source.format = "csv";
      source.path = folder / "x.csv";
      source.header = false;
      source.missing = {"nothing is missing"};
      config::FieldSpec field;
      field.name = "hashed";
      field.columns = {"0"};
      field.type = vector.type;
      config::Transform hash;
      hash.type = "hash";
      hash.buckets = buckets;
      field.transforms = {hash};
      const auto data = OpenCsv(source, {field}, nullptr);
      INFO(vector.text << " " << buckets << " " << data.status());
      REQUIRE(data.ok());
      std::int64_t got = -1;
      REQUIRE((*data)->Read({0}, {std::as_writable_bytes(std::span(&got, 1))}).ok());
      CHECK(got == want);
    }
  }
}

TEST_CASE("the vocabularies of the training data are available in order of their ids") {
  const TempFolder folder;
  Write(folder / "x.csv", "b,1\na,2\nb,3\nc,3\n");
  config::SourceSpec source;
  source.format = "csv";
  source.path = folder / "x.csv";
  source.header = false;
  config::FieldSpec word, number;
  word.name = "word";
  word.columns = {"0"};
  word.type = "string";
  number.name = "number";
  number.columns = {"1"};
  number.type = "int";
  config::Transform vocabulary;
  vocabulary.type = "vocabulary";
  word.transforms = {vocabulary};
  const auto train = OpenCsv(source, {number, word}, nullptr);
  REQUIRE(train.ok());
  const std::vector<FieldVocabulary> made = (*train)->Vocabularies();
  REQUIRE(made.size() == 1);
  CHECK(made[0].field == "word");
  CHECK(made[0].words == std::vector<std::string>{"b", "a", "c"});
}

TEST_CASE(
    "a vocabulary comes from the training data, ordered by count and text, and evaluation uses the "
    "same") {
  TempFolder folder;
  Write(folder / "train.csv", "b\na\nc\nb\na\nd\nb\nc\n");
  Write(folder / "eval.csv", "x\nc\nb\nd\na\n");
  const std::vector<config::FieldSpec> fields = {Field("w", "string", {"0"}, {Vocabulary(2)})};
  config::SourceSpec source = Csv(folder / "train.csv");
  source.header = false;
  const auto train = OpenCsv(source, fields, nullptr);
  REQUIRE(train.ok());
  CHECK(ReadAll(**train).ints["w"] == std::vector<std::int64_t>{1, 2, 3, 1, 2, 0, 1, 3});
  source.path = folder / "eval.csv";
  const auto eval = OpenCsv(source, fields, train->get());
  REQUIRE(eval.ok());
  CHECK(ReadAll(**eval).ints["w"] == std::vector<std::int64_t>{0, 3, 1, 0, 2});
  CHECK(NeedsTrain(fields));
  CHECK_FALSE(NeedsTrain({Field("w", "string", {"0"}, {Hash(3)})}));
  // Many words have the same frequency. In the file they are not in alphabetical order.
  std::string words;
  for (int i = 0; i < 500; ++i) absl::StrAppend(&words, 1000 + i * 7 % 500, "\n");
  Write(folder / "train.csv", words);
  source.path = folder / "train.csv";
  const auto equals = OpenCsv(source, {Field("w", "string", {"0"}, {Vocabulary(1)})}, nullptr);
  REQUIRE(equals.ok());
  const std::vector<std::int64_t> ids = ReadAll(**equals).ints["w"];
  for (int i = 0; i < 500; ++i) CHECK(ids[static_cast<std::size_t>(i)] == 1 + i * 7 % 500);
}

TEST_CASE("a split divides one file into training and evaluation, with different fingerprints") {
  TempFolder folder;
  std::string text = "n\n";
  for (int i = 0; i < 25; ++i) absl::StrAppend(&text, i, "\n");
  Write(folder / "x.csv", text);
  config::SourceSpec source = Csv(folder / "x.csv");
  source.split = {10, 9, false};
  const std::vector<config::FieldSpec> fields = {Field("n", "int", {"n"})};
  const auto train = OpenDataset(source, fields, nullptr);
  source.split.taken = true;
  const auto eval = OpenDataset(source, fields, train->get());
  REQUIRE(train.ok());
  REQUIRE(eval.ok());
  CHECK((*train)->examples() == 23);
  CHECK(ReadAll(**eval).ints["n"] == std::vector<std::int64_t>{9, 19});
  CHECK(ReadAll(**train).ints["n"][9] == 10);
  CHECK((*train)->Fingerprint() != (*eval)->Fingerprint());
  const std::string before = (*train)->Fingerprint();
  source.split.taken = false;
  Write(folder / "x.csv", text + "25\n");
  CHECK((*OpenDataset(source, fields, nullptr))->Fingerprint() != before);
}

TEST_CASE("every invalid record and value is a user's error with file, line, column and content") {
  TempFolder folder;
  const auto fault = [&](const std::string& text, config::FieldSpec field, auto change) {
    Write(folder / "x.csv", text);
    config::SourceSpec source = Csv(folder / "x.csv");
    change(source);
    const auto data = OpenCsv(source, {field}, nullptr, {1000});
    REQUIRE_FALSE(data.ok());
    CHECK(BlameOf(data.status()) == Blame::kUser);
    return std::string(data.status().message());
  };
  const auto nothing = [](config::SourceSpec&) {};
  const auto headless = [](config::SourceSpec& source) { source.header = false; };
  CHECK_THAT(fault("a,b\n1,2\n1,x\n", Field("f", "int", {"b"}), nothing),
             Catch::Contains("x.csv:3:b: field `f`: expected an integer of 64 bits, got `x`"));
  CHECK_THAT(fault("1,2\n1,2.0\n", Field("f", "int", {"1"}), headless),
             Catch::Contains("x.csv:2:1: field `f`: expected an integer of 64 bits, got `2.0`"));
  CHECK_THAT(fault("a\n9223372036854775808\n", Field("f", "int", {"a"}), nothing),
             Catch::Contains("x.csv:2:a: field `f`: expected an integer of 64 bits"));
  CHECK_THAT(fault("a\nnan\n", Field("f", "float", {"a"}), nothing),
             Catch::Contains("expected a finite number, got `nan`"));
  CHECK_THAT(fault("a\n1e39\n", Field("f", "float", {"a"}), nothing),
             Catch::Contains("x.csv:2:a: field `f`: the value is beyond the range of float32"));
  CHECK_THAT(fault("a,b\n1,2\n,3\n", Field("f", "int", {"a"}), nothing),
             Catch::Contains(
                 "x.csv:3:a: field `f`: the value is missing (``) and the field has no `default`"));
  CHECK_THAT(
      fault("a\nmaybe\n", Field("f", "string", {"a"}, {Map({{"yes", 1}})}), nothing),
      Catch::Contains("x.csv:2:a: field `f`: expected one of the texts of `map`, got `maybe`"));
  CHECK_THAT(fault("a,b\n1,2\n1\n", Field("f", "int", {"a"}), nothing),
             Catch::Contains("x.csv:3: expected 2 columns as in the first record, got 1"));
  CHECK_THAT(
      fault("age,b\n1,2\n", Field("f", "int", {"agee"}), nothing),
      Catch::Contains("x.csv:1: field `f`: the header has no column `agee`; did you mean `age`?"));
  CHECK_THAT(fault("a,b\n1,2\n", Field("f", "int", {"2"}), nothing),
             Catch::Contains("field `f` reads column 2, but the file has only columns 0 to 1"));
  CHECK_THAT(fault("a,a\n1,2\n", Field("f", "int", {"a"}), nothing),
             Catch::Contains("duplicate column name `a`"));
  CHECK_THAT(fault("", Field("f", "int", {"a"}), nothing),
             Catch::Contains("data file without a record"));
  CHECK_THAT(fault("a\n", Field("f", "int", {"a"}), nothing),
             Catch::Contains("data file without an example"));
  CHECK_THAT(fault("a\n1\n", Field("f", "string", {"a"}), nothing),
             Catch::Contains("field `f`: a field of type string needs a transform"));
  CHECK_THAT(fault("a\n9223372036854775807\n", Field("f", "int", {"a"}, {T("offset", 1)}), nothing),
             Catch::Contains("expected an integer of 64 bits after the offset"));
  std::string many = "a\n";
  for (int i = 0; i < 200; ++i) many += "1\n";
  CHECK_THAT(fault(many, Field("f", "int", {"a"}), nothing),
             Catch::Contains("data set too large: file="));
}

TEST_CASE("csv floats and integers may have a plus sign, and neither spaces nor other bases") {
  TempFolder folder;
  const auto read = [&](const std::string& type,
                        const std::string& text) -> absl::StatusOr<double> {
    Write(folder / "x.csv", "\"" + text + "\"\n");
    config::SourceSpec source = Csv(folder / "x.csv");
    source.header = false;
    const auto data = OpenCsv(source, {Field("f", type, {"0"})}, nullptr);
    if (!data.ok()) return data.status();
    if (type == "int") {
      std::int64_t value = 0;
      CHECK((*data)->Read({0}, {std::as_writable_bytes(std::span(&value, 1))}).ok());
      return static_cast<double>(value);
    }
    float value = 0;
    CHECK((*data)->Read({0}, {std::as_writable_bytes(std::span(&value, 1))}).ok());
    return value;
  };
  CHECK(*read("float", "+1") == 1);
  CHECK(*read("float", "+1.5e+1") == 15);
  CHECK(*read("float", "-.5") == -0.5);
  CHECK(*read("float", "2.") == 2);
  CHECK(*read("int", "+1") == 1);
  CHECK(*read("int", "-7") == -7);
  CHECK(*read("int", "007") == 7);
  for (const char* text : {"0x10", "0X1p3", " 1", "1 ", "\t1", "+-1", "-+1", "++1", "+", "-", "1e",
                           ".", "1,5", "inf", "nan", "1_000", "１"}) {
    INFO(text);
    for (const char* type : {"float", "int"}) {
      const auto value = read(type, text);
      REQUIRE_FALSE(value.ok());
      CHECK_THAT(std::string(value.status().message()),
                 Catch::Contains(std::string(type) == "int" ? "expected an integer of 64 bits"
                                                            : "expected a finite number"));
    }
  }
  CHECK_THAT(std::string(read("float", " 1").status().message()),
             Catch::Contains(
                 "got ` 1`; spaces around a value are part of the value: `separator: \", \"`"));
}

TEST_CASE("an error quotes at most sixteen escaped characters of a file") {
  TempFolder folder;
  const std::string hash = "$6$salt$0123456789abcdefghijklmnopqrstuvwxyz";
  const auto fault = [&](const std::string& text, config::FieldSpec field, bool header) {
    Write(folder / "x.csv", text);
    config::SourceSpec source = Csv(folder / "x.csv");
    source.header = header;
    source.separator = ":";
    const auto data = OpenCsv(source, {field}, nullptr);
    REQUIRE_FALSE(data.ok());
    const std::string message(data.status().message());
    CHECK_THAT(message, !Catch::Contains(hash.substr(0, 17)) && !Catch::Contains("\x1b"));
    return message;
  };
  CHECK_THAT(fault("root:" + hash + "\n", Field("f", "float", {"1"}), false),
             Catch::Contains("expected a finite number, got `$6$salt$01234567…`"));
  CHECK_THAT(fault("root:" + hash + "\n", Field("f", "int", {"1"}), false),
             Catch::Contains("expected an integer of 64 bits, got `$6$salt$01234567…`"));
  fault("root:" + hash + "\n", Field("f", "string", {"1"}, {Map({{"yes", 1}})}), false);
  // In the first message the name is that of a column. In the second message it is a column that
  // the reader suggests.
  CHECK_THAT(fault("a:" + hash + "\n1:x\n", Field("f", "int", {"1"}), true),
             Catch::Contains("x.csv:2:$6$salt$01234567…: field `f`"));
  CHECK_THAT(fault("a:" + hash + "\n1:x\n", Field("f", "int", {hash.substr(0, 10)}), true),
             Catch::Contains("did you mean `$6$salt$01234567…`?"));
  CHECK_THAT(fault("\x1b[2J\xe2\x80\xae\n", Field("f", "int", {"0"}), false),
             Catch::Contains("got `\\x1b[2J\\u202e`"));
}

TEST_CASE("a header that resembles an example causes a warning, and a real header does not") {
  TempFolder folder;
  const auto warnings = [&](const std::string& text, const std::vector<config::FieldSpec>& fields) {
    Write(folder / "x.csv", text);
    const auto data = OpenCsv(Csv(folder / "x.csv"), fields, nullptr);
    REQUIRE(data.ok());
    return (*data)->Warnings();
  };
  const auto lost = warnings("5.1,3.5,1\n4.9,3.0,0\n",
                             {Field("x", "float", {"0", "1"}), Field("y", "int", {"2"})});
  REQUIRE(lost.size() == 1);
  CHECK_THAT(lost[0], Catch::Contains("the first record of a csv file looks like an example, and "
                                      "`header: true` skips it: file=" +
                                      (folder / "x.csv")) &&
                          Catch::Contains("column 0 is `5.1`") &&
                          Catch::Contains("`header: false`"));
  CHECK(warnings("a,b,c\n4.9,3.0,0\n", {Field("x", "float", {"0", "1"}), Field("y", "int", {"2"})})
            .empty());
  CHECK(
      warnings("5.1,b,c\n4.9,3.0,0\n", {Field("x", "float", {"0", "1"}), Field("y", "int", {"2"})})
          .empty());
  // A field was found by the name of its column, so the file has a real header.
  CHECK(warnings("2019,b\n4,5\n", {Field("x", "float", {"0"}), Field("y", "int", {"b"})}).empty());
  CHECK(warnings("0,1,2\n4,5,6\n", {Field("x", "float", {"0", "1"}), Field("y", "int", {"2"})})
            .empty());  // the header only numbers the columns
  // A field of type string does not show whether the first line is a header.
  CHECK(warnings("yes\nno\n", {Field("x", "string", {"0"}, {Vocabulary(1)})}).empty());
}

TEST_CASE(
    "with `header: false` a column given by name is refused, and the error tells the correct "
    "form") {
  TempFolder folder;
  Write(folder / "x.csv", "1,2\n");
  config::SourceSpec source = Csv(folder / "x.csv");
  source.header = false;
  const absl::Status status = OpenCsv(source, {Field("x", "float", {"age"})}, nullptr).status();
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("field `x` names the column `age`, but `header: false` means that the "
                             "file has no column names") &&
                 Catch::Contains("give the column's number, from 0, or write `header: true`"));
}

TEST_CASE("a csv file outside of the roots is not read") {
  TempFolder folder;
  std::filesystem::create_directory(folder / "data");
  Write(folder / "data/x.csv", "a\n1\n");
  Write(folder / "secret.csv", "a\nroot\n");
  const DataOptions options{
      .roots = fs::Roots::Only({folder / "data"}, "start the worker with --data-root FOLDER")};
  CHECK(OpenCsv(Csv(folder / "data/x.csv"), {Field("f", "int", {"a"})}, nullptr, options).ok());
  for (const std::string& path : {folder / "secret.csv", folder / "data/../secret.csv"}) {
    const absl::Status status =
        OpenDataset(Csv(path), {Field("f", "int", {"a"})}, nullptr, options).status();
    CHECK(absl::IsPermissionDenied(status));
    CHECK_THAT(std::string(status.message()),
               !Catch::Contains("root" + std::string("`")) && Catch::Contains("--data-root"));
  }
}

TEST_CASE("the published Adult data can be read with its separator and its missing values") {
  const std::string path = test::DataDir() + "/adult/adult.data";
  if (!std::ifstream(path).good()) {
    test::Skip("no " + path + "; set EVERGRAD_DATA");
    return;
  }
  config::SourceSpec source = Csv(path);
  source.header = false, source.separator = ", ", source.missing = {"?"};
  const auto data = OpenCsv(source,
                            {Field("age", "float", {"0"}, {Bucketize({18, 25, 30, 40, 60})}),
                             Field("job", "string", {"1"}, {Vocabulary(2)}),
                             Field("label", "string", {"14"}, {Map({{"<=50K", 0}, {">50K", 1}})})},
                            nullptr);
  INFO(data.status());
  REQUIRE(data.ok());
  CHECK((*data)->examples() == 32561);
  const Table table = ReadAll(**data);
  std::int64_t positives = 0, unseen = 0;
  for (const std::int64_t label : table.ints.at("label")) positives += label;
  for (const std::int64_t job : table.ints.at("job")) unseen += job == 0 ? 1 : 0;
  CHECK(positives == 7841);
  CHECK(unseen == 1836);
}

}  // namespace
}  // namespace evergrad::worker
