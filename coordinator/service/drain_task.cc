#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "coordinator/service/task_calls.h"

namespace evergrad::coordinator {

absl::StatusOr<Session*> TaskCalls::SessionOf(const std::string& task,
                                              absl::string_view action) const {
  const std::pair<std::string, std::string> name = absl::StrSplit(task, absl::MaxSplits('/', 1));
  const bool worker = name.first == RoleName(Role::kWorker),
             server = name.first == RoleName(Role::kPsServer);
  if ((!worker && !server) || name.second.empty()) {
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("only a worker or server can be ", action,
                     ": want=worker/NAME or ps_server/N got=", task.substr(0, 200))));
  }
  const TaskEntry* entry =
      parts_.membership->FindIdentity(worker ? Role::kWorker : Role::kPsServer, name.second);
  Session* session = entry == nullptr ? nullptr : parts_.sessions->Of(entry->id);
  if (session == nullptr) {
    return UserError(absl::NotFoundError(absl::StrCat(
        "the task has no session (psctl task list shows all tasks): task=", task.substr(0, 200))));
  }
  return session;
}

// Sends the request to the task through its session. The task then acts as after a preemption
// notice. A repeated request is sent again and changes nothing.
void TaskCalls::Serve(const v1::DrainTaskRequest& request, const Responder& responder) {
  const auto session = SessionOf(request.task(), "drained");
  if (!session.ok()) return responder->Answer(session.status());
  v1::CoordinatorMessage message;
  message.mutable_drain()->set_reason("psctl task drain");
  parts_.sessions->Queue(**session, message);
  AnswerWith(*responder, v1::DrainTaskResponse());
}

}  // namespace evergrad::coordinator
