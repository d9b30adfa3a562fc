#include "coordinator/jobs/shard_placer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/job_error.h"
#include "coordinator/jobs/task_answers.h"
#include "coordinator/scheduler/placement.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

// Returns whether the error of a load means that no server could use the snapshot file.
bool IsUnusable(absl::StatusCode code) {
  return code == absl::StatusCode::kDataLoss || code == absl::StatusCode::kNotFound ||
         code == absl::StatusCode::kFailedPrecondition ||
         code == absl::StatusCode::kUnimplemented || code == absl::StatusCode::kPermissionDenied;
}

}  // namespace

bool ShardPlacer::BacksOff(const std::string& identity) const {
  return backoff_->Until(Role::kPsServer, identity) > host_->Now();
}

SectionLimit ShardPlacer::ServersLimit() const {
  std::map<std::string, v1::Endpoint> endpoints;
  for (const auto& [task, server] : shards_.servers()) {
    if (server.TakesShards()) endpoints[server.identity] = server.endpoint;
  }
  return SectionLimit::Of(endpoints);
}

void ShardPlacer::Place() {
  if (!book_) return;
  if (shards_.placed() && shards_.unplaced().empty()) return;
  std::vector<ServerLoad> loads;
  for (const auto& [task, server] : shards_.servers()) {
    if (!server.TakesShards() || BacksOff(server.identity)) continue;
    ServerLoad load{server.identity, 0};
    for (const ShardId p : book_->ShardsOf(server.identity)) {
      if (shards_.unplaced().count(p) == 0) load.bytes += shards_[p].bytes;
    }
    loads.push_back(std::move(load));
  }
  if (loads.empty()) return;
  if (const absl::Status fits = ServersLimit().CheckShards(plan_message_); !fits.ok())
    return job_.Fail(MakeError(fits, "user", "coordinator"), true);
  const bool first = !shards_.placed();
  std::sort(loads.begin(), loads.end(),
            [](const ServerLoad& a, const ServerLoad& b) { return a.identity < b.identity; });
  if (!shards_.placed()) {
    shards_.SetPlaced();
    for (std::uint32_t p = 0; p < shards_.size(); ++p) shards_.Unplace(ShardId(p));
  }
  std::vector<ShardSize> sizes;
  for (const ShardId p : shards_.unplaced()) sizes.push_back({p, shards_[p].bytes});
  ClosureBook::MapChange all;
  for (const Placement& placement : PlaceShards(std::move(sizes), std::move(loads))) {
    ClosureBook::MapChange change = book_->Rollback(placement.shard, placement.server);
    shards_.Give(placement.shard, false);
    AppendRecord(change.record, &all.record);
    for (ClosureBook::AssignOrder& order : change.assigns) all.assigns.push_back(std::move(order));
    all.map_changed = true;
  }
  if (!first) {
    rolled_back_ += all.assigns.size();
    SayRollback("all shards were placed again", all);
  }
  if (!job_.Persist(all.record)) return;
  Apply(all);
}

void ShardPlacer::Apply(const ClosureBook::MapChange& change) {
  for (const ClosureBook::AssignOrder& order : change.assigns) {
    shards_.Give(order.shard, false);
    SendAssign(order);
  }
  if (change.map_changed) job_.SendMap();
}

void ShardPlacer::Drop(TaskId task, ShardId shard, ShardEpoch epoch) {
  host_->Send(task, coordinator::Drop(id_.uid.value(), shard.value(), client::ToProto(epoch)));
}

bool ShardPlacer::Admit(JobServer& server, const std::vector<ClosureBook::HeldShard>& held) {
  if (!book_ || !shards_.placed()) {
    server.admitted.emplace();
    for (const ClosureBook::HeldShard& h : held)
      server.admitted->drops.emplace_back(h.shard, h.epoch);
    return true;
  }
  const bool stopped = job_.grants_stopped();
  ClosureBook::ServerRegistration registration =
      book_->RegisterServer(server.identity, held, stopped || !BacksOff(server.identity));
  server.kept_from = std::move(registration.unheld);
  if (!job_.Persist(registration.change.record)) return false;
  server.admitted = std::move(registration.change);
  return true;
}

void ShardPlacer::OnReady(JobServer& server) {
  const std::vector<ShardId> kept = std::exchange(server.kept_from, {});
  const auto admitted = std::exchange(server.admitted, std::nullopt);
  if (!admitted) return;
  for (const auto& [shard, epoch] : admitted->drops) Drop(server.task, shard, epoch);
  // The server was given shards that it holds at a newer epoch than the journal had. The former
  // owners of these shards may have registered earlier and must drop them.
  for (const auto& [owner, held] : admitted->former) {
    const JobServer* other = shards_.ServerOf(owner);
    if (other != nullptr && other->ready) Drop(other->task, held.first, held.second);
  }
  if (!book_ || !shards_.placed()) return;
  // The server holds these shards at the epochs that the map names. Apply resets the shards that
  // the server must load again. The server will send an Assigned for each shard that it is still
  // loading.
  for (const ShardId p : book_->ShardsOf(server.identity))
    shards_.Give(p, server.loading.count(p.value()) == 0);
  Apply(*admitted);
  if (!admitted->map_changed) job_.SendMap();  // The endpoint of the server may have changed.
  if (job_.grants_stopped()) return;
  rolled_back_ += admitted->assigns.size();
  const bool moves = std::all_of(admitted->assigns.begin(), admitted->assigns.end(),
                                 [&](const ClosureBook::AssignOrder& order) {
                                   return server.stopped.count(order.shard.value()) != 0;
                                 });
  SayRollback(absl::StrCat("ps_server/", server.identity,
                           moves ? " was handing over shards when the coordinator ended"
                                 : " registered without the shards that it held"),
              *admitted);
  // An adopted shard also counts as a rollback, because its values may have changed since a round
  // of reading closures began.
  if (admitted->map_changed)
    job_.AfterRollback(admitted->assigns.empty()
                           ? "a server holds newer shards than the journal knew"
                           : "a server lost its shards");
  if (!kept.empty()) KeepFrom(server.identity, kept);
}

void ShardPlacer::SendAssign(const ClosureBook::AssignOrder& order) {
  shards_[order.shard].snapshot = order.snapshot ? order.snapshot->Uri() : std::string();
  const JobServer* server = shards_.ServerOf(order.server);
  if (server == nullptr) return;  // The server gets its shards when it registers.
  v1::CoordinatorMessage message;
  v1::Assign* assign = message.mutable_assign();
  assign->set_job_uid(id_.uid.value());
  *assign->mutable_spec() = ShardSpecOf(plan_message_, order.shard);
  *assign->mutable_epoch() = client::ToProto(order.epoch);
  *assign->mutable_start() = client::ToProto(order.start);
  *assign->mutable_version() = client::ToProto(order.version);
  *assign->mutable_refused() = client::ToProto(order.refused);
  assign->set_shards_total(shards_.size());
  assign->set_grant_key(id_.grant_key);
  if (auto& moved = shards_[order.shard].moved) {
    if (moved->epoch == order.epoch)
      *assign->mutable_moved_from() = client::ToProto(moved->from);
    else
      moved.reset();  // The shard has been rolled back.
  }
  if (order.snapshot) {
    v1::SnapshotSource* source = assign->mutable_snapshot();
    source->set_uri(order.snapshot->Uri());
    source->set_bytes(order.snapshot->bytes);
    source->set_sha256(order.snapshot->sha256);
    source->set_job_uid(order.snapshot->job.value());
    source->set_plan_fingerprint(order.snapshot->plan_fingerprint);
    source->set_resumed(order.snapshot->resumed);
    source->set_replace_ledger(order.snapshot->replace_ledger);
    if (order.snapshot->replace_ledger)
      *source->mutable_done() = client::ToProto(order.snapshot->done);
  }
  host_->Send(server->task, message);
}

bool ShardPlacer::OnAssigned(TaskId task, const v1::Assigned& assigned) {
  if (!book_ || assigned.shard() >= shards_.size()) return false;
  const ShardId shard(assigned.shard());
  const ShardOwner& owner = book_->durable().map[shard.value()];
  if (const JobServer* server = shards_.Find(task);
      server == nullptr || server->identity != owner.server) {
    // The server holds a shard that is not mapped to it (LEDGER line 25), so it must drop the
    // shard, whatever the epoch is.
    if (owner.epoch == client::FromProto<ShardEpoch>(assigned.epoch()))
      host_->ForeignMessage(task, "Assigned for a shard of another server");
    if (assigned.ok()) Drop(task, shard, client::FromProto<ShardEpoch>(assigned.epoch()));
    return false;
  }
  if (owner.epoch != client::FromProto<ShardEpoch>(assigned.epoch()))
    return false;  // The message answers an earlier assignment.
  if (assigned.ok()) {
    shards_[shard].held = true;
    shards_[shard].load_failures = 0;
    if (std::exchange(shards_[shard].moved, std::nullopt)) {
      // The server may have been asked before it held this shard, so it is asked again.
      queries_->Ask(task, shard);
    }
    job_.Touch();
    return true;
  }
  if (job_.grants_stopped()) return false;
  const std::uint32_t failures = ++shards_[shard].load_failures;
  v1::ErrorDetail cause = assigned.error();
  if (cause.origin_text().empty()) cause.set_origin_text(absl::StrCat("ps_server/", owner.server));
  CleanCause(&cause);
  if (MoveLost(shard, cause)) return true;
  if (SnapshotRefused(shard, cause)) return false;
  job_.Event("warning",
             absl::StrCat("shard ", shard.value(), " could not be loaded by ps_server/",
                          owner.server, " (failures in a row: ", failures, "): ", cause.message()));
  if (cause.kind() == "user" || !cause.retryable() || failures > options_.retries_max) {
    const bool user = cause.kind() == "user";
    job_.Fail(std::move(cause), user);
    return false;
  }
  retries_.push_back({host_->Now() + options_.RetryDelay(failures), shard, owner.epoch});
  return false;
}

void ShardPlacer::Retry(MonoTime now) {
  std::erase_if(retries_, [&](const LoadRetry& retry) {
    if (retry.at > now) return false;
    if (book_ && !job_.grants_stopped() &&
        book_->durable().map[retry.shard.value()].epoch == retry.epoch)
      shards_.Unplace(retry.shard);
    return true;
  });
}

bool ShardPlacer::SnapshotRefused(ShardId shard, const v1::ErrorDetail& cause) {
  if (job_.grants_stopped()) return false;
  const std::string uri = shards_[shard].snapshot;
  if (uri.empty() || !IsUnusable(static_cast<absl::StatusCode>(cause.code()))) return false;
  const std::vector<Snapshot>& known = book_->durable().snapshots[shard.value()];
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const Snapshot& s) { return s.Uri() == uri; });
  if (found == known.end()) return false;
  if (found->resumed && known.size() == 1) {
    // A resumed job cannot begin this shard from the seed: under another plan the shard never had
    // the values of the seed, and without the file the checkpoint is incomplete.
    job_.Fail(MakeError(UserError(absl::FailedPreconditionError(absl::StrCat(
                            "the checkpoint to resume from cannot be used: ", cause.message()))),
                        "user", cause.origin_text()),
              true);
    return true;
  }
  const std::string server = book_->durable().map[shard.value()].server;
  ClosureBook::MapChange change;
  AppendRecord(book_->RemoveSnapshots(shard, {uri}), &change.record);
  ClosureBook::MapChange rolled = book_->Rollback(shard, server);
  AppendRecord(rolled.record, &change.record);
  change.assigns = std::move(rolled.assigns);
  change.map_changed = true;
  const std::optional<Snapshot>& next = change.assigns.front().snapshot;
  job_.Event("rollback",
             absl::StrCat("shard ", shard.value(),
                          " cannot be restored from its snapshot: ", cause.message(), "; ",
                          next ? absl::StrCat("the previous snapshot is used: ", next->file)
                               : "the shard starts from its initial values"));
  if (!job_.Persist(change.record)) return true;
  Apply(change);
  job_.AfterRollback("a shard was restored from an older snapshot");
  return true;
}

void ShardPlacer::SayRollback(const std::string& why, const ClosureBook::MapChange& change) {
  if (change.assigns.empty()) return;
  std::size_t restored = 0;
  IntervalSet reruns;  // The set may include open closures.
  for (const ClosureBook::AssignOrder& order : change.assigns) {
    restored += order.snapshot.has_value();
    reruns.UnionWith(book_->durable().todo[order.shard.value()]);
  }
  const std::size_t seeds = change.assigns.size() - restored;
  std::string where;
  if (restored > 0)
    where = absl::StrCat(restored, restored == 1 ? " shard goes" : " shards go",
                         " back to the newest snapshot");
  if (seeds > 0)
    absl::StrAppend(&where, where.empty() ? "" : ", ", seeds,
                    seeds == 1 ? " shard goes" : " shards go", " back to the initial values");
  const std::string again = reruns.empty()
                                ? "no closure that had ended is"
                                : absl::StrCat("up to ", reruns.size(),
                                               reruns.size() == 1 ? " closure that had ended is"
                                                                  : " closures that had ended are");
  job_.Event("rollback",
             absl::StrCat(why, ": ", where, "; ", again, " run again for these shards"));
}

// Handles the case that the new owner of a shard no longer has the state that it received in a
// move. Returns false if the shard was not moved.
bool ShardPlacer::MoveLost(ShardId shard, const v1::ErrorDetail& cause) {
  std::optional<ShardTable::Shard::Move>& moved = shards_[shard].moved;
  if (!moved || moved->epoch != book_->durable().map[shard.value()].epoch) return false;
  moved.reset();
  job_.Event("warning", absl::StrCat("shard ", shard.value(),
                                     " was lost while it was moved: ", cause.message()));
  shards_.Unplace(shard);
  job_.AfterRollback("a shard was lost while it was moved");
  return true;
}

void ShardPlacer::KeepFrom(const std::string& identity, const std::vector<ShardId>& shards) {
  std::size_t kept = 0;
  for (const ShardId shard : shards) {
    if (book_->durable().map[shard.value()].server != identity)
      continue;  // Another server owns the shard now.
    shards_.Unplace(shard);
    ++kept;
  }
  if (kept == 0) return;
  job_.Event("rollback", absl::StrCat("ps_server/", identity, " reconnected and backs off: ", kept,
                                      kept == 1 ? " shard is" : " shards are",
                                      " reassigned to other servers, or wait for this server"));
  job_.AfterRollback("a server lost its shards");
}

void ShardPlacer::GiveAway(const std::string& identity) {
  if (!book_ || !shards_.placed() || job_.grants_stopped()) return;
  const std::vector<ShardId> shards = book_->ShardsOf(identity);
  if (shards.empty()) return;
  job_.Event("rollback",
             absl::StrCat("ps_server/", identity, " is lost: ", ShardCount(shards.size()),
                          shards.size() == 1 ? " is" : " are", " reassigned to other servers"));
  for (const ShardId shard : shards) shards_.Unplace(shard);
  job_.AfterRollback("a server was lost");
}

std::string ShardPlacer::WaitingFor() const {
  if (!shards_.placed()) {
    for (const auto& [task, server] : shards_.servers()) {
      if (server.TakesShards()) return "";
    }
    const bool cordoned =
        std::any_of(shards_.servers().begin(), shards_.servers().end(),
                    [](const auto& one) { return one.second.ready && one.second.cordoned; });
    return !book_     ? ""
           : cordoned ? "servers: all are cordoned (psctl task uncordon)"
                      : "servers: none is connected";
  }
  std::string text;
  if (!shards_.unplaced().empty()) {
    text = absl::StrCat("servers: none can take ", ShardCount(shards_.unplaced().size()));
    for (const auto& [task, server] : shards_.servers()) {
      const double left = std::chrono::duration<double>(
                              backoff_->Until(Role::kPsServer, server.identity) - host_->Now())
                              .count();
      if (server.ready && left > 0)
        absl::StrAppend(&text, ", ps_server/", server.identity,
                        absl::StrFormat(" backs off for %.1f s after repeated deaths", left));
    }
  }
  for (const auto& [task, server] : shards_.servers()) {
    if (server.ready || book_ == nullptr) continue;
    const std::size_t shards = book_->ShardsOf(server.identity).size();
    if (shards == 0) continue;
    absl::StrAppend(&text, text.empty() ? "servers: " : ", ", "ps_server/", server.identity,
                    " has been disconnected for ",
                    static_cast<std::int64_t>(server.AwaySeconds(host_->Now())), " s and holds ",
                    ShardCount(shards));
  }
  for (const auto& [identity, lost_at] : shards_.awaited()) {
    const std::size_t shards = book_ == nullptr ? 0 : book_->ShardsOf(identity).size();
    if (shards == 0) continue;
    absl::StrAppend(&text, text.empty() ? "servers: " : ", ", "ps_server/", identity,
                    " has not reconnected since the coordinator restarted and holds ",
                    ShardCount(shards));
  }
  // Connected servers that have not reported that they hold the shards assigned to them.
  std::map<std::string, std::size_t> silent;
  for (std::uint32_t p = 0; book_ != nullptr && p < shards_.size(); ++p) {
    if (shards_[ShardId(p)].held || shards_.unplaced().count(ShardId(p)) != 0) continue;
    const JobServer* server = shards_.ServerOf(book_->durable().map[p].server);
    if (server != nullptr && server->ready) ++silent[server->identity];
  }
  for (const auto& [identity, shards] : silent) {
    absl::StrAppend(&text, text.empty() ? "servers: " : ", ", "ps_server/", identity,
                    " has not yet loaded ", ShardCount(shards));
  }
  return text;
}

void ShardPlacer::FillCounters(v1::JobCounters* counters) const {
  counters->set_shards_rolled_back(rolled_back_);
}

void ShardPlacer::ReadCounters(const v1::JobCounters& counters) {
  rolled_back_ = counters.shards_rolled_back();
}

}  // namespace evergrad::coordinator
