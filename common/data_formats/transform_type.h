// The descriptor of a transform: its name, its settings, and the kinds of value of its input and
// result. The job file's schema, configs/reference.yaml, the run's model.json and the workers
// enumerate the descriptors; the computation is in worker/data/transforms.cc.
//
// Descriptors are constants that live as long as the program; every function may be called from any
// thread.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "absl/status/statusor.h"
#include "common/data_formats/data_spec.h"
#include "common/data_formats/value_kind.h"
#include "common/schema/schema.h"

namespace evergrad::config {

struct TransformType {
  enum class Takes { kNumbers, kNames };  // kNumbers: integers, reals; kNames: texts, integers

  std::string name;
  Takes takes;
  // Returns the kind of the result for an input of `kind`. The transform must take this kind.
  ValueKind (*gives)(const Transform& transform, ValueKind kind);
  // An example of the settings, for the message about a transform that is written without settings.
  // If the example is empty, the transform has no settings and is written as its name.
  std::string settings_example;
  // Reads the settings at `node`. Returns false after it has reported a mistake.
  bool (*read)(Reader& reader, const Node& node, Transform* transform);
  // Returns the settings as YAML. The pointer is null if the transform has no settings.
  Node (*write)(const Transform& transform);
  // Adds the settings to the transform's object in model.json, which load.py reads. The pointer is
  // null if the transform has no settings.
  void (*describe)(const Transform& transform, nlohmann::ordered_json* object);
  // For the reference: an example, written as a list item, and an explanation.
  std::string example, help;
  // Whether the transform numbers the values of the training data, so that evaluation needs the
  // training data first. A field has at most one such transform.
  bool learned = false;
};

// Returns all transforms, in the order of the reference.
const std::vector<const TransformType*>& TransformTypes();
std::vector<std::string> TransformNames();
// Returns nullptr if there is no such transform.
const TransformType* FindTransformType(absl::string_view name);

// Returns the kind of the result of `transform` for a value of `kind`, or InvalidArgument if the
// transform does not take values of that kind.
absl::StatusOr<ValueKind> KindAfter(const Transform& transform, ValueKind kind);

// Returns the key `transforms` of a field that may have the transforms `allowed`.
Key<FieldSpec> TransformsKey(const std::vector<std::string>& allowed);

// ---- parts of descriptors

// Reads settings that are a mapping. Returns false after it has reported a mistake.
bool ReadSettings(const Table<Transform>& table, Reader& reader, const Node& node,
                  Transform* transform);
// Reads settings that are one number, `scale: 0.5`, into Transform::value.
bool ReadNumber(Reader& reader, const Node& node, Transform* transform);
Node WriteNumber(const Transform& transform);
void DescribeNumber(const Transform& transform, nlohmann::ordered_json* object);

// Largest number of bounds or entries in the settings of a transform.
inline constexpr std::size_t kTransformEntriesMax = 4096;

}  // namespace evergrad::config
