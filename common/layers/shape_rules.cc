#include "common/layers/shape_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace evergrad::config {
namespace {

absl::Status RuleError(std::string text) { return absl::InvalidArgumentError(std::move(text)); }

WindowAxis SlideAxis(std::uint64_t in64, std::uint64_t window64, std::uint64_t stride64,
                     bool same) {
  const auto in = static_cast<std::int64_t>(in64), window = static_cast<std::int64_t>(window64),
             stride = static_cast<std::int64_t>(stride64);
  if (!same) return {(in - window) / stride + 1, 0, 0};
  const std::int64_t out = (in + stride - 1) / stride;
  const std::int64_t padding = std::max<std::int64_t>(0, (out - 1) * stride + window - in);
  return {out, padding / 2, padding - padding / 2};
}

}  // namespace

std::string ShapeList(const std::vector<tensor::Shape>& shapes) {
  return absl::StrJoin(shapes, ", ", [](std::string* out, const tensor::Shape& shape) {
    absl::StrAppend(out, shape.ToString());
  });
}

absl::StatusOr<tensor::Shape> CheckedShape(absl::string_view what,
                                           std::vector<std::uint64_t> dims) {
  auto shape = tensor::Shape::Checked(std::move(dims));
  if (!shape.ok())
    return RuleError(absl::StrCat(what, " has an invalid shape: ", shape.status().message()));
  if (shape->elements() > kArrayElementsMax)
    return RuleError(absl::StrCat(what, " has too many elements: shape=", shape->ToString(),
                                  " elements=", shape->elements(), " limit=", kArrayElementsMax));
  return shape;
}

absl::StatusOr<Window> SlideWindow(const LayerSpec& spec, const tensor::Shape& input,
                                   std::uint64_t window_h, std::uint64_t window_w,
                                   absl::string_view key, absl::string_view noun) {
  if (window_h < 1 || window_w < 1)
    return RuleError(absl::StrCat(key, " must be at least 1: ", key, "=", window_h, "x", window_w));
  if (spec.stride_h < 1 || spec.stride_w < 1)
    return RuleError(
        absl::StrCat("strides must be at least 1: strides=", spec.stride_h, "x", spec.stride_w));
  if (spec.padding != "same" && spec.padding != "valid")
    return RuleError(
        absl::StrCat("unknown padding `", spec.padding, "`; expected one of valid, same"));
  if (std::max({window_h, window_w, spec.stride_h, spec.stride_w}) > kArrayElementsMax)
    return RuleError(absl::StrCat(key, " and strides must be at most ", kArrayElementsMax));
  const bool same = spec.padding == "same";
  if (!same && (window_h > input[0] || window_w > input[1]))
    return RuleError(absl::StrCat("the ", noun, " is larger than its input: ", noun, "=", window_h,
                                  "x", window_w, " input=", input.ToString()));
  return Window{SlideAxis(input[0], window_h, spec.stride_h, same),
                SlideAxis(input[1], window_w, spec.stride_w, same)};
}

}  // namespace evergrad::config
