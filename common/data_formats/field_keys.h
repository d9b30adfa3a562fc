// Keys and rules of fields with typed columns (int, float, string), which several formats share.
// Private to this room.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "common/data_formats/data_format.h"

namespace evergrad::config {

// Returns the key `column`: a name, or a list of columns.
Key<FieldSpec> ColumnKey(std::string type, std::string help);
// Returns the key `type`, as in `type: int`.
Key<FieldSpec> ColumnTypeKey(std::string help);
// Returns the key `default`, a text.
Key<FieldSpec> DefaultKey();

// Reports transforms that do not match the field's type, and an invalid default.
void CheckTypedField(Reader& reader, const YamlEntry& entry, const FieldSpec& field);
// Returns the kind of the field after its transforms, or nullopt if they have mistakes.
std::optional<ValueKind> TypedFieldKind(const FieldSpec& field);

// Appends `name:` and the keys of `table` to the reference. `examples` are values by key;
// `explain_transforms` adds an example of each transform.
void ExplainField(const char* name, Table<FieldSpec> table, const FieldSpec& defaults,
                  const std::map<std::string, std::string>& examples, bool explain_transforms,
                  std::string* out);

}  // namespace evergrad::config
