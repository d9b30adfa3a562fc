#include "common/client/protocol.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {

template <>
void ControlPlane::Serve(const v1::GetClusterInfoRequest&, Responder responder) {
  v1::GetClusterInfoResponse response;
  response.set_term(term_.value());  // 0 while registrations are still being collected
  response.set_life_id(life_id_);
  response.set_build_id(options_.build_id);
  response.set_protocol_version(client::kProtocolVersion);
  response.set_runs_folder(options_.runs_folder);
  response.set_pid(options_.pid);
  response.set_servers_alive(membership_.Count(Role::kPsServer, TaskState::kAlive));
  response.set_workers_alive(membership_.Count(Role::kWorker, TaskState::kAlive));
  response.set_address(address_);
  AnswerWith(*responder, response);
}

}  // namespace evergrad::coordinator
