// LEDGER line 18a: the journal has lost jobs, or the coordinator has started without a journal. The
// servers may hold the only copy of these jobs, so the copy is dropped only on an operator's order.
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/service/admission.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kSaidMax = 4096;

}  // namespace

LostJobs Admission::MakeLostJobs() const {
  JournalKnows knows;
  knows.journals = parts_.life->journaled;
  knows.forgets = parts_.options->forget_unknown_jobs;
  knows.known = [this](JobUid uid) { return parts_.jobs->Contains(uid); };
  knows.removed = [this](JobUid uid) { return parts_.store->Removed(uid); };
  knows.term = parts_.store->term().value();
  knows.jobs = parts_.jobs->size();
  return LostJobs(std::move(knows));
}

// Runs before the first message of this life is sent.
bool Admission::EndsForLostJobs() {
  LostJobs lost = MakeLostJobs();
  for (const std::uint64_t number : parts_.sessions->deferred()) {
    const Session* session = parts_.sessions->Find(number);
    if (session == nullptr) continue;
    const v1::Hello& hello = session->hello;
    // If the certificate of a peer does not fit its Hello, the peer must not prevent a start of the
    // coordinator.
    if (!transport::CheckPeer(session->peer, TaskName(session->role, hello.identity())).ok())
      continue;
    lost.Add(hello);
  }
  if (lost.empty()) return false;
  EndLife(lost.Text());
  return true;
}

// Handles a server that registers after the term was chosen. Only this server is refused, and it
// keeps its shards. Running jobs continue.
bool Admission::RefusesForLostJobs(const Session& session, const v1::Hello& hello) {
  LostJobs lost = MakeLostJobs();
  if (!transport::CheckPeer(session.peer, TaskName(session.role, hello.identity())).ok() ||
      !lost.Add(hello))
    return false;
  const std::string text = lost.Text();
  if (!parts_.jobs->HasLiving()) {
    EndLife(text);
    return true;
  }
  if (lost_jobs_said_.size() < kSaidMax && lost_jobs_said_.insert(hello.process_uid()).second) {
    parts_.logger->Error(absl::StrCat(
        "refused to register a parameter server; the jobs of this coordinator continue: ", text));
  }
  ends_->Reject(session.number, "lost_journal", text, false, parts_.options->membership.lease);
  return true;
}

void Admission::EndLife(const std::string& why) {
  if (std::exchange(parts_.life->over, true)) return;
  for (const std::uint64_t number : parts_.sessions->Numbers())
    ends_->Reject(number, "lost_journal", why, false, parts_.options->membership.lease);
  if (on_end_) on_end_(absl::DataLossError(why));
}

}  // namespace evergrad::coordinator
