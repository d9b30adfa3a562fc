#include "worker/data/transforms.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/data_formats/transform_type.h"
#include "common/random/philox.h"

namespace evergrad::worker {
namespace {

using config::Transform;
using config::ValueKind;

// Each function makes the computation of one transform. `gives` is the kind of the result.

TransformStep Scale(const Transform& transform, ValueKind) {
  return [factor = transform.value](const Value& v) { return RealValue(v.number() * factor); };
}

TransformStep Offset(const Transform& transform, ValueKind gives) {
  if (gives == ValueKind::kReal)
    return [offset = transform.value](const Value& v) { return RealValue(v.number() + offset); };
  const auto offset = static_cast<std::int64_t>(transform.value);
  return [offset](const Value& v) -> absl::StatusOr<Value> {
    std::int64_t sum = 0;
    if (__builtin_add_overflow(v.integer, offset, &sum))
      return WrongValue("an integer of 64 bits after the offset", v.Name());
    return IntegerValue(sum);
  };
}

TransformStep Log1p(const Transform&, ValueKind) {
  return [](const Value& v) {
    const double x = v.number();
    return RealValue(std::copysign(std::log1p(std::abs(x)), x));
  };
}

TransformStep Bucketize(const Transform& transform, ValueKind) {
  return [bounds = transform.bounds](const Value& v) {
    return IntegerValue(std::upper_bound(bounds.begin(), bounds.end(), v.number()) -
                        bounds.begin());
  };
}

TransformStep Hash(const Transform& transform, ValueKind) {
  return [buckets = transform.buckets](const Value& v) {
    const std::uint64_t hash =
        v.kind == ValueKind::kText ? random::KeyOf(0, v.text) : random::KeyOf(0, v.Name());
    return IntegerValue(static_cast<std::int64_t>(hash % buckets));
  };
}

TransformStep Map(const Transform& transform, ValueKind gives) {
  absl::flat_hash_map<std::string, Value> values;
  for (const auto& [text, number] : transform.entries)
    values[text] = gives == ValueKind::kInteger ? IntegerValue(static_cast<std::int64_t>(number))
                                                : RealValue(number);
  return [values = std::move(values)](const Value& v) -> absl::StatusOr<Value> {
    const std::string text = v.Name();
    const auto found = values.find(text);
    if (found == values.end()) return WrongValue("one of the texts of `map`", text);
    return found->second;
  };
}

struct Computation {
  absl::string_view transform;
  TransformStep (*make)(const Transform& transform, ValueKind gives);
};
constexpr Computation kComputations[] = {{"scale", &Scale}, {"offset", &Offset},
                                         {"log1p", &Log1p}, {"bucketize", &Bucketize},
                                         {"hash", &Hash},   {"map", &Map}};

}  // namespace

absl::StatusOr<TransformStep> MakeTransformStep(const Transform& transform, ValueKind kind) {
  EG_ASSIGN_OR_RETURN(const ValueKind gives, config::KindAfter(transform, kind));
  for (const Computation& computation : kComputations)
    if (computation.transform == transform.type) return computation.make(transform, gives);
  return absl::InvalidArgumentError(
      absl::StrCat("transform `", transform.type, "` has no computation"));
}

}  // namespace evergrad::worker
