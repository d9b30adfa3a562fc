#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {

template <>
void ControlPlane::Serve(const v1::ReadTaskLogsRequest& request, Responder responder) {
  log_reads_.Begin(Now(), NextNumber(), request, std::move(responder));
}

}  // namespace evergrad::coordinator
