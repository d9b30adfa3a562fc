// `offset: -1`
#include "common/data_formats/all_transforms.h"

namespace evergrad::config {

const TransformType& OffsetTransform() {
  static const TransformType type{
      .name = "offset",
      .takes = TransformType::Takes::kNumbers,
      .gives =
          [](const Transform& transform, ValueKind kind) {
            return kind == ValueKind::kInteger && IsExactInteger(transform.value)
                       ? kind
                       : ValueKind::kReal;
          },
      .settings_example = "-1",
      .read = &ReadNumber,
      .write = &WriteNumber,
      .describe = &DescribeNumber,
      .example = "{offset: -1}",
      .help = "number -> number: x - 1; an integer with an integer offset stays an integer"};
  return type;
}

}  // namespace evergrad::config
