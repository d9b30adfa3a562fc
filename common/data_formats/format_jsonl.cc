// `format: jsonl`, one JSON object per line, whose members have names.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/data_formats/all_formats.h"
#include "common/data_formats/field_keys.h"
#include "common/data_formats/source_keys.h"
#include "common/data_formats/transform_type.h"

namespace evergrad::config {
namespace {

constexpr std::uint64_t kListMax = 4096;

Key<FieldSpec> SizeKey() {
  Key<FieldSpec> key = Integer<FieldSpec>("size", &FieldSpec::size, 0, kListMax,
                                          "length of the list in the member; the field then has "
                                          "the shape [size]. 0 means that the member is one value");
  key.write = [write = key.write](const FieldSpec& t) {
    return t.size == 0 ? std::optional<Node>() : write(t);
  };
  key.default_text = std::string(1, '0');  // GCC 12 warns of a literal here (-Wrestrict)
  return key;
}

void CheckField(Reader& r, const YamlEntry& entry, const DataSpec&, const FieldSpec& field) {
  CheckTypedField(r, entry, field);
  if (field.size != 0 && field.list)
    r.Report(entry.value.Find("size")->where(),
             "`size` is the length of the list in one member, but `column` names several members: "
             "remove `size`, or name one member");
}

}  // namespace

const DataFormat& JsonlFormat() {
  static const DataFormat format{
      .name = "jsonl",
      .defaults = {.format = "jsonl", .missing = {}},
      .source = {"a jsonl source",
                 {PathKey("path", &SourceSpec::path,
                          "path, s3:// or gs:// URI of a file, .gz or plain",
                          "file with one JSON object per line; a relative path starts at the job "
                          "file's folder",
                          "people.jsonl.gz"),
                  MissingKey(), SplitKey()},
                 SourceKeysNotBuilt()},
      .files = {{"path", &SourceSpec::path}},
      .field = {"a field of a jsonl source",
                {ColumnKey("name of a member, or a list of names",
                           "member with the value of the field; a list of n members makes a field "
                           "of shape [n]"),
                 ColumnTypeKey("type of the member's value: an integer, a number or a text"),
                 SizeKey(), DefaultKey(), TransformsKey(TransformNames())},
                {"missing", "vocabulary", "hash_buckets"}},
      .own_fields = {},
      .transforms = TransformNames(),
      .check_field = &CheckField,
      .kind = &TypedFieldKind,
      .wrote = [](const FieldSpec& field) { return !field.columns.empty() && field.size != 0; },
      .explain_field =
          [](std::string* out) {
            ExplainField("pixels", JsonlFormat().field, {},
                         {{"column", "pixels"},
                          {"type", "float"},
                          {"size", "4"},
                          {"default", "\"0\""},
                          {"transforms", "[{scale: 0.5}]"}},
                         /*explain_transforms=*/false, out);
          },
      .describe_source =
          [](const SourceSpec& source, nlohmann::ordered_json* object) {
            (*object)["missing"] = source.missing;
          },
      .describe_field = [](const FieldSpec& field,
                           nlohmann::ordered_json* object) { (*object)["size"] = field.size; }};
  return format;
}

}  // namespace evergrad::config
