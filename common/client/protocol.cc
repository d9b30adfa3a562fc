#include "common/client/protocol.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace evergrad::client {
namespace {

constexpr std::size_t kMessageBytesMax = 3000;
constexpr std::size_t kOriginBytesMax = 256;
constexpr char kUserKind[] = "user";

// Returns the kind of an error as one word for people. Programs decide only by `retryable`, and by
// whether the kind is kUserKind.
const char* KindOf(const absl::Status& status) {
  if (BlameOf(status) == Blame::kUser) return kUserKind;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled: return "transport";
    case absl::StatusCode::kResourceExhausted: return "limit";
    case absl::StatusCode::kAborted: return "fenced";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange: return "malformed";
    case absl::StatusCode::kNotFound: return "missing";
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated: return "permission";
    case absl::StatusCode::kUnimplemented: return "unsupported";
    default: return "internal";
  }
}

}  // namespace

v1::IntervalSet ToProto(const IntervalSet& set) {
  v1::IntervalSet proto;
  proto.mutable_bounds()->Reserve(static_cast<int>(set.interval_count() * 2));
  for (const auto& interval : set.Intervals()) {
    proto.add_bounds(interval.begin);
    proto.add_bounds(interval.end);
  }
  return proto;
}

absl::StatusOr<IntervalSet> FromProto(const v1::IntervalSet& proto) {
  const int count = proto.bounds_size();
  if (count % 2 != 0)
    return absl::InvalidArgumentError(
        absl::StrCat("interval set has an odd number of bounds: bounds=", count));
  IntervalSet set;
  std::uint64_t last_end = 0;
  for (int i = 0; i < count; i += 2) {
    const std::uint64_t begin = proto.bounds(i), end = proto.bounds(i + 1);
    if (begin >= end)
      return absl::InvalidArgumentError(
          absl::StrCat("interval is empty or has decreasing bounds: position=", i, " begin=", begin,
                       " end=", end));
    if (i > 0 && begin < last_end) {
      return absl::InvalidArgumentError(
          absl::StrCat("intervals overlap or are out of order: position=", i, " begin=", begin,
                       " previous_end=", last_end));
    }
    set.AddRange(begin, end);
    last_end = end;
  }
  return set;
}

v1::Role ToProto(Role role) {
  switch (role) {
    case Role::kCoordinator: return v1::ROLE_COORDINATOR;
    case Role::kPsServer: return v1::ROLE_PS_SERVER;
    case Role::kWorker: return v1::ROLE_WORKER;
  }
  return v1::ROLE_UNSPECIFIED;
}

absl::StatusOr<Role> FromProto(v1::Role role) {
  switch (role) {
    case v1::ROLE_COORDINATOR: return Role::kCoordinator;
    case v1::ROLE_PS_SERVER: return Role::kPsServer;
    case v1::ROLE_WORKER: return Role::kWorker;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("unknown role: role=", static_cast<int>(role)));
  }
}

v1::ErrorDetail ToErrorDetail(const absl::Status& status, absl::string_view origin) {
  EG_CHECK(!status.ok());
  const std::string own_origin = OriginOf(status);
  v1::ErrorDetail detail;
  detail.set_origin_text(
      CleanText(own_origin.empty() ? origin : absl::string_view(own_origin), kOriginBytesMax));
  detail.set_kind(KindOf(status));
  detail.set_retryable(IsRetryable(status));
  detail.set_message(CleanText(status.message(), kMessageBytesMax));
  detail.set_code(static_cast<std::int32_t>(status.code()));
  return detail;
}

absl::Status FromErrorDetail(const v1::ErrorDetail& detail) {
  const bool known = detail.code() >= 1 && detail.code() <= 16;
  absl::Status status(
      known ? static_cast<absl::StatusCode>(detail.code()) : absl::StatusCode::kUnknown,
      CleanText(detail.message(), kMessageBytesMax));
  if (detail.kind() == kUserKind) status = UserError(std::move(status));
  if (IsRetryable(status) != detail.retryable())
    status = WithRetryable(std::move(status), detail.retryable());
  if (!detail.origin_text().empty())
    status = WithOrigin(std::move(status), CleanText(detail.origin_text(), kOriginBytesMax));
  return status;
}

plan::PlanSpec PlanSpecOf(const v1::Plan& proto) {
  plan::PlanSpec spec;
  spec.train_examples = proto.train_examples();
  spec.batch_size = proto.batch_size();
  spec.steps_per_closure = proto.steps_per_closure();
  spec.epochs = proto.epochs();
  spec.shuffle = proto.shuffle();
  spec.shuffle_seed = proto.shuffle_seed();
  spec.eval_examples = proto.eval_examples();
  spec.eval_batch_size = proto.eval_batch_size();
  spec.eval_steps_per_closure = proto.eval_steps_per_closure();
  return spec;
}

void FillPlan(const plan::PlanSpec& spec, v1::Plan* proto) {
  proto->set_train_examples(spec.train_examples);
  proto->set_batch_size(spec.batch_size);
  proto->set_steps_per_closure(spec.steps_per_closure);
  proto->set_epochs(spec.epochs);
  proto->set_shuffle(spec.shuffle);
  proto->set_shuffle_seed(spec.shuffle_seed);
  proto->set_eval_examples(spec.eval_examples);
  proto->set_eval_batch_size(spec.eval_batch_size);
  proto->set_eval_steps_per_closure(spec.eval_steps_per_closure);
}

}  // namespace evergrad::client
