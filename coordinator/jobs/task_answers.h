// Messages to a task that both a job and the control plane send: the end of obsolete shards and
// attempts, and the beginning of a further job. Pure.
#pragma once

#include <utility>
#include <vector>

#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

// Returns the message that tells a server to drop a shard.
inline v1::CoordinatorMessage Drop(std::uint64_t job, std::uint32_t shard, const v1::Stamp& epoch) {
  v1::CoordinatorMessage message;
  message.mutable_drop()->set_job_uid(job);
  message.mutable_drop()->set_shard(shard);
  *message.mutable_drop()->mutable_epoch() = epoch;
  return message;
}

// Fills the answer to the Done of an attempt: the Done is acknowledged, or the attempt is
// superseded.
inline void FillDoneAnswer(std::uint64_t job, std::uint64_t closure, const v1::Stamp& attempt,
                           bool superseded, v1::DoneAnswer* answer) {
  answer->set_job_uid(job);
  answer->set_closure(closure);
  *answer->mutable_attempt() = attempt;
  answer->set_superseded(superseded);
}

// Returns the message that tells a worker to forget an attempt, because another attempt has
// replaced it, or because the closure needs no attempt. The worker need not have sent a Done.
inline v1::CoordinatorMessage Superseded(std::uint64_t job, std::uint64_t closure,
                                         const v1::Stamp& attempt) {
  v1::CoordinatorMessage message;
  FillDoneAnswer(job, closure, attempt, /*superseded=*/true, message.mutable_done_answer());
  return message;
}

// Returns the messages that tell a registered task about a further job. `said` contains the job,
// and the job's shard map if there is one already.
inline std::vector<v1::CoordinatorMessage> JobAndMap(v1::Registered said) {
  std::vector<v1::CoordinatorMessage> messages;
  if (said.has_job()) *messages.emplace_back().mutable_job() = std::move(*said.mutable_job());
  if (said.has_map()) *messages.emplace_back().mutable_map() = std::move(*said.mutable_map());
  return messages;
}

}  // namespace evergrad::coordinator
