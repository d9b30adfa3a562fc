#include "worker/runner/attempt_reports.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "worker/runner/session_messages.h"
#include "worker/runner/shortfall.h"

namespace evergrad::worker {
namespace {

constexpr std::uint64_t kDoneOverheadBytes = 128;  // v0, v1, and the message around the Done
constexpr std::uint64_t kHeldOverheadBytes = 8;    // tag and length of one attempt in a Hello
static_assert(client::kHeldAttemptsMax == 2 * (AttemptBook::kQueuedMax + 1));

v1::Lack ToProto(Shortfall shortfall) {
  switch (shortfall) {
    case Shortfall::kNone: return v1::NO_LACK;
    case Shortfall::kAbility: return v1::ABILITY;
    case Shortfall::kInput: return v1::INPUT;
  }
  return v1::NO_LACK;
}

}  // namespace

void AttemptReports::SendDropped(const Work& work, const Dropped& dropped,
                                 const log::Context& about) {
  env_.metrics->dropped.Add();
  env_.logger->Write(dropped.level,
                     absl::StrCat("attempt handed back: attempt=", work.attempt.ToString(),
                                  " reason=", dropped.reason),
                     about);
  v1::TaskMessage message;
  v1::AttemptDropped& to = *message.mutable_dropped();
  FillAttempt(work, &to);
  to.set_reason(dropped.reason);
  to.set_superseded(dropped.superseded_by.has_value());
  if (dropped.superseded_by) to.set_shard(dropped.superseded_by->value());
  env_.send(std::move(message));
}

void AttemptReports::SendFailed(const Work& work, const absl::Status& status,
                                const std::string& identity, const log::Context& about) {
  env_.metrics->failed.Add();
  const bool user = BlameOf(status) == Blame::kUser;
  const Shortfall shortfall = ShortfallOf(status);
  if (shortfall != Shortfall::kNone) {
    env_.logger->Warning(
        absl::StrCat("attempt handed back, because this worker cannot take part in the job: ",
                     status.message()),
        about);
  } else {
    env_.logger->Error(
        absl::StrCat(user ? "closure failed with a user error: " : "closure failed: ",
                     status.message()),
        about);
  }
  v1::TaskMessage message;
  v1::Failed& failed = *message.mutable_failed();
  FillWork(work, &failed);
  *failed.mutable_cause() = client::ToErrorDetail(status, absl::StrCat("worker/", identity));
  failed.set_user_error(user);
  failed.set_lack(ToProto(shortfall));
  env_.send(std::move(message));
}

absl::Status AttemptReports::CheckSize(const Work& work, const v1::Done& done) const {
  const std::uint64_t bytes = done.ByteSizeLong() + kDoneOverheadBytes;
  if (bytes <= env_.message_bytes_max) return absl::OkStatus();
  const char* const hint =
      work.kind == WorkKind::kDescribe
          ? "; a model with fewer variables or shorter names has a shorter description"
          : "";
  return UserError(absl::ResourceExhaustedError(
      absl::StrCat("the report of a closure exceeds the largest size of a message", hint,
                   ": kind=", v1::WorkKind_Name(done.kind()), " closure=", ClosureName(work),
                   " bytes=", bytes, " limit=", env_.message_bytes_max)));
}

void AttemptReports::SendDone(Attempt attempt, v1::WorkerProgress progress) {
  const auto done = done_.find(attempt);
  EG_CHECK(done != done_.end());
  v1::TaskMessage heartbeat;
  *heartbeat.mutable_heartbeat()->mutable_worker() = std::move(progress);
  env_.send(std::move(heartbeat));
  v1::TaskMessage message;
  *message.mutable_done() = done->second;
  env_.send(std::move(message));
}

void AttemptReports::ForgetJob(JobUid job) {
  std::erase_if(done_, [&](const auto& entry) { return entry.second.job_uid() == job.value(); });
}

void FillHeld(const std::vector<AttemptBook::Held>& held, std::uint64_t message_bytes_max,
              v1::Hello* hello) {
  std::uint64_t bytes = hello->ByteSizeLong() + kDoneOverheadBytes;
  for (const AttemptBook::Held& one : held) {
    v1::HeldAttempt attempt;
    FillWork(one.work, &attempt);
    *attempt.mutable_v1() = client::ToProto(one.v1);
    attempt.set_proof(one.work.proof);
    attempt.set_granted_to(one.work.granted_to);
    bytes += attempt.ByteSizeLong() + kHeldOverheadBytes;
    if (bytes > message_bytes_max || hello->attempts_size() == client::kHeldAttemptsMax) return;
    *hello->add_attempts() = std::move(attempt);
  }
}

}  // namespace evergrad::worker
