#include "coordinator/service/server_drains.h"

namespace evergrad::coordinator {

bool ServerDrains::Waits(TaskId server) const {
  const auto found = drains_.find(server);
  return found != drains_.end() && found->second.waits;
}

void ServerDrains::OnDrained(TaskId server, const v1::Drained& drained) {
  if (sessions_->Of(server) == nullptr) return;
  Drain& drain = drains_[server];
  drain.jobs[drained.job_uid()] = drained.cannot();
  Check(server, drain);
}

void ServerDrains::Check(TaskId server) {
  if (const auto found = drains_.find(server); found != drains_.end()) Check(server, found->second);
}

void ServerDrains::CheckAll() {
  for (auto& [server, drain] : drains_) Check(server, drain);
}

void ServerDrains::Check(TaskId server, Drain& drain) {
  Session* const session = sessions_->Of(server);
  if (session == nullptr || !drain.waits || drain.said) return;
  std::string cannot;
  for (const Job* job : jobs_->Running()) {
    const auto said = drain.jobs.find(job->uid().value());
    if (said == drain.jobs.end()) return;
    if (cannot.empty()) cannot = said->second;
  }
  drain.said = true;
  v1::CoordinatorMessage message;
  message.mutable_drained()->set_cannot(cannot);
  sessions_->Queue(*session, message);
}

}  // namespace evergrad::coordinator
