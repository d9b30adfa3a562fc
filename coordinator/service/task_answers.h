// Messages of the control plane to a task about a job to which the task does not belong. The task's
// shards or attempts of that job are obsolete. Pure.
#pragma once

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

}  // namespace evergrad::coordinator
