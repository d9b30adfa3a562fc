#include "coordinator/service/task_ends.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"

namespace evergrad::coordinator {

void TaskEnds::Reject(std::uint64_t number, absl::string_view kind, absl::string_view message,
                      bool exit, std::chrono::milliseconds retry_after,
                      const std::optional<RegisterVerdict::Holder>& holder) {
  Session* const session = parts_.sessions->Find(number);
  if (session == nullptr) return;
  v1::CoordinatorMessage rejection;
  v1::Rejected* rejected = rejection.mutable_rejected();
  rejected->set_kind(std::string(kind));
  rejected->set_message(client::CleanText(message, 1024));
  rejected->set_exit(exit);
  rejected->set_retry_after_ms(static_cast<std::uint32_t>(retry_after.count()));
  if (holder) {
    rejected->set_holder_process(holder->process_uid);
    rejected->set_holder_lifeline(holder->lifeline);
    rejected->set_holder_host(holder->host);
    rejected->set_holder_lives(holder->lives);
    rejected->set_free_identity(holder->free_identity);
  }
  parts_.sessions->SendLast(*session, rejection);
  Close(number);
}

void TaskEnds::Close(std::uint64_t number) {
  const std::optional<Session> session = parts_.sessions->Remove(number);
  if (!session) return;
  on_session_closed_();
  if (!session->registered()) return;
  parts_.log_reads->OnSessionClosed(session->task);
  parts_.drains->Remove(session->task);
  if (!parts_.life->stopped)
    Apply(parts_.membership->StreamClosed(parts_.clock->Now(), session->task));
}

void TaskEnds::Apply(const std::vector<MembershipChange>& changes) {
  for (const MembershipChange& change : changes) {
    Apply(change);
    if (!change.close_session) continue;
    if (const Session* session = parts_.sessions->Of(change.task)) {
      Reject(session->number, "not_active", absl::StrCat("lease expired: ", change.reason), false,
             std::chrono::milliseconds(0));
    }
  }
}

void TaskEnds::Apply(const MembershipChange& change) {
  const std::string about =
      absl::StrCat(": task=", TaskName(change.role, change.identity), " reason=", change.reason);
  switch (change.kind) {
    case MembershipChange::Kind::kSuspected:
      parts_.logger->Warning(absl::StrCat("task suspected", about));
      if (change.role != Role::kPsServer) break;
      for (Job* job : parts_.jobs->Running()) job->OnServerAway(change.task, change.reason);
      break;
    case MembershipChange::Kind::kGone:
      parts_.logger->Write(change.leaving ? log::Level::kInfo : log::Level::kWarning,
                           absl::StrCat("task gone", about));
      parts_.metrics->workers_gone.Add();
      if (Job* job = parts_.JobOf(change.task))
        job->OnWorkerGone(change.task, change.reason, change.leaving);
      parts_.division->Remove(change.task);
      parts_.metrics->work_times.ForgetWorker(change.task);
      break;
    case MembershipChange::Kind::kLost:
      parts_.logger->Warning(absl::StrCat("server lost", about));
      parts_.metrics->servers_lost.Add();
      for (Job* job : parts_.jobs->Running())
        job->OnServerLost(change.task, change.identity, change.reason, change.leaving);
      break;
  }
}

}  // namespace evergrad::coordinator
