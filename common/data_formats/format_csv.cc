// `format: csv`, records of separated texts as in RFC 4180.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/data_formats/all_formats.h"
#include "common/data_formats/field_keys.h"
#include "common/data_formats/source_keys.h"
#include "common/data_formats/transform_type.h"

namespace evergrad::config {
namespace {

Key<SourceSpec> SeparatorKey() {
  Key<SourceSpec> key =
      PlainText<SourceSpec>("separator", &SourceSpec::separator, "text between two columns");
  key.type = "text of 1 to 8 characters";
  key.read = [](Reader& r, const Node& n, SourceSpec* t) {
    const auto v = r.Text(n, "separator");
    if (!v) return;
    if (v->empty() || v->size() > 8 || v->find_first_of("\"\r\n") != std::string::npos)
      r.Report(
          n.where(),
          absl::StrCat("`separator`: expected 1 to 8 characters without quotes and line ends, got ",
                       n.Describe()));
    else
      t->separator = *v;
  };
  return key;
}

Table<SourceSpec> SourceTable() {
  return {"a csv source",
          {PathKey("path", &SourceSpec::path, "path, s3:// or gs:// URI of a file, .gz or plain",
                   "file of records; a relative path starts at the job file's folder",
                   "\"${EVERGRAD_DATA:-../data}/ratings/ratings.csv\""),
           Flag<SourceSpec>("header", &SourceSpec::header,
                            "whether the first record has the names of the columns"),
           SeparatorKey(),
           Flag<SourceSpec>("quoting", &SourceSpec::quoting,
                            "whether values can be quoted, as in RFC 4180. With false, a quote is "
                            "an ordinary character"),
           MissingKey(), SplitKey()},
          SourceKeysNotBuilt()};
}

bool IsNumber(const std::string& column) {
  return !column.empty() &&
         std::all_of(column.begin(), column.end(), [](char c) { return c >= '0' && c <= '9'; });
}

void CheckField(Reader& r, const YamlEntry& entry, const DataSpec& data, const FieldSpec& field) {
  CheckTypedField(r, entry, field);
  const auto named = std::find_if_not(field.columns.begin(), field.columns.end(), &IsNumber);
  if (named == field.columns.end()) return;
  for (const auto* source : {&data.train, &data.eval})
    if (source->has_value() && !(*source)->header && !(*source)->split.taken)
      r.Report(entry.value.Find("column")->where(),
               absl::StrCat(
                   "column `", named->substr(0, 60), "` is a name, but `header: false` in data.",
                   source == &data.train ? "train" : "eval",
                   " means that the file has no names: expected the number of a column, from 0"));
}

void DescribeCsv(const SourceSpec& source, nlohmann::ordered_json* object) {
  (*object)["header"] = source.header;
  (*object)["separator"] = source.separator;
  (*object)["quoting"] = source.quoting;
  (*object)["missing"] = source.missing;
}

}  // namespace

const DataFormat& CsvFormat() {
  static const DataFormat format{
      .name = "csv",
      .defaults = {.format = "csv"},
      .source = SourceTable(),
      .files = {{"path", &SourceSpec::path}},
      .field =
          {"a field of a csv source",
           {ColumnKey(
                "number of a column (from 0), name in the header, or a list of numbers and names",
                "column with the value of the field; a list of n columns makes a field of shape "
                "[n]"),
            ColumnTypeKey("type of the column's values"), DefaultKey(),
            TransformsKey(TransformNames())},
           {"missing", "vocabulary", "hash_buckets", "delimiter"}},
      .own_fields = {},
      .transforms = TransformNames(),
      .check_field = &CheckField,
      .kind = &TypedFieldKind,
      .wrote = [](const FieldSpec& field) { return !field.columns.empty() && field.size == 0; },
      .explain_field =
          [](std::string* out) {
            ExplainField("age", CsvFormat().field, {},
                         {{"column", "age"}, {"type", "float"}, {"default", "\"0\""}},
                         /*explain_transforms=*/true, out);
          },
      .describe_source = &DescribeCsv,
      .describe_field = nullptr};
  return format;
}

}  // namespace evergrad::config
