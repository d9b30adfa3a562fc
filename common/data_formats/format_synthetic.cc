// `format: synthetic`, examples that are made from a seed while they are read.
#include "absl/strings/str_cat.h"
#include "common/data_formats/all_formats.h"
#include "common/data_formats/field_keys.h"
#include "common/data_formats/source_keys.h"

namespace evergrad::config {
namespace {

Table<SourceSpec> SourceTable() {
  return {
      "a synthetic source",
      {Required(Integer<SourceSpec>("examples", &SourceSpec::examples, 1, 1ull << 40,
                                    "number of examples, which are generated while they are read"),
                "1000000"),
       Integer<SourceSpec>("seed", &SourceSpec::seed, 0, kAny,
                           "seed of the examples, and of the hidden model that draws their labels"),
       Integer<SourceSpec>("skip", &SourceSpec::skip, 0, 1ull << 40,
                           "number of the first example in the seed's endless sequence. Training "
                           "data and evaluation data should not overlap in the sequence")},
      SourceKeysNotBuilt()};
}

// Returns `key` with a changed writer, which writes the key only for fields that `applies` accepts.
Key<FieldSpec> OnlyFor(bool (*applies)(const FieldSpec&), Key<FieldSpec> key) {
  key.write_default = key.write;
  key.write = [write = key.write, applies](const FieldSpec& t) {
    return applies(t) ? write(t) : std::optional<Node>();
  };
  return key;
}
bool DrawsIds(const FieldSpec& field) { return field.type == "ids"; }
bool DrawsZipf(const FieldSpec& field) {
  return field.type == "ids" && field.distribution == "zipf";
}
bool HasSize(const FieldSpec& field) { return field.type != "label" && field.shape.empty(); }
bool IsLabel(const FieldSpec& field) { return field.type == "label"; }

Key<FieldSpec> ShapeKey() {
  return {"shape",
          "list of up to 7 integers",
          "shape of a field of type float, in place of `size`. An image has the shape [height, "
          "width, channels]",
          false,
          [](Reader& r, const Node& n, FieldSpec* t) { r.Shape(n, &t->shape); },
          [](const FieldSpec& t) {
            return t.shape.empty() ? std::nullopt : std::optional<Node>(MakeShape(t.shape));
          }};
}

Table<FieldSpec> FieldTable() {
  return {
      "a field of a synthetic source",
      {Required(Choice<FieldSpec>(
           "type", &FieldSpec::type, {"ids", "float", "label"}, {}, "field.",
           "kind of value: ids for rows of embedding tables, float for normally distributed "
           "numbers, label for a class that a hidden model draws from all other fields")),
       OnlyFor(&HasSize, Integer<FieldSpec>(
                             "size", &FieldSpec::size, 0, 4096,
                             "length of the field, which has the shape [size]; 0 means one value")),
       ShapeKey(),
       OnlyFor(&IsLabel, Integer<FieldSpec>("classes", &FieldSpec::classes, 2, 1u << 24,
                                            "number of classes of a label, which are about equally "
                                            "frequent; the values are 0 to classes - 1")),
       OnlyFor(&DrawsIds,
               Integer<FieldSpec>("ids", &FieldSpec::ids, 0, 1ull << 40,
                                  "number of possible ids for each element of a field of type ids. "
                                  "Element j (from 0) is an id from j * ids to (j + 1) * ids - 1")),
       OnlyFor(&DrawsIds,
               Choice<FieldSpec>("distribution", &FieldSpec::distribution, {"uniform", "zipf"},
                                 {"normal"}, "field.",
                                 "distribution of the ids; zipf allows at most 16777216 ids")),
       OnlyFor(&DrawsZipf,
               RealNumber<FieldSpec>("exponent", &FieldSpec::exponent, {0, 8, true, false},
                                     "exponent of the distribution zipf: the probability of id k "
                                     "is proportional to (k + 1) ^ -exponent"))},
      {"transforms", "mean", "stddev"}};
}

void CheckField(Reader& r, const YamlEntry& entry, const DataSpec&, const FieldSpec& field) {
  const auto given = [&](const char* key) { return entry.value.Find(key) != nullptr; };
  const Location where = given("type") ? entry.value.Find("type")->where() : entry.where();
  const auto report = [&](const std::string& text) { r.Report(where, text); };
  if (field.type == "ids" && field.ids == 0)
    report("a field of type ids needs `ids`, the number of ids");
  if (field.type != "ids" && (field.ids != 0 || given("distribution") || given("exponent")))
    report(
        absl::StrCat("`ids`, `distribution` and `exponent` apply only to fields of type ids: type=",
                     field.type));
  if (field.type == "label" && field.size != 0) report("a label has no `size`");
  if (field.type != "float" && given("shape"))
    report(absl::StrCat("`shape` applies only to fields of type float: type=", field.type));
  if (given("shape") && given("size"))
    report("`shape` and `size` cannot both be set: remove one of the two");
  if (field.type != "label" && given("classes"))
    report(absl::StrCat("`classes` applies only to fields of type label: type=", field.type));
  if (field.distribution == "zipf" && field.ids > kZipfIdsMax)
    report(absl::StrCat("`ids`: zipf allows at most ", kZipfIdsMax, " ids, got ", field.ids));
  if (field.distribution != "zipf" && given("exponent"))
    report("`exponent` applies only to the distribution zipf");
}

std::optional<ValueKind> KindOfSynthetic(const FieldSpec& field) {
  if (field.type == "ids") return ValueKind::kInteger;
  if (field.type == "float") return ValueKind::kReal;
  return std::nullopt;
}

}  // namespace

const DataFormat& SyntheticFormat() {
  static const DataFormat format{
      .name = "synthetic",
      .defaults = {.format = "synthetic"},
      .source = SourceTable(),
      .files = {},
      .field = FieldTable(),
      .own_fields = {},
      .transforms = {},
      .check_field = &CheckField,
      .kind = &KindOfSynthetic,
      .wrote = [](const FieldSpec& field) { return !field.type.empty() && field.columns.empty(); },
      .explain_field =
          [](std::string* out) {
            FieldSpec ids;
            ids.type = "ids";
            ExplainField("words", SyntheticFormat().field, ids,
                         {{"type", "ids"},
                          {"size", "26"},
                          {"shape", "[28, 28, 1]"},
                          {"ids", "100000"},
                          {"distribution", "zipf"},
                          {"exponent", "1.05"},
                          {"classes", "2"}},
                         /*explain_transforms=*/false, out);
          },
      .describe_source = nullptr,
      .describe_field = nullptr};
  return format;
}

}  // namespace evergrad::config
