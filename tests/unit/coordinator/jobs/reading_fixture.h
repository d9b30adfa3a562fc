// The closures of a job that only read, such as those of an evaluation, and the workers of the job.
// There is no Job object.
#pragma once

#include <string>
#include <vector>

#include "coordinator/jobs/reading_work.h"
#include "part_fixture.h"

namespace evergrad::coordinator {

struct ReadingFixture : PartFixture {
  using PartFixture::PartFixture;
  JobWorker& AddWorker(std::uint64_t task) {
    JobWorker& worker = roster.workers()[TaskId(task)];
    worker.task = TaskId(task);
    worker.identity = std::to_string(task);
    worker.process = task;
    worker.ready = true;
    return worker;
  }
  // Returns the grants that were sent to `task` since the last call.
  std::vector<v1::Grant> Grants(std::uint64_t task) {
    std::vector<v1::Grant> grants;
    for (const v1::CoordinatorMessage& message : Take(TaskId(task))) {
      if (message.has_grant()) grants.push_back(message.grant());
    }
    return grants;
  }
  // Returns a worker's message about the attempt of this grant, such as a Done.
  template <class Message>
  static Message Answer(const v1::Grant& grant) {
    Message message;
    message.set_closure(grant.closure());
    *message.mutable_attempt() = grant.attempt();
    if constexpr (!std::is_same_v<Message, v1::AttemptDropped>) message.set_kind(grant.kind());
    return message;
  }

  bool blocked = false;
  EpochAccount epochs{{}, MonoTime{0}};
  WorkerRoster roster{Part(), &epochs};
  ReadingWork reading{Part(),
                      &roster,
                      {.blocked = [this] { return blocked; },
                       .fill_order = [](v1::ExportOrder* order) { order->set_mark("mark"); },
                       .no_space =
                           [this](ReadingRound::Closure*, absl::string_view why) {
                             said.push_back(absl::StrCat("no space: ", why));
                           }}};
};

}  // namespace evergrad::coordinator
