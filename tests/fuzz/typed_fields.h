// The fields of the fuzz targets of formats with typed columns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/data_formats/data_spec.h"

namespace evergrad::fuzz {

// Returns the fields a, b and c, without columns. `bits` chooses their types, the transform of
// texts, and whether a missing value has a default.
inline std::vector<config::FieldSpec> TypedFields(std::uint8_t bits) {
  std::vector<config::FieldSpec> fields;
  const char* const types[] = {"int", "float", "string"};
  for (std::uint32_t i = 0; i < 3; ++i) {
    config::FieldSpec& field = fields.emplace_back();
    field.name = std::string(1, static_cast<char>('a' + i));
    field.type = types[(bits >> (2 * i) & 3) % 3];
    if (bits & 0x80) field.default_text = "0";
    if (field.type == "string") {
      config::Transform& transform = field.transforms.emplace_back();
      transform.type = bits & 0x40 ? "vocabulary" : "hash";
      transform.buckets = 100;
    }
  }
  return fields;
}

}  // namespace evergrad::fuzz
