// The common parts of the shape rules: checked shapes, sliding windows, and shapes as text. Pure.
//
// Shapes describe one example; a batch has its size as an additional first dimension. Errors are
// InvalidArgument; the caller prepends the place and the layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/layers/layer_spec.h"
#include "common/tensor/tensor.h"

namespace evergrad::config {

// Largest number of elements of one array: positions have 31 bits (worker/backend/backend.h).
inline constexpr std::uint64_t kArrayElementsMax = (std::uint64_t{1} << 31) - 1;

// Returns "(3, 4), (4)".
std::string ShapeList(const std::vector<tensor::Shape>& shapes);

// Returns the shape with the dimensions `dims`. The error for an invalid shape, or for more than
// kArrayElementsMax elements, names `what` ("its kernel").
absl::StatusOr<tensor::Shape> CheckedShape(absl::string_view what, std::vector<std::uint64_t> dims);

// One axis of a sliding window, by TensorFlow's rules. `valid` gives floor((in - window) / stride)
// + 1 outputs. `same` gives ceil(in / stride) outputs and puts the larger half of the padding at
// the end.
struct WindowAxis {
  std::int64_t out = 0, pad_before = 0, pad_after = 0;
};
struct Window {
  WindowAxis h, w;
};
// Returns the window of a convolution or a pool over `input` (height, width, channels), with the
// padding of `spec`. Checks that window and stride are at least 1, and that the window fits. `key`
// and `noun` name the window in errors ("kernel_size", "kernel").
absl::StatusOr<Window> SlideWindow(const LayerSpec& spec, const tensor::Shape& input,
                                   std::uint64_t window_h, std::uint64_t window_w,
                                   absl::string_view key, absl::string_view noun);

}  // namespace evergrad::config
