#include "coordinator/service/task_reports.h"

#include <string>
#include <utility>

#include "common/client/protocol.h"

namespace evergrad::coordinator {

void TaskReports::Enter(TaskId task, const v1::Hello& hello, std::int64_t wall_ms) {
  TaskReport& report = reports_[task];
  report.hello = hello;
  report.hello.clear_shards();
  report.hello.clear_attempts();
  report.since_ms = wall_ms;
}

const TaskReport* TaskReports::Find(TaskId task) const {
  const auto found = reports_.find(task);
  return found == reports_.end() ? nullptr : &found->second;
}

bool TaskReports::OnHeartbeat(TaskId task, const v1::Heartbeat& heartbeat) {
  const auto found = reports_.find(task);
  if (found == reports_.end()) return false;
  TaskReport& report = found->second;
  if (heartbeat.has_worker()) {
    report.worker = heartbeat.worker();
    report.worker.clear_steps_log();
    report.worker.clear_device();  // the job keeps the device's report
    report.worker.set_state(client::CleanText(heartbeat.worker().state(), 64));
    report.worker.set_waiting_for(
        client::CleanText(heartbeat.worker().waiting_for(), kTaskTextBytesMax));
  }
  if (heartbeat.has_server()) report.server = heartbeat.server();
  std::string recommendation = client::CleanText(heartbeat.recommendation(), kTaskTextBytesMax);
  if (recommendation == report.recommendation) return false;
  report.recommendation = std::move(recommendation);
  return !report.recommendation.empty();
}

void TaskReports::SetLeaving(TaskId task, absl::string_view reason) {
  if (const auto found = reports_.find(task); found != reports_.end())
    found->second.leaving = std::string(reason);
}

bool TaskReports::IsCordoned(TaskId task) const {
  const auto found = reports_.find(task);
  return found != reports_.end() && found->second.hello.cordoned();
}

void TaskReports::SetCordoned(TaskId task, bool on) {
  if (const auto found = reports_.find(task); found != reports_.end())
    found->second.hello.set_cordoned(on);
}

void TaskReports::Tick(std::int64_t wall_ms) {
  for (auto& [task, report] : reports_) {
    const TaskEntry* entry = membership_->Find(task);
    if (entry != nullptr && entry->state != report.last_state) {
      report.last_state = entry->state;
      report.since_ms = wall_ms;
    }
  }
  std::erase_if(reports_, [&](const auto& one) { return membership_->Find(one.first) == nullptr; });
}

}  // namespace evergrad::coordinator
