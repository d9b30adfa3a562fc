#include "coordinator/jobs/shard_mover.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/job_error.h"
#include "coordinator/scheduler/placement.h"

namespace evergrad::coordinator {
namespace {

// Moves of one server in flight: enough to hide the network latency between coordinator, old owner
// and new owner, and few enough that most shards of the server keep serving.
constexpr std::size_t kMovesMax = 8;
constexpr std::uint64_t kMoveBytesMax = 256ull << 20;  // or one shard, if it is larger
constexpr std::chrono::milliseconds kMapEvery{20};  // shortest time between two maps to the workers
constexpr std::uint32_t kMoveTries = 3;             // attempts to move one shard

// Returns whether another attempt would fail as well.
bool IsFinal(std::int32_t code) {
  return code == static_cast<std::int32_t>(absl::StatusCode::kResourceExhausted) ||
         code == static_cast<std::int32_t>(absl::StatusCode::kUnimplemented);
}

}  // namespace

void ShardMover::Pump() {
  if (job_.grants_stopped()) return;
  for (auto& [task, server] : shards_.servers()) {
    if (!server.drains || server.drained_said || !server.ready) continue;
    std::vector<ShardId> left;
    if (book_ && shards_.placed()) left = book_->ShardsOf(server.identity);
    std::erase_if(left, [&](ShardId p) { return shards_.unplaced().count(p) != 0; });
    if (left.empty()) {
      SayDrained(server, "");
      continue;
    }
    bool others = false, here = false;
    for (const auto& [other_task, other] : shards_.servers()) {
      if (!other.leaving.empty()) continue;
      others = true;
      here |= other.ready;
    }
    if (!others) {
      SayDrained(server, "no other server is connected");
      continue;
    }
    const auto stuck = std::find_if(
        left.begin(), left.end(),
        [&unmovable = server.unmovable](ShardId p) { return unmovable.count(p) == 0; });
    if (stuck == left.end()) {
      SayDrained(server, server.unmovable.begin()->second);
      continue;
    }
    if (!here || server.moves_again > host_->Now() || !host_->StoreTrouble().empty()) continue;
    std::size_t moves = 0;
    std::uint64_t bytes = 0;
    for (const auto& [shard, move] : moves_) {
      if (move.source != task) continue;
      ++moves;
      bytes += shards_[shard].bytes;
    }
    for (const ShardId p : left) {
      // A shard that its server does not hold yet is moved once the server holds it.
      if (moves_.count(p) != 0 || server.unmovable.count(p) != 0 || !shards_[p].held) continue;
      bytes += shards_[p].bytes;
      if (moves >= kMovesMax || (moves > 0 && bytes > kMoveBytesMax)) break;
      ++moves;
      Move& move = moves_[p];
      move.from = book_->durable().map[p.value()].epoch;
      move.source = task;
      v1::CoordinatorMessage message;
      v1::StopShard* stop = message.mutable_stop();
      stop->set_job_uid(id_.uid.value());
      stop->set_shard(p.value());
      *stop->mutable_epoch() = client::ToProto(move.from);
      stop->set_plan_fingerprint(plan_message_.fingerprint());
      host_->Send(task, message);
    }
  }
}

void ShardMover::OnStopped(TaskId task, const v1::ShardStopped& stopped) {
  const auto move = moves_.find(ShardId(stopped.shard()));
  if (move == moves_.end() || move->second.source != task || move->second.target ||
      move->second.from != client::FromProto<ShardEpoch>(stopped.epoch()))
    return;  // The message answers an earlier order.
  if (stopped.has_error()) return OnFailed(move, stopped.error());
  move->second.bytes = stopped.bytes();
  move->second.sha256 = stopped.sha256().substr(0, 32);
  SendReceive(move);
}

// Orders a server to receive the shard: the least loaded server that is not leaving. Servers
// that are cordoned or that back off are used only if there is no other server, because the shards
// would otherwise be rolled back. If no server can take the shard, the move has failed.
void ShardMover::SendReceive(Moves::iterator move) {
  const ShardId shard = move->first;
  std::map<TaskId, std::uint64_t> coming;
  for (const auto& [other, its] : moves_) {
    if (its.target && other != shard) coming[*its.target] += shards_[other].bytes;
  }
  std::vector<ServerLoad> loads, last_resorts;
  for (const auto& [task, server] : shards_.servers()) {
    if (!server.ready || !server.leaving.empty() || move->second.refused_by.count(task) != 0)
      continue;
    ServerLoad load{server.identity, coming[task]};
    for (const ShardId p : book_->ShardsOf(server.identity)) load.bytes += shards_[p].bytes;
    const bool last_resort = server.cordoned || placer_->BacksOff(server.identity);
    (last_resort ? last_resorts : loads).push_back(std::move(load));
  }
  if (loads.empty()) loads = std::move(last_resorts);
  std::sort(loads.begin(), loads.end(),
            [](const ServerLoad& a, const ServerLoad& b) { return a.identity < b.identity; });
  const std::vector<Placement> placed =
      PlaceShards({{shard, shards_[shard].bytes}}, std::move(loads));
  const JobServer* target = placed.empty() ? nullptr : shards_.ServerOf(placed.front().server);
  const JobServer* source = shards_.Find(move->second.source);
  if (target == nullptr || source == nullptr) {
    return OnFailed(
        move, MakeError(absl::UnavailableError("no other server can take the shard now"), "move",
                        "coordinator"));
  }
  move->second.target = target->task;
  v1::CoordinatorMessage message;
  v1::ReceiveShard* receive = message.mutable_receive();
  receive->set_job_uid(id_.uid.value());
  *receive->mutable_spec() = ShardSpecOf(plan_message_, shard);
  *receive->mutable_epoch() = client::ToProto(move->second.from);
  *receive->mutable_start() = client::ToProto(book_->durable().map[shard.value()].start);
  *receive->mutable_from() = source->endpoint;
  receive->mutable_from()->set_server(source->identity);
  receive->set_bytes(move->second.bytes);
  receive->set_sha256(move->second.sha256);
  receive->set_plan_fingerprint(plan_message_.fingerprint());
  host_->Send(target->task, message);
}

void ShardMover::OnReceived(TaskId task, const v1::ShardReceived& received) {
  const auto move = moves_.find(ShardId(received.shard()));
  if (move == moves_.end() || move->second.target != task ||
      move->second.from != client::FromProto<ShardEpoch>(received.epoch()))
    return;  // The message answers an earlier order.
  if (!received.has_error()) return Commit(move);
  v1::ErrorDetail cause = received.error();
  CleanCause(&cause);
  const JobServer* target = shards_.Find(task);
  host_->Log(log::Level::kWarning,
             absl::StrCat("shard ", move->first.value(), " could not be moved to ps_server/",
                          target == nullptr ? "?" : target->identity, ": ", cause.message()),
             id_.spec.name);
  move->second.target.reset();
  move->second.refused_by.insert(task);
  SendReceive(move);
}

void ShardMover::Commit(Moves::iterator move) {
  const ShardId shard = move->first;
  const Move what = move->second;
  const JobServer* target = shards_.Find(*what.target);
  if (const absl::Status hit = host_->failpoints().ErrorAt("move.before_commit");
      !hit.ok() || target == nullptr) {
    placer_->Drop(*what.target, shard, what.from);
    return OnFailed(
        move, MakeError(hit.ok() ? absl::UnavailableError("the new owner of the shard disconnected")
                                 : hit,
                        "move", "coordinator"));
  }
  moves_.erase(move);
  ClosureBook::MapChange change = book_->Move(shard, what.from, target->identity);
  if (change.assigns.empty())
    return placer_->Drop(*what.target, shard,
                         what.from);  // The shard has been rolled back, so the moved state is void.
  if (!job_.Persist(change.record)) return;
  host_->failpoints().At("move.after_commit");
  failures_.erase(shard);
  shards_[shard].moved = {what.from, change.assigns.front().epoch};
  change.map_changed = false;
  placer_->Apply(change);
  map_due_ = true;
  SendMap(false);
  placer_->Drop(what.source, shard, what.from);
  if (JobServer* source = shards_.Find(what.source)) ++source->shards_moved;
  job_.Touch();
  Pump();
}

// A map to each worker for each of hundreds of moves would exceed the capacity of a session, so one
// map covers all moves since the previous map.
void ShardMover::SendMap(bool now) {
  if (!map_due_ || (!now && host_->Now() < map_at_ + kMapEvery)) return;
  map_due_ = false;
  map_at_ = host_->Now();
  job_.SendMap();
}

void ShardMover::OnFailed(Moves::iterator move, const v1::ErrorDetail& failure) {
  const ShardId shard = move->first;
  JobServer* source = shards_.Find(move->second.source);
  moves_.erase(move);
  if (source == nullptr) return;
  v1::ErrorDetail cause = failure;
  CleanCause(&cause);
  const std::uint32_t failures = ++failures_[shard];
  host_->Log(log::Level::kWarning,
             absl::StrCat("shard ", shard.value(), " of ps_server/", source->identity,
                          " is not moved: ", cause.message()),
             id_.spec.name);
  if (IsFinal(cause.code()) || failures >= kMoveTries) {
    failures_.erase(shard);
    source->unmovable[shard] = absl::StrCat("shard ", shard.value(), ": ", cause.message());
  } else {
    source->moves_again = host_->Now() + options_.RetryDelay(failures);
  }
}

void ShardMover::EndOf(TaskId task) {
  for (auto it = moves_.begin(); it != moves_.end();) {
    const auto here = it++;
    Move& move = here->second;
    if (move.source == task) {
      if (move.target) placer_->Drop(*move.target, here->first, move.from);
      moves_.erase(here);
    } else if (move.target == task) {
      move.target.reset();
      SendReceive(here);
    }
  }
}

// Sends the shards that the leaving server was about to receive to other servers.
void ShardMover::OnLeaving(TaskId task) {
  for (auto it = moves_.begin(); it != moves_.end();) {
    const auto here = it++;
    if (here->second.target != task) continue;
    placer_->Drop(task, here->first, here->second.from);
    SendReceive(here);
  }
}

void ShardMover::End() {
  for (const auto& [shard, move] : moves_) {
    if (move.target) placer_->Drop(*move.target, shard, move.from);
  }
  moves_.clear();
}

void ShardMover::SayDrained(JobServer& server, const std::string& cannot) {
  server.drained_said = true;
  SendMap(true);
  if (!cannot.empty()) {
    job_.Event("warning", absl::StrCat("ps_server/", server.identity,
                                       " is leaving, but its shards cannot be moved: ", cannot));
  } else if (server.shards_moved > 0) {
    job_.Event("drain", absl::StrCat("ps_server/", server.identity,
                                     " has handed over its shards: ", server.shards_moved,
                                     server.shards_moved == 1 ? " shard is" : " shards are",
                                     " at other servers, and no closure is run again"));
  }
  v1::CoordinatorMessage message;
  message.mutable_drained()->set_cannot(cannot);
  message.mutable_drained()->set_job_uid(id_.uid.value());
  host_->Send(server.task, message);
}

void ShardMover::Forget() {
  moves_.clear();
  for (std::uint32_t p = 0; p < shards_.size(); ++p) shards_[ShardId(p)].moved.reset();
}

}  // namespace evergrad::coordinator
