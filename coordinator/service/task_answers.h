// Messages of the control plane to a task about jobs: the end of shards and attempts that are
// obsolete, and the beginning of a further job. Pure.
#pragma once

#include <utility>
#include <vector>

#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

// Tells a server to drop a shard that is no longer needed.
inline v1::CoordinatorMessage Drop(std::uint64_t job, std::uint32_t shard, const v1::Stamp& epoch) {
  v1::CoordinatorMessage message;
  message.mutable_drop()->set_job_uid(job);
  message.mutable_drop()->set_shard(shard);
  *message.mutable_drop()->mutable_epoch() = epoch;
  return message;
}

// Tells a worker to forget an attempt, because another one has replaced it, or because none is
// needed.
inline v1::CoordinatorMessage Superseded(std::uint64_t job, std::uint64_t closure,
                                         const v1::Stamp& attempt) {
  v1::CoordinatorMessage message;
  message.mutable_done_answer()->set_job_uid(job);
  message.mutable_done_answer()->set_closure(closure);
  *message.mutable_done_answer()->mutable_attempt() = attempt;
  message.mutable_done_answer()->set_superseded(true);
  return message;
}

// Tells a registered task of a further job: the contents of a Registered, as far as the job has
// begun.
inline std::vector<v1::CoordinatorMessage> JobAndMap(v1::Registered said) {
  std::vector<v1::CoordinatorMessage> messages;
  if (said.has_job()) *messages.emplace_back().mutable_job() = std::move(*said.mutable_job());
  if (said.has_map()) *messages.emplace_back().mutable_map() = std::move(*said.mutable_map());
  return messages;
}

}  // namespace evergrad::coordinator
