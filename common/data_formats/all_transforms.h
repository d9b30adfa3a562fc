// The list of transforms. Private to this room.
#pragma once

#include "common/data_formats/transform_type.h"

namespace evergrad::config {

const TransformType& ScaleTransform();
const TransformType& OffsetTransform();
const TransformType& Log1pTransform();
const TransformType& BucketizeTransform();
const TransformType& HashTransform();
const TransformType& VocabularyTransform();
const TransformType& MapTransform();

// The transforms in the order in which the reference and messages list them.
inline constexpr const TransformType& (*kAllTransforms[])() = {
    ScaleTransform, OffsetTransform,     Log1pTransform, BucketizeTransform,
    HashTransform,  VocabularyTransform, MapTransform};

// Names that users may expect, but that are not implemented. Each is refused with "not built yet".
inline constexpr const char* kTransformsNotBuilt[] = {"normalize",   "log",   "clip", "one_hot",
                                                      "standardize", "crop",  "flip", "resize",
                                                      "shift",       "split", "lower"};

}  // namespace evergrad::config
