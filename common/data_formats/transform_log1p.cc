// `log1p`
#include "common/data_formats/all_transforms.h"

namespace evergrad::config {

const TransformType& Log1pTransform() {
  static const TransformType type{
      .name = "log1p",
      .takes = TransformType::Takes::kNumbers,
      .gives = [](const Transform&, ValueKind) { return ValueKind::kReal; },
      .settings_example = "",
      .read = nullptr,
      .write = nullptr,
      .describe = nullptr,
      .example = "log1p",
      .help = "number -> real number: sign(x) * log(1 + abs(x))"};
  return type;
}

}  // namespace evergrad::config
