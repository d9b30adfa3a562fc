#include "common/client/protocol.h"
#include "coordinator/service/task_calls.h"

namespace evergrad::coordinator {

void TaskCalls::Serve(const v1::GetClusterInfoRequest&, const Responder& responder) {
  v1::GetClusterInfoResponse response;
  response.set_term(parts_.life->term.value());  // 0 while registrations are collected
  response.set_life_id(parts_.life->id);
  response.set_build_id(parts_.options->build_id);
  response.set_protocol_version(client::kProtocolVersion);
  response.set_runs_folder(parts_.options->runs_folder);
  response.set_pid(parts_.options->pid);
  response.set_servers_alive(parts_.membership->Count(Role::kPsServer, TaskState::kAlive));
  response.set_workers_alive(parts_.membership->Count(Role::kWorker, TaskState::kAlive));
  response.set_address(parts_.life->address);
  AnswerWith(*responder, response);
}

}  // namespace evergrad::coordinator
