// The facts that each listed task has reported about itself: its Hello, its newest progress, and
// its reason for leaving. `psctl task list` shows these facts together with the membership.
//
// Not thread-safe: the control executor owns it. A report lives as long as membership lists its
// task.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/membership/membership.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

// Limit of each text that a task sends about itself.
inline constexpr std::size_t kTaskTextBytesMax = 1024;

struct TaskReport {
  v1::Hello hello;  // without its shards and attempts
  v1::WorkerProgress worker;
  v1::ServerProgress server;
  std::int64_t since_ms = 0;  // wall time at which the task entered its state
  TaskState last_state = TaskState::kAlive;
  std::string leaving;         // reason for leaving; "" if the task stays
  std::string recommendation;  // the newest v1::Heartbeat::recommendation
};

class TaskReports {
 public:
  // `membership` outlives this object.
  explicit TaskReports(const Membership* membership) : membership_(membership) {}

  // Begins the report of a task that has just registered.
  void Enter(TaskId task, const v1::Hello& hello, std::int64_t wall_ms);
  void Remove(TaskId task) { reports_.erase(task); }
  const TaskReport* Find(TaskId task) const;  // null if unknown
  // OnHeartbeat, SetLeaving and SetCordoned ignore an unknown task. OnHeartbeat returns true if the
  // heartbeat has a recommendation that differs from the previous one.
  bool OnHeartbeat(TaskId task, const v1::Heartbeat& heartbeat);
  void SetLeaving(TaskId task, absl::string_view reason);
  // The cordon of a task is part of its Hello; SetCordoned changes it afterwards. An unknown task
  // is not cordoned.
  bool IsCordoned(TaskId task) const;
  void SetCordoned(TaskId task, bool on);
  // Records changes of state, and removes the tasks that membership no longer lists.
  void Tick(std::int64_t wall_ms);

 private:
  const Membership* const membership_;
  std::map<TaskId, TaskReport> reports_;
};

}  // namespace evergrad::coordinator
