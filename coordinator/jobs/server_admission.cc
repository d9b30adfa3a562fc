#include "coordinator/jobs/server_admission.h"

#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace evergrad::coordinator {
namespace {

double Seconds(MonoTime span) { return std::chrono::duration<double>(span).count(); }

}  // namespace

// ---------------------------------------------------------------- registrations

absl::Status ServerAdmission::Admit(TaskId task, const std::string& identity,
                                    const std::optional<FormerTask>& former, const v1::Hello& hello,
                                    v1::Registered* registered) {
  // The whole Hello is read before anything changes.
  EG_ASSIGN_OR_RETURN(const std::vector<ClosureBook::HeldShard> held, HeldShardsOf(hello, id_.uid));
  JobServer server = JobServerOf(task, identity, held, hello);
  if (parts_.totals->BeginServer(identity, server.process, server.endpoint)) parts_.want_whole();
  if (former) ReplaceFormer(*former, server);
  shards_.awaited().erase(identity);
  JobServer& admitted = shards_.servers().insert_or_assign(task, std::move(server)).first->second;
  if (parts_.phases->active()) {
    parts_.notices->FillInfo(registered->mutable_job());
    if (!parts_.placer->Admit(admitted, held)) return absl::OkStatus();
    if (parts_.phases->closing()) {
      // The job ends early, so no shard is loaded again on the server. A shard without an owner
      // counts as sealed.
      for (const ClosureBook::AssignOrder& order : admitted.admitted->assigns)
        parts_.seal->OnGone(order.shard);
      admitted.admitted->assigns.clear();
    }
    if (book_) parts_.notices->FillMap(registered->mutable_map());
  }
  job_.Touch();
  return absl::OkStatus();
}

void ServerAdmission::ReplaceFormer(const FormerTask& former, const JobServer& server) {
  if (const auto old = shards_.servers().find(former.task); old != shards_.servers().end()) {
    const double away_s = old->second.AwaySeconds(host_->Now());
    if (former.died) {
      OnDeath(server.identity,
              old->second.ready
                  ? std::string("another process has its identity")
                  : absl::StrFormat(
                        "its session closed %.1f s ago, and another process has its identity now",
                        away_s),
              false, old->second.host);
    } else if (parts_.phases->active() && !old->second.ready && !parts_.phases->window_open() &&
               server.process == old->second.process) {
      job_.Event("away",
                 absl::StrFormat("ps_server/%s reconnected after %.1f s", server.identity, away_s));
    }
    shards_.servers().erase(old);
  }
  EndSession(former.task);
  parts_.queries->Forget(former.task);
}

bool ServerAdmission::Ready(TaskId task) {
  JobServer* server = shards_.Find(task);
  if (server == nullptr) return false;
  server->ready = true;
  parts_.placer->OnReady(*server);
  parts_.seal->OnReady(*server);
  parts_.queries->Ask(task);  // A query in progress may need shards of this server.
  return true;
}

// ---------------------------------------------------------------- servers that leave

std::size_t ServerAdmission::ShardsOf(const JobServer& server) const {
  return book_ && shards_.placed() ? book_->ShardsOf(server.identity).size() : 0;
}

void ServerAdmission::EndSession(TaskId task) {
  if (book_) book_->EndServerSession(task);
  parts_.mover->EndOf(task);
}

bool ServerAdmission::OnLeaving(TaskId task, const std::string& reason, bool drains) {
  JobServer* server = shards_.Find(task);
  if (server == nullptr) return false;
  server->drains |= drains;
  if (!server->leaving.empty()) return false;
  server->leaving = reason;
  if (parts_.phases->active() && drains) {
    const std::size_t shards = ShardsOf(*server);
    job_.Event("drain",
               absl::StrCat("ps_server/", server->identity, " leaves: ", reason, "; ",
                            ShardCount(shards), shards == 1 ? " is" : " are", " to be moved"));
  }
  parts_.mover->OnLeaving(task);
  return true;
}

bool ServerAdmission::OnCordon(TaskId task, bool on) {
  JobServer* server = shards_.Find(task);
  if (server == nullptr || std::exchange(server->cordoned, on) == on) return false;
  job_.Event("state", absl::StrCat("ps_server/", server->identity,
                                   on ? " is cordoned: it gets no new shards"
                                      : " is not cordoned any more"));
  return true;
}

void ServerAdmission::OnAway(TaskId task, absl::string_view reason) {
  JobServer* server = shards_.Find(task);
  if (server == nullptr || !server->ready) return;
  server->ready = false;
  server->away_since = host_->Now();
  EndSession(task);
  if (parts_.phases->active() && !server->leaving.empty()) {
    if (const std::size_t shards = ShardsOf(*server); shards > 0)
      job_.Event("away",
                 absl::StrCat("ps_server/", server->identity,
                              " left after its drain notice and still held ", ShardCount(shards)));
  } else if (parts_.phases->active() && !parts_.deaths->DiesIdle(server->identity)) {
    job_.Event("away", absl::StrFormat(
                           "ps_server/%s disconnected (%s); waiting for it to reconnect (declared "
                           "lost after %.3g s)",
                           server->identity, reason, Seconds(options_.server_lost_after)));
  }
  job_.Touch();
}

bool ServerAdmission::OnLost(TaskId task, const std::string& identity, absl::string_view reason,
                             bool leaving) {
  const auto found = shards_.servers().find(task);
  if (found == shards_.servers().end()) return false;
  const std::string host = found->second.host;
  shards_.servers().erase(found);
  EndSession(task);
  parts_.queries->Forget(task);
  parts_.want_whole();
  OnDeath(identity, reason, leaving, host);
  parts_.placer->GiveAway(identity);
  return true;
}

void ServerAdmission::OnDeath(const std::string& identity, absl::string_view reason, bool leaving,
                              const std::string& host) {
  if (parts_.phases->active())
    parts_.deaths->OnDeath(Role::kPsServer, identity, reason, leaving, nullptr, host);
}

void ServerAdmission::OnProgress(TaskId task, const v1::ServerProgress& said) {
  JobServer* server = shards_.Find(task);
  if (server == nullptr) return;
  for (const v1::JobUsage& use : said.jobs()) {
    if (use.job_uid() != id_.uid.value()) continue;
    parts_.totals->ReportServer(server->identity, use);
    server->shards = use.shards();
    server->bytes = use.bytes();
  }
  if (server->ready || !server->away_since) return;
  // The server was only slow, and still has all of its shards.
  server->away_since.reset();
  server->ready = true;
  if (parts_.phases->active())
    job_.Event("away", absl::StrCat("ps_server/", server->identity, " responds again"));
}

// ---------------------------------------------------------------- a restart of the coordinator

void ServerAdmission::AwaitOwners() {
  for (std::uint32_t p = 0; shards_.placed() && p < shards_.size(); ++p) {
    const std::string& server = book_->durable().map[p].server;
    if (server.empty())
      shards_.Unplace(ShardId(p));
    else
      shards_.awaited()[server] = host_->Now() + options_.server_lost_after;
  }
}

void ServerAdmission::AwaitFromNowOn() {
  for (auto& [identity, lost_at] : shards_.awaited())
    lost_at = host_->Now() + options_.server_lost_after;
}

bool ServerAdmission::LoseMissing() {
  if (parts_.phases->window_open()) return false;
  for (const auto& [awaited, lost_at] : shards_.awaited()) {
    if (lost_at > host_->Now()) continue;
    const std::string identity = awaited;
    shards_.awaited().erase(identity);
    OnDeath(
        identity,
        absl::StrCat(
            "it has not reconnected since the coordinator restarted ",
            std::chrono::duration_cast<std::chrono::seconds>(options_.server_lost_after).count(),
            " s ago"),
        false, "");
    parts_.placer->GiveAway(identity);
    return true;
  }
  return false;
}

void ServerAdmission::DisconnectAll() {
  for (auto& [task, server] : shards_.servers()) {
    server.ready = false;
    server.away_since = host_->Now();
  }
}

void ServerAdmission::FillStatus(v1::JobStatus* status) const {
  for (const auto& [task, server] : shards_.servers()) {
    v1::ServerRow* row = status->add_servers();
    row->set_identity(server.identity);
    row->set_state(!server.ready ? "away" : !server.leaving.empty() ? "leaving" : "serves");
    row->set_shards(server.shards);
    row->set_bytes(server.bytes);
    const Counts counts = parts_.totals->OfServer(server.identity);
    row->set_bytes_moved(counts.bytes);
    row->set_duplicates_refused(counts.duplicates);
  }
}

}  // namespace evergrad::coordinator
