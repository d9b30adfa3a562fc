// The properties of a layer type, except its computation: its keys in a job file, the number of its
// inputs, the rule for its shapes and variables, and an example for the reference.
//
// Layers() enumerates the types for the schema, the reference, the messages that list types, the
// worker's layers and the tests. Pure; built at first use, immutable afterwards.
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/layers/layer_shapes.h"
#include "common/layers/layer_spec.h"
#include "common/schema/schema.h"

namespace evergrad::config {

struct InputCount {
  static constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();
  std::size_t min = 1, max = 1;
};

// A shape rule may assume that the number of inputs is valid and that each rank is at most 8.
using ShapeRule = absl::StatusOr<LayerShapes> (*)(const LayerSpec& spec, const LayerInputs& inputs);

struct LayerDescriptor {
  std::string type;
  std::string article;  // "a" or "an"
  std::string keras;    // the class that Keras' summary prints: "Conv2D"
  // The keys of the type, in addition to name, input and dtype, which every layer has.
  std::vector<Key<LayerSpec>> keys = {};
  NotBuilt keys_not_built = {};
  // Whether the layer neither moves nor computes data. Such a layer has no dtype.
  bool is_view = false;
  InputCount inputs = {};
  // Whether the layer reads ids, which come only from model inputs. Other layers read real numbers.
  bool reads_ids = false;
  ShapeRule infer = nullptr;  // null if the type is not built yet
  // The values that the reference shows in place of the defaults, by key.
  std::map<std::string, std::string> example = {};
  // The position of the layer in the example model of the reference, from 1 on. With 0 the
  // reference shows the layer as a comment.
  int reference_position = 0;
  // Called after the layer's keys have been read. Fills in the defaults that depend on other keys.
  // Null if there are none.
  void (*complete)(const Node& node, LayerSpec* spec) = nullptr;
};

// Returns the types in the order in which messages and the reference list them.
const std::vector<LayerDescriptor>& Layers();
// Returns nullptr for an unknown type.
const LayerDescriptor* FindLayer(absl::string_view type);
std::vector<std::string> LayerTypes();

// Reads, writes and explains layers.
const Variant<LayerSpec>& LayerVariant();
// Appends one example of each type, as a list of layers. The layers of the example model are a
// valid chain from the input `image`. The other types follow as comments.
void ExplainLayers(const std::string& indent, std::string* out);

// Returns OK if the number is valid, and otherwise the error "a dot layer reads two inputs, got 3".
absl::Status CheckInputCount(const LayerDescriptor& layer, std::size_t inputs);

}  // namespace evergrad::config
