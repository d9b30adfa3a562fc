// The Control RPCs about tasks and the cluster: ListTasks, DrainTask, CordonTask,
// ReadTaskLogs and GetClusterInfo, each in a separate file.
//
// Not thread-safe: the control executor owns it.
#pragma once

#include "coordinator/service/control_calls.h"
#include "coordinator/service/service_parts.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::coordinator {

class TaskCalls {
 public:
  explicit TaskCalls(ServiceParts parts) : parts_(parts) {}

  void Serve(const v1::ListTasksRequest& request, const Responder& responder);
  void Serve(const v1::DrainTaskRequest& request, const Responder& responder);
  void Serve(const v1::CordonTaskRequest& request, const Responder& responder);
  void Serve(const v1::ReadTaskLogsRequest& request, const Responder& responder);
  void Serve(const v1::GetClusterInfoRequest& request, const Responder& responder);

 private:
  // Returns the session of a worker or server ("ps_server/0"). `action` names the call in the
  // user's error ("drained").
  absl::StatusOr<Session*> SessionOf(const std::string& task, absl::string_view action) const;
  // These functions fill in rows of ListTasks.
  void FillOwnRow(v1::TaskRow* row) const;
  void FillWorkerRow(const TaskEntry& entry, const v1::WorkerProgress& worker,
                     v1::TaskRow* row) const;
  void FillServerRow(const TaskEntry& entry, const v1::ServerProgress& server,
                     v1::TaskRow* row) const;

  const ServiceParts parts_;
};

}  // namespace evergrad::coordinator
