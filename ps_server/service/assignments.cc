#include "ps_server/service/assignments.h"

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "ps_server/service/shard_spec.h"

namespace evergrad::ps_server {

void Assignments::Submit(const v1::Assign& assign) {
  const ShardKey key{JobUid(assign.job_uid()), ShardId(assign.spec().shard())};
  const auto epoch = client::FromProto<ShardEpoch>(assign.epoch());
  if (const HeldShard* const held = options_.directory->Find(key); held != nullptr) {
    if (epoch < held->epoch) {
      return Answer(key, epoch,
                    absl::FailedPreconditionError(absl::StrCat(
                        "the epoch of an assignment is older than the held epoch: shard=",
                        key.shard.ToString(), " epoch=", epoch.ToString(),
                        " held=", held->epoch.ToString())));
    }
    if (epoch == held->epoch) {  // a repeated Assign is answered when the shard is loaded
      if (!held->loading) Answer(key, epoch, absl::OkStatus());
      return;
    }
  }
  absl::StatusOr<Assignment> assignment = Check(assign, key);
  options_.received->Forget(key);
  if (!assignment.ok()) {
    options_.logger->Error(absl::StrCat("refused a shard: shard=", key.shard.ToString(),
                                        " cause=", assignment.status().message()),
                           options_.directory->About(key.job));
    return Answer(key, epoch, assignment.status());
  }
  options_.jobs->Learn(key.job, client::FromProto<MapVersion>(assign.version()),
                       assign.shards_total());
  options_.jobs->SetGrantKey(key.job, assign.grant_key());
  if (options_.directory->Find(key) != nullptr) options_.cancel_orders(key);
  Load(key, *std::move(assignment));
}

absl::StatusOr<Assignments::Assignment> Assignments::Check(const v1::Assign& assign,
                                                           const ShardKey& key) {
  Assignment assignment;
  RestoreOptions& what = assignment.what;
  EG_ASSIGN_OR_RETURN(ShardSettings settings, ShardSettingsOf(key.job, assign.spec()));
  EG_ASSIGN_OR_RETURN(IntervalSet refused, client::FromProto(assign.refused()));
  if (assign.has_snapshot()) {
    EG_ASSIGN_OR_RETURN(what, RestoreOptionsOf(assign.snapshot()));
  }
  what.settings = std::move(settings);
  what.epoch = client::FromProto<ShardEpoch>(assign.epoch());
  what.start = client::FromProto<MapVersion>(assign.start());
  what.refused = std::move(refused);
  if (assign.has_moved_from()) {
    const auto from = client::FromProto<ShardEpoch>(assign.moved_from());
    assignment.moved = options_.received->Take(key, from);
    if (assignment.moved == nullptr) {
      return absl::NotFoundError(absl::StrCat(
          "this server does not have the state of a moved shard: shard=", key.shard.ToString(),
          " from=", from.ToString(), " epoch=", what.epoch.ToString()));
    }
    if (assign.has_snapshot()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "an assignment names both a move and a snapshot: shard=", key.shard.ToString()));
    }
  }
  if (assign.shards_total() != 0 && key.shard.value() >= assign.shards_total()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard number out of range: shard=", key.shard.ToString(),
                     " shards=", assign.shards_total()));
  }
  return assignment;
}

void Assignments::Load(const ShardKey& key, Assignment assignment) {
  RestoreOptions& what = assignment.what;
  const std::string file = what.source.uri;
  HeldShard held;
  held.epoch = what.epoch;
  held.start = what.start;
  held.refused = what.refused;
  held.assigned = options_.clock->Now();
  held.file = file;
  held.rows = what.settings.slot.has_value();
  options_.logger->Debug(
      absl::StrCat("loading a shard from ",
                   !file.empty()                 ? file
                   : assignment.moved != nullptr ? "another server"
                                                 : "the seed",
                   ": shard=", key.shard.ToString(), " variable=", what.settings.variable,
                   " rows=", what.settings.row_begin, "-", what.settings.row_end,
                   " epoch=", what.epoch.ToString(), " start=", what.start.ToString()),
      options_.directory->About(key.job));
  ShardExecutor& shard_executor = options_.shard_executor(key.shard);
  if (assignment.moved != nullptr) {
    assignment.moved->BecomeOwned(what.epoch, what.start, what.refused);
    held.done = assignment.moved->ledger().done();
    held.refused = assignment.moved->ledger().refused();
  }
  options_.directory->Put(key, std::move(held));
  if (assignment.moved != nullptr)
    return shard_executor.Adopt(std::move(assignment.moved), WhenLoaded(key, what.epoch));
  if (file.empty()) {
    return shard_executor.Assign(std::move(what.settings), what.epoch, what.start,
                                 std::move(what.refused), WhenLoaded(key, what.epoch));
  }
  what.source.budget = options_.jobs->TablesOf(key.job);
  // The replaced shard is dropped first, because it is stale by now, and both shards may not fit
  // into memory.
  shard_executor.Vacate(key, [this, what = std::move(what)] {
    options_.executor->Post([this, what] { BeginRestore(what); });
  });
}

std::function<void(ShardExecutor::Loaded)> Assignments::WhenLoaded(ShardKey key, ShardEpoch epoch) {
  return [this, key, epoch](ShardExecutor::Loaded loaded) {
    options_.executor->Post(
        [this, key, epoch, loaded = std::move(loaded)] { OnLoaded(key, epoch, loaded); });
  };
}

bool Assignments::IsLoading(ShardKey key, ShardEpoch epoch) {
  const HeldShard* const held = options_.directory->Find(key, epoch);
  return held != nullptr && held->loading;
}

void Assignments::BeginRestore(RestoreOptions what) {
  const ShardKey key{what.settings.job, what.settings.shard};
  const ShardEpoch epoch = what.epoch;
  if (!IsLoading(key, epoch)) return;  // dropped or assigned again meanwhile
  Restorer::Order order;
  order.what = std::move(what);
  order.done = [this, key, epoch](absl::StatusOr<std::unique_ptr<Shard>> shard) {
    // The shard is in a shared_ptr, because a posted task must be copyable.
    auto given = std::make_shared<absl::StatusOr<std::unique_ptr<Shard>>>(std::move(shard));
    options_.executor->Post(
        [this, key, epoch, given] { OnRestored(key, epoch, std::move(*given)); });
  };
  if (const absl::Status status = options_.restorer->Submit(std::move(order)); !status.ok())
    OnLoaded(key, epoch, {status, 0, 0, 0, {}, {}});
}

void Assignments::OnRestored(ShardKey key, ShardEpoch epoch,
                             absl::StatusOr<std::unique_ptr<Shard>> shard) {
  if (!IsLoading(key, epoch)) return;
  if (!shard.ok()) return OnLoaded(key, epoch, {shard.status(), 0, 0, 0, {}, {}});
  options_.shard_executor(key.shard).Adopt(*std::move(shard), WhenLoaded(key, epoch));
}

void Assignments::OnLoaded(ShardKey key, ShardEpoch epoch, const ShardExecutor::Loaded& loaded) {
  HeldShard* const held = options_.directory->Find(key, epoch);
  // The shard was dropped or assigned again meanwhile, so no order waits for this result.
  if (held == nullptr) return;
  options_.directory->EndLoading(held);
  held->value_bytes = loaded.value_bytes;
  held->state_bytes = loaded.state_bytes;
  held->done.UnionWith(loaded.done);
  held->refused.UnionWith(loaded.refused);
  if (loaded.status.ok() && !held->file.empty()) {
    const std::chrono::duration<double> seconds = options_.clock->Now() - held->assigned;
    options_.logger->Info(
        absl::StrCat("shard restored: shard=", key.shard.ToString(), " file=", held->file,
                     " lsn=", loaded.lsn, " seconds=", seconds.count()),
        options_.directory->About(key.job));
  }
  if (!loaded.status.ok()) {
    options_.logger->Error(absl::StrCat("cannot load a shard: shard=", key.shard.ToString(),
                                        " cause=", loaded.status.message()),
                           options_.directory->About(key.job));
    options_.directory->Remove(key);
  }
  Answer(key, epoch, loaded.status);
  if (!loaded.status.ok()) options_.directory->ForgetJobIfUnheld(key.job);
  if (options_.directory->loading() == 0) {
    const v1::ServerProgress progress = options_.directory->Progress();
    options_.logger->Info(absl::StrCat("all assigned shards are loaded: shards=", progress.shards(),
                                       " bytes=", progress.bytes()),
                          options_.directory->About(key.job));
  }
}

void Assignments::Answer(const ShardKey& key, ShardEpoch epoch, const absl::Status& status) {
  v1::Assigned assigned;
  assigned.set_job_uid(key.job.value());
  assigned.set_shard(key.shard.value());
  *assigned.mutable_epoch() = client::ToProto(epoch);
  assigned.set_ok(status.ok());
  if (!status.ok()) *assigned.mutable_error() = client::ToErrorDetail(status);
  options_.sender->SendAssigned(assigned);
}

}  // namespace evergrad::ps_server
