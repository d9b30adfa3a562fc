// Constants and conversions that both ends of the protocol share, in addition to the protos: the
// version, the path of the session, and conversions between messages and the types of common/base.
// Pure functions; input is checked.
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

// The path of the session's stream. The paths of unary methods are in control.h, and the path of
// the data stream is in common/transport/streams/link.h.
inline constexpr char kSessionMethod[] = "/evergrad.v1.Coordinator/Session";

// Largest number of attempts that a Hello names: the queued attempts, the running attempt, and the
// same number of attempts that are done and not yet acknowledged.
inline constexpr int kHeldAttemptsMax = 2 * (4096 + 1);

// Limits for closures of functions jobs. kFunctionsMax is the largest number of functions that one
// worker may register.
inline constexpr std::size_t kFunctionNameBytesMax = 128, kFunctionsMax = 256;
inline constexpr std::size_t kArgumentBytesMax = 1u << 20, kResultBytesMax = 1u << 20;

// Sizes for the transfer of files of a runs folder (RunFileChunk, ReadRunFile). At most
// kRunFileWindow unconfirmed bytes are in flight, so a heartbeat waits behind at most this number
// of bytes.
inline constexpr std::size_t kRunFileChunkMax = 256u << 10;
inline constexpr std::size_t kRunFileWindow = 4 * kRunFileChunkMax;
// The name of a file that the coordinator writes into each runs folder. The file names the job and
// the coordinator's host.
inline constexpr char kRunMarkFile[] = ".evergrad-run";
inline constexpr std::uint64_t kRunMarkBytesMax = 4096;  // a larger file is not a mark file

// Limit of a batch of messages in a session, in both directions. A larger message is sent as a
// separate batch.
inline constexpr std::uint64_t kSessionBatchBytesMax = 1u << 20;

// Limits for the list of servers that a worker reports as unreachable (WorkerProgress::unreached).
inline constexpr int kUnreachedServersMax = 64;
inline constexpr std::size_t kUnreachedReasonBytesMax = 200;

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
// Returns InvalidArgument for an odd number of bounds, an empty interval, falling bounds, or
// intervals that overlap or are out of order.
absl::StatusOr<IntervalSet> FromProto(const v1::IntervalSet& proto);

v1::Role ToProto(Role role);
absl::StatusOr<Role> FromProto(v1::Role role);  // InvalidArgument for an unknown role.

using evergrad::CleanText;

// Converts `status` to a message of at most kErrorDetailBytesMax bytes; texts are truncated. Blame,
// origin, retryability and code survive the conversion in both directions. `origin` is used if the
// status has none. The status must not be OK (EG_CHECK).
inline constexpr std::size_t kErrorDetailBytesMax = 4096;
v1::ErrorDetail ToErrorDetail(const absl::Status& status, absl::string_view origin = "");
// Returns the status that `detail` describes. The result is never OK; an unknown code becomes
// kUnknown.
absl::Status FromErrorDetail(const v1::ErrorDetail& detail);

// Returns the fields of a plan message that define the numbering of closures; Plan::Create checks
// them.
plan::PlanSpec PlanSpecOf(const v1::Plan& proto);
void FillPlan(const plan::PlanSpec& spec, v1::Plan* proto);

}  // namespace evergrad::client
