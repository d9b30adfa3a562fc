// The messages of registered tasks. Messages about the task itself are handled here, and all other
// messages go to the jobs that they name.
//
// The Done messages of several batches form one turn of their job, whose changes are committed
// together. The end of a turn is a posted call, so the turn contains the batches that arrived
// before the call was posted. Not thread-safe: the control executor owns it.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "coordinator/service/service_parts.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class TaskMessages {
 public:
  explicit TaskMessages(ServiceParts parts) : parts_(parts) {}

  // Records that a batch has come from a registered task, so that the task counts as alive.
  void Heard(Session& session);
  // Handles one message of a registered task. Returns InvalidArgument, without any change, for a
  // malformed message.
  absl::Status OnMessage(Session& session, const v1::TaskMessage& message);
  // Commits the open turns of all jobs, because any message that leaves may depend on changes of a
  // turn that is not committed yet. Returns false if the store failed.
  bool CommitTurns();

 private:
  // Adds the cloud's recommendation that the task leave its machine to the events of the task's
  // jobs.
  void WarnJobs(const Session& session) const;
  void OnLeaving(const Session& session, const v1::Leaving& leaving);
  absl::Status RouteToJobs(Session& session, const v1::TaskMessage& message,
                           std::optional<std::uint64_t> named);
  // Updates the histograms of the job's work.
  void NoteWork(TaskId worker, const Job& job, const v1::TaskMessage& message);
  void AnswerForNoJob(Session& session, const v1::TaskMessage& message, std::uint64_t job);
  void EndTurns();

  const ServiceParts parts_;
  bool end_posted_ = false;  // a call of EndTurns is posted
};

}  // namespace evergrad::coordinator
