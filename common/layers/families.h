// The descriptors of each family of layer types (layer_families.inc), and the keys that several
// families share. Private to this room.
#pragma once

#include <string>
#include <vector>

#include "common/layers/layer_descriptor.h"

namespace evergrad::config {

#define EVERGRAD_LAYER_FAMILY(name) std::vector<LayerDescriptor> name##Layers();
#include "common/layers/layer_families.inc"
#undef EVERGRAD_LAYER_FAMILY

Key<LayerSpec> ActivationKey(std::string help);
// Returns the key `padding` of a sliding window.
Key<LayerSpec> PaddingKey();
// Returns the key for a pair: `kernel_size: 3` or `kernel_size: [3, 5]`.
Key<LayerSpec> PairKey(const std::string& name, std::uint64_t LayerSpec::*h,
                       std::uint64_t LayerSpec::*w, std::string help);
Key<LayerSpec> StridesKey();
// Returns `own`, followed by the keys that every layer with a kernel has: activation, bias,
// initializers and regularizers.
std::vector<Key<LayerSpec>> WithWeightKeys(std::vector<Key<LayerSpec>> own);

// Returns the variable `kernel`, and `bias` if the layer has one.
std::vector<VariableSpec> KernelAndBias(const LayerSpec& spec, tensor::Shape kernel,
                                        std::uint64_t fan_in, std::uint64_t fan_out,
                                        std::uint64_t outputs);

// Returns OK, or the error "conv2d needs an input (height, width, channels), got (3, 3)".
absl::Status CheckImage(const LayerSpec& spec, const tensor::Shape& input);
// Returns InvalidArgument. Its message begins with the layer's type: "dense needs …".
absl::Status ShapeError(const LayerSpec& spec, absl::string_view text);

}  // namespace evergrad::config
