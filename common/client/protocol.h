// What both ends of the protocol agree on beside the protos: the version, the session's path, and
// the way between messages and the types of common/base. Pure; nothing that is read is trusted.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/base/interval_set.h"
#include "common/base/text.h"
#include "common/plan/plan.h"
#include "evergrad/v1/session.pb.h"
#include "evergrad/v1/types.pb.h"

namespace evergrad::client {

inline constexpr std::uint32_t kProtocolVersion = 1;

// The path of the session's stream. The unary methods' paths are in control.h, that of the data
// stream is the transport's.
inline constexpr char kSessionMethod[] = "/evergrad.v1.Coordinator/Session";

// Attempts in hand that a Hello names: those that wait at a worker, the one that runs, and as many
// that are done and not answered.
inline constexpr int kHeldAttemptsMax = 2 * (4096 + 1);

// Of closures of functions jobs.
inline constexpr std::size_t kFunctionNameBytesMax = 128,
                             kFunctionsMax = 256;  // registered in one worker
inline constexpr std::size_t kArgumentBytesMax = 1u << 20, kResultBytesMax = 1u << 20;

// Files of a runs folder on their way (RunFileChunk, ReadRunFile). A heartbeat waits behind one
// window at most.
inline constexpr std::size_t kRunFileChunkMax = 256u << 10;
inline constexpr std::size_t kRunFileWindow = 4 * kRunFileChunkMax;
// A file that the coordinator writes into each runs folder; its contents name the job and the
// coordinator's host.
inline constexpr char kRunMarkFile[] = ".evergrad-run";

template <class Tag>
v1::Stamp ToProto(const Stamp<Tag>& stamp) {
  v1::Stamp proto;
  proto.set_term(stamp.term);
  proto.set_n(stamp.n);
  return proto;
}
// FromProto<ShardEpoch>(m.epoch()). Any pair is a stamp; an absent message is (0,0).
template <class S>
S FromProto(const v1::Stamp& proto) {
  S stamp;
  stamp.term = proto.term();
  stamp.n = proto.n();
  return stamp;
}

v1::IntervalSet ToProto(const IntervalSet& set);
// InvalidArgument: an odd count, an empty or falling interval, intervals that overlap or do not
// rise.
absl::StatusOr<IntervalSet> FromProto(const v1::IntervalSet& proto);

v1::Role ToProto(Role role);
absl::StatusOr<Role> FromProto(v1::Role role);  // InvalidArgument for an unknown one.

using evergrad::CleanText;

// At most kErrorDetailBytesMax when serialized; texts are cut. Blame, origin, retryability and code
// survive the way there and back. `origin` is used when the status names none. The result for an OK
// status is EG_CHECKed away.
inline constexpr std::size_t kErrorDetailBytesMax = 4096;
v1::ErrorDetail ToErrorDetail(const absl::Status& status, absl::string_view origin = "");
// Never OK; an unknown code is kUnknown.
absl::Status FromErrorDetail(const v1::ErrorDetail& detail);

// The numbering part of a plan message; Plan::Create checks it.
plan::PlanSpec PlanSpecOf(const v1::Plan& proto);
void FillPlan(const plan::PlanSpec& spec, v1::Plan* proto);

}  // namespace evergrad::client
