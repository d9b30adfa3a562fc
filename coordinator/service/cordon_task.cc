#include "absl/strings/str_cat.h"
#include "coordinator/service/task_calls.h"

namespace evergrad::coordinator {

// The task keeps the state for this coordinator and for later ones. A repeated request changes
// nothing.
void TaskCalls::Serve(const v1::CordonTaskRequest& request, const Responder& responder) {
  const auto session = SessionOf(request.task(), "cordoned");
  if (!session.ok()) return responder->Answer(session.status());
  const TaskId task = (*session)->task;
  v1::CoordinatorMessage message;
  message.mutable_cordon()->set_on(request.on());
  parts_.sessions->Queue(**session, message);
  parts_.reports->SetCordoned(task, request.on());
  for (Job* job : parts_.jobs->Running()) job->OnServerCordon(task, request.on());
  parts_.division->DivideSoon();
  AnswerWith(*responder, v1::CordonTaskResponse());
}

}  // namespace evergrad::coordinator
