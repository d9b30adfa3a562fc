// Conversions between the messages of the coordinator's session and the runner's types. The
// functions are pure, and any thread may call them. Messages are not trusted: an invalid value
// gives InvalidArgument.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/client/protocol.h"
#include "evergrad/v1/session.pb.h"
#include "worker/runner/attempt_book.h"

namespace evergrad::worker {

v1::WorkKind ToProto(WorkKind kind);
// Returns the kind, or nullopt for a kind that this build does not know.
std::optional<WorkKind> KindOf(v1::WorkKind kind);
// Returns the worker's state in heartbeats during such work: "running", "evaluating", …
const char* StateName(WorkKind kind);
// Returns the closure's name in log lines: its number, or "eval EPOCH/NUMBER".
std::string ClosureName(const Work& work);

// Both functions return kTrain for a kind that this build does not know; the caller checks KindOf.
Work WorkOf(const v1::HeldAttempt& attempt);
// `granted_to` is the identity of this worker at the time of the grant.
Work WorkOf(const v1::Grant& grant, const std::string& granted_to);

// Fills job, closure and attempt.
template <class Message>
void FillAttempt(const Work& work, Message* to) {
  to->set_job_uid(work.job.value());
  to->set_closure(work.closure.value());
  *to->mutable_attempt() = client::ToProto(work.attempt);
}
// Fills job, closure, attempt, the kind and the targets.
template <class Message>
void FillWork(const Work& work, Message* to) {
  FillAttempt(work, to);
  to->set_kind(ToProto(work.kind));
  to->set_all_targets(work.all_targets);
  for (const ShardId shard : work.targets) to->add_targets(shard.value());
}

// A shard map, and the endpoints of its servers, by identity.
struct PlacedShards {
  ShardMap map;
  std::map<std::string, v1::Endpoint> endpoints;
};
// Returns InvalidArgument if a shard's number is not below the number of shards.
absl::StatusOr<PlacedShards> PlacedShardsOf(const v1::ShardMap& proto);

}  // namespace evergrad::worker
