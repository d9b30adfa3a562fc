#include "coordinator/service/task_calls.h"

namespace evergrad::coordinator {

void TaskCalls::Serve(const v1::ReadTaskLogsRequest& request, const Responder& responder) {
  parts_.log_reads->Begin(parts_.clock->Now(), parts_.life->NextNumber(), request, responder);
}

}  // namespace evergrad::coordinator
