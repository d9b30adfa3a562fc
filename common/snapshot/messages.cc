#include "common/snapshot/messages.h"

#include "absl/strings/str_cat.h"

namespace evergrad::snapshot {

v1::IntervalSet ToProto(const IntervalSet& set) {
  v1::IntervalSet proto;
  for (const IntervalSet::Interval& interval : set.Intervals()) {
    proto.add_bounds(interval.begin);
    proto.add_bounds(interval.end);
  }
  return proto;
}

absl::StatusOr<IntervalSet> FromProto(const v1::IntervalSet& proto) {
  if (proto.bounds_size() % 2 != 0)
    return absl::InvalidArgumentError(
        absl::StrCat("the set has an odd number of bounds: bounds=", proto.bounds_size()));
  for (int i = 1; i < proto.bounds_size(); ++i) {
    if (proto.bounds(i - 1) >= proto.bounds(i)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the bounds are not in rising order: position=", i,
                       " bound=", proto.bounds(i), " previous=", proto.bounds(i - 1)));
    }
  }
  IntervalSet set;
  for (int i = 0; i < proto.bounds_size(); i += 2)
    set.AddRange(proto.bounds(i), proto.bounds(i + 1));
  return set;
}

}  // namespace evergrad::snapshot
