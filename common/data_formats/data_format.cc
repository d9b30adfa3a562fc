#include "common/data_formats/data_format.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "common/data_formats/all_formats.h"
#include "common/data_formats/transform_type.h"

namespace evergrad::config {

using Json = nlohmann::ordered_json;

const std::vector<const DataFormat*>& DataFormats() {
  static const std::vector<const DataFormat*> formats = [] {
    std::vector<const DataFormat*> all;
    for (const auto& format : kAllFormats) all.push_back(&format());
    return all;
  }();
  return formats;
}

const NotBuilt& DataFormatsNotBuilt() {
  static const NotBuilt names(std::begin(kFormatsNotBuilt), std::end(kFormatsNotBuilt));
  return names;
}

const DataFormat* FindDataFormat(absl::string_view name) {
  for (const DataFormat* format : DataFormats())
    if (format->name == name) return format;
  return nullptr;
}

const DataFormat& FormatOfField(const DataSpec& data, const FieldSpec& field) {
  if (const DataFormat* known = data.train ? FindDataFormat(data.train->format) : nullptr)
    return *known;
  for (const DataFormat* format : DataFormats())
    if (format->wrote(field)) return *format;
  return *DataFormats().front();
}

const std::vector<SourceFile>& AllSourceFiles() {
  static const std::vector<SourceFile> files = [] {
    std::vector<SourceFile> all;
    for (const DataFormat* format : DataFormats()) {
      for (const SourceFile& file : format->files) {
        if (std::none_of(all.begin(), all.end(),
                         [&](const SourceFile& other) { return other.key == file.key; }))
          all.push_back(file);
      }
    }
    return all;
  }();
  return files;
}

std::string FirstFile(const SourceSpec& source) {
  const DataFormat* const format = FindDataFormat(source.format);
  return format == nullptr || format->files.empty() ? "" : source.*(format->files.front().member);
}

Json DescribeSource(const SourceSpec& source) {
  Json object{{"format", source.format}};
  const DataFormat* const format = FindDataFormat(source.format);
  if (format != nullptr && format->describe_source != nullptr)
    format->describe_source(source, &object);
  return object;
}

Json DescribeField(const std::string& format_name, const FieldSpec& field) {
  Json object{
      {"name", field.name}, {"type", field.type}, {"columns", field.columns}, {"list", field.list}};
  object["default"] = field.default_text ? Json(*field.default_text) : Json(nullptr);
  const DataFormat* const format = FindDataFormat(format_name);
  if (format != nullptr && format->describe_field != nullptr)
    format->describe_field(field, &object);
  object["transforms"] = Json::array();
  for (const Transform& transform : field.transforms) {
    Json one{{"type", transform.type}};
    const TransformType* const type = FindTransformType(transform.type);
    if (type != nullptr && type->describe != nullptr) type->describe(transform, &one);
    object["transforms"].push_back(std::move(one));
  }
  return object;
}

}  // namespace evergrad::config
