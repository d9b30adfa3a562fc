// Conversions between the messages of a file and the types of common/base. common/client has
// similar functions for the wire. The functions are separate because files must be readable without
// the transport.
#pragma once

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/interval_set.h"
#include "evergrad/v1/types.pb.h"

namespace evergrad::snapshot {

template <class Tag>
v1::Stamp ToProto(const Stamp<Tag>& stamp) {
  v1::Stamp proto;
  proto.set_term(stamp.term);
  proto.set_n(stamp.n);
  return proto;
}
// Usage: FromProto<ShardEpoch>(m.epoch()). Every pair is a valid stamp; an absent message is (0,0).
template <class S>
S FromProto(const v1::Stamp& proto) {
  S stamp;
  stamp.term = proto.term();
  stamp.n = proto.n();
  return stamp;
}

v1::IntervalSet ToProto(const IntervalSet& set);
// Returns InvalidArgument for an odd number of bounds, and for intervals that are empty, touch,
// overlap or are out of order. Therefore a set has exactly one representation in a file.
absl::StatusOr<IntervalSet> FromProto(const v1::IntervalSet& proto);

}  // namespace evergrad::snapshot
