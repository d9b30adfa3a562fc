// The descriptor of a data format: the keys of its sources and fields, their defaults and rules,
// the files that a source names, and the kinds of value that its fields give. The job file's
// schema, configs/reference.yaml, the run's model.json and the workers enumerate the descriptors.
// The files themselves are read by workers only (worker/data/openers.h).
//
// Descriptors are constants that live as long as the program; every function may be called from any
// thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/data_formats/data_spec.h"
#include "common/data_formats/value_kind.h"
#include "common/schema/schema.h"

namespace evergrad::config {

// A key of a source whose value is the path of one file.
struct SourceFile {
  std::string key;
  std::string SourceSpec::*member;
};

struct DataFormat {
  std::string name;
  SourceSpec defaults;       // defaults of a source
  Table<SourceSpec> source;  // the keys of a source other than `format`
  std::vector<SourceFile> files;
  Table<FieldSpec> field;  // the keys of a field
  // The fields that every source of the format has. If empty, the job file names the fields, and
  // `fields` is a required key.
  std::vector<std::string> own_fields;
  std::vector<std::string> transforms;  // transforms that a field may have
  // Reports mistakes between the values of one field, or between the field and the sources. The
  // reader calls check_field for fields whose own keys were read without a mistake. `entry` is the
  // field in the job file. `check_field` is null if the format has no such rules.
  void (*check_field)(Reader& reader, const YamlEntry& entry, const DataSpec& data,
                      const FieldSpec& field);
  // Returns the kind of value that the model reads, or nullopt if the field is only a label, or if
  // its transforms have a mistake.
  std::optional<ValueKind> (*kind)(const FieldSpec& field);
  // Returns whether `field` was read with the keys of this format. A plan's text has no sources, so
  // the format can be derived only from the field.
  bool (*wrote)(const FieldSpec& field);
  // Appends an example of a field to the reference, without indentation.
  void (*explain_field)(std::string* out);
  // Add the settings of a source and of a field to model.json, which load.py reads. The settings
  // that every field has are added elsewhere. Null if the format has no such settings.
  void (*describe_source)(const SourceSpec& source, nlohmann::ordered_json* object);
  void (*describe_field)(const FieldSpec& field, nlohmann::ordered_json* object);
};

// Returns all formats, in the order of the reference. The reference shows the first format as an
// example and the other formats as comments.
const std::vector<const DataFormat*>& DataFormats();
// Returns the names of formats that are refused as not built yet (NotBuilt).
const NotBuilt& DataFormatsNotBuilt();
// Returns nullptr if there is no such format.
const DataFormat* FindDataFormat(absl::string_view name);
// Returns the format of a field of `data`: the format of the source if it is known, otherwise a
// format that can have written the field.
const DataFormat& FormatOfField(const DataSpec& data, const FieldSpec& field);

// Returns the keys of all formats whose value is a path, each key once.
const std::vector<SourceFile>& AllSourceFiles();
// Returns the path of the first file that `source` names, or "" if the format has no files.
std::string FirstFile(const SourceSpec& source);

// Return the JSON objects of a source and of a field in a run's model.json.
nlohmann::ordered_json DescribeSource(const SourceSpec& source);
nlohmann::ordered_json DescribeField(const std::string& format, const FieldSpec& field);

}  // namespace evergrad::config
