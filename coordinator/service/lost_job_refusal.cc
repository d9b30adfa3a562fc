// Line 18a: the journal has lost jobs, or the coordinator started without a journal. The servers
// may hold the only copy of these jobs, so it is dropped only if an operator says so.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kSaidMax = 4096;

}  // namespace

LostJobs ControlPlane::MakeLostJobs() const {
  JournalKnows knows;
  knows.journals = parts_.store->persistent();
  knows.forgets = options_.forget_unknown_jobs;
  knows.known = [this](JobUid uid) { return jobs_.Contains(uid); };
  knows.removed = [this](JobUid uid) { return parts_.store->Removed(uid); };
  knows.term = parts_.store->term().value();
  knows.jobs = jobs_.size();
  return LostJobs(std::move(knows));
}

// Called before the first message of this life.
bool ControlPlane::EndsForLostJobs() {
  LostJobs lost = MakeLostJobs();
  for (const std::uint64_t number : sessions_.deferred()) {
    const Session* session = sessions_.Find(number);
    if (session == nullptr) continue;
    const v1::Hello& hello = session->hello;
    // A peer that is not the task that it claims to be must not prevent a start of the coordinator.
    if (!transport::CheckPeer(session->peer,
                              absl::StrCat(RoleName(session->role), "/", hello.identity()))
             .ok())
      continue;
    lost.Add(hello);
  }
  if (lost.empty()) return false;
  EndLife(lost.Text());
  return true;
}

// Checks a server that registers after the term was chosen. Running jobs continue: only this server
// is refused, and it keeps its shards.
bool ControlPlane::RefusesForLostJobs(Session& session, const v1::Hello& hello) {
  LostJobs lost = MakeLostJobs();
  if (!transport::CheckPeer(session.peer,
                            absl::StrCat(RoleName(session.role), "/", hello.identity()))
           .ok() ||
      !lost.Add(hello))
    return false;
  const std::string text = lost.Text();
  if (!jobs_.HasLiving()) {
    EndLife(text);
    return true;
  }
  if (lost_jobs_said_.size() < kSaidMax && lost_jobs_said_.insert(hello.process_uid()).second) {
    parts_.logger->Error(absl::StrCat(
        "refused to register a parameter server, the coordinator's own jobs continue: ", text));
  }
  Reject(session.number, "lost_journal", text, false, options_.membership.lease);
  return true;
}

void ControlPlane::EndLife(const std::string& why) {
  if (std::exchange(life_over_, true)) return;
  for (const std::uint64_t number : sessions_.Numbers())
    Reject(number, "lost_journal", why, false, options_.membership.lease);
  if (parts_.on_end) parts_.on_end(absl::DataLossError(why));
}

}  // namespace evergrad::coordinator
