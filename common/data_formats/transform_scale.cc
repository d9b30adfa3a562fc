// `scale: 0.5`
#include "common/data_formats/all_transforms.h"

namespace evergrad::config {

const TransformType& ScaleTransform() {
  static const TransformType type{
      .name = "scale",
      .takes = TransformType::Takes::kNumbers,
      .gives = [](const Transform&, ValueKind) { return ValueKind::kReal; },
      .settings_example = "0.5",
      .read = &ReadNumber,
      .write = &WriteNumber,
      .describe = &DescribeNumber,
      .example = "{scale: 0.5}",
      .help = "number -> real number: x * 0.5"};
  return type;
}

}  // namespace evergrad::config
