#include "ps_server/service/control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/log_lines.h"
#include "common/client/protocol.h"
#include "ps_server/service/shard_spec.h"

namespace evergrad::ps_server {
namespace {

// Far below the transport's limit of 4 MiB per message.
constexpr std::size_t kReportBytesMax = 512 * 1024;

}  // namespace

Control::Control(Options options)
    : options_(std::move(options)),
      directory_(&options_.host->jobs(), options_.logger),
      sender_(options_.send),
      received_(
          {.executor = options_.executor,
           .restorer = options_.restorer,
           .peers = options_.peers,
           .clock = options_.clock,
           .jobs = &options_.host->jobs(),
           .failpoints = options_.failpoints,
           .received = [this](const ShardKey& key, ShardEpoch from,
                              const absl::Status& status) { SendReceived(key, from, status); }}),
      cuts_({.executor = options_.executor,
             .writer = options_.writer,
             .logger = options_.logger,
             .clock = options_.clock,
             .directory = &directory_,
             .sender = &sender_,
             .shard_executor = [host = options_.host](ShardId shard) -> ShardExecutor& {
               return host->shard_executor(shard);
             }}) {}

void Control::FillHello(v1::Hello* hello) {
  hello->set_highest_term(highest_term_);
  hello->set_life_id(life_id_);
  hello->set_journaled(journaled_);
  directory_.FillHello(hello);
}

void Control::OnRegistered(const v1::Registered& registered) {
  term_ = registered.term();
  journaled_ = registered.journaled();
  if (registered.term() >= highest_term_) {
    highest_term_ = registered.term();
    life_id_ = registered.life_id();
  }
  directory_.ForgetUnheldJobs();
  if (registered.has_job()) directory_.NameJob(registered.job());
  sender_.Begin();
}

void Control::OnLost() {
  sender_.End();
  // Received shards are not assigned; the next coordinator orders their moves again.
  received_.ForgetAll();
}

void Control::OnMessage(const v1::CoordinatorMessage& message) {
  switch (message.message_case()) {
    case v1::CoordinatorMessage::kAssign: return OnAssign(message.assign());
    case v1::CoordinatorMessage::kDrop: return OnDrop(message.drop());
    case v1::CoordinatorMessage::kStop: return OnStop(message.stop());
    case v1::CoordinatorMessage::kReceive: return OnReceive(message.receive());
    case v1::CoordinatorMessage::kClose: return OnClose(message.close());
    case v1::CoordinatorMessage::kSeal: return OnSeal(message.seal());
    case v1::CoordinatorMessage::kCut: return cuts_.Submit(message.cut());
    case v1::CoordinatorMessage::kReportShards: return OnReport(message.report_shards());
    case v1::CoordinatorMessage::kReadLogs:
      return client::AnswerReadLogs(*options_.logger, message.read_logs(), options_.send);
    case v1::CoordinatorMessage::kJobEnded: return OnJobEnded(message.job_ended());
    case v1::CoordinatorMessage::kJob: return directory_.NameJob(message.job());
    case v1::CoordinatorMessage::kMap: {
      const JobUid job(message.map().job_uid());
      if (directory_.Holds(job))
        options_.host->jobs().Learn(job, client::FromProto<MapVersion>(message.map().version()), 0);
      return;
    }
    default:
      options_.logger->Warning(absl::StrCat("ignored a message that is not for a server: kind=",
                                            static_cast<int>(message.message_case())));
      return;
  }
}

void Control::OnAssign(const v1::Assign& assign) {
  const ShardKey key{JobUid(assign.job_uid()), ShardId(assign.spec().shard())};
  const auto epoch = client::FromProto<ShardEpoch>(assign.epoch());
  if (const HeldShard* const held = directory_.Find(key); held != nullptr) {
    if (epoch < held->epoch) {
      return SendAssigned(
          key, epoch,
          absl::FailedPreconditionError(absl::StrCat(
              "assignment of an older epoch than the held one: shard=", key.shard.ToString(),
              " epoch=", epoch.ToString(), " held=", held->epoch.ToString())));
    }
    if (epoch == held->epoch) {  // a repeated Assign is answered when the shard is loaded
      if (!held->loading) SendAssigned(key, epoch, absl::OkStatus());
      return;
    }
  }
  absl::StatusOr<Assignment> assignment = AssignmentOf(assign, key);
  received_.Forget(key);
  if (!assignment.ok()) {
    options_.logger->Error(absl::StrCat("refused a shard: shard=", key.shard.ToString(),
                                        " cause=", assignment.status().message()),
                           directory_.About(key.job));
    return SendAssigned(key, epoch, assignment.status());
  }
  options_.host->jobs().Learn(key.job, client::FromProto<MapVersion>(assign.version()),
                              assign.shards_total());
  options_.host->jobs().SetGrantKey(key.job, assign.grant_key());
  if (directory_.Find(key) != nullptr) CancelOrders(key.job, key.shard);
  Load(key, *std::move(assignment));
}

absl::StatusOr<Control::Assignment> Control::AssignmentOf(const v1::Assign& assign,
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
    assignment.moved = received_.Take(key, from);
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

void Control::Load(const ShardKey& key, Assignment assignment) {
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
      absl::StrCat("loading from ",
                   !file.empty()                 ? file
                   : assignment.moved != nullptr ? "another server"
                                                 : "the seed",
                   ": shard=", key.shard.ToString(), " variable=", what.settings.variable,
                   " rows=", what.settings.row_begin, "-", what.settings.row_end,
                   " epoch=", what.epoch.ToString(), " start=", what.start.ToString()),
      directory_.About(key.job));
  ShardExecutor& shard_executor = options_.host->shard_executor(key.shard);
  if (assignment.moved != nullptr) {
    assignment.moved->BecomeOwned(what.epoch, what.start, what.refused);
    held.done = assignment.moved->ledger().done();
    held.refused = assignment.moved->ledger().refused();
  }
  directory_.Put(key, std::move(held));
  if (assignment.moved != nullptr)
    return shard_executor.Adopt(std::move(assignment.moved), WhenLoaded(key, what.epoch));
  if (file.empty()) {
    return shard_executor.Assign(std::move(what.settings), what.epoch, what.start,
                                 std::move(what.refused), WhenLoaded(key, what.epoch));
  }
  what.source.budget = options_.host->jobs().TablesOf(key.job);
  // The replaced shard is dropped first, because it is stale by now, and both may not fit into
  // memory.
  shard_executor.Vacate(key, [this, what = std::move(what)] {
    options_.executor->Post([this, what] { BeginRestore(what); });
  });
}

std::function<void(ShardExecutor::Loaded)> Control::WhenLoaded(ShardKey key, ShardEpoch epoch) {
  return [this, key, epoch](ShardExecutor::Loaded loaded) {
    options_.executor->Post(
        [this, key, epoch, loaded = std::move(loaded)] { OnLoaded(key, epoch, loaded); });
  };
}

void Control::CancelOrders(JobUid job, std::optional<ShardId> shard) {
  options_.writer->Cancel(job, shard);
  options_.restorer->Cancel(job, shard);
  if (options_.images != nullptr) options_.images->Drop(job, shard);
}

bool Control::IsLoading(ShardKey key, ShardEpoch epoch) {
  const HeldShard* const held = directory_.Find(key, epoch);
  return held != nullptr && held->loading;
}

void Control::BeginRestore(RestoreOptions what) {
  const ShardKey key{what.settings.job, what.settings.shard};
  const ShardEpoch epoch = what.epoch;
  if (!IsLoading(key, epoch)) return;  // dropped or assigned anew meanwhile
  Restorer::Order order;
  order.what = std::move(what);
  order.done = [this, key, epoch](absl::StatusOr<std::unique_ptr<Shard>> shard) {
    // Shared, because a posted task must be copyable.
    auto given = std::make_shared<absl::StatusOr<std::unique_ptr<Shard>>>(std::move(shard));
    options_.executor->Post(
        [this, key, epoch, given] { OnRestored(key, epoch, std::move(*given)); });
  };
  if (const absl::Status status = options_.restorer->Submit(std::move(order)); !status.ok())
    OnLoaded(key, epoch, {status, 0, 0, 0, {}, {}});
}

void Control::OnRestored(ShardKey key, ShardEpoch epoch,
                         absl::StatusOr<std::unique_ptr<Shard>> shard) {
  if (!IsLoading(key, epoch)) return;
  if (!shard.ok()) return OnLoaded(key, epoch, {shard.status(), 0, 0, 0, {}, {}});
  options_.host->shard_executor(key.shard).Adopt(*std::move(shard), WhenLoaded(key, epoch));
}

void Control::OnLoaded(ShardKey key, ShardEpoch epoch, const ShardExecutor::Loaded& loaded) {
  HeldShard* const held = directory_.Find(key, epoch);
  // Dropped or assigned anew meanwhile, so nobody waits for this result.
  if (held == nullptr) return;
  directory_.EndLoading(held);
  held->value_bytes = loaded.value_bytes;
  held->state_bytes = loaded.state_bytes;
  held->done.UnionWith(loaded.done);
  held->refused.UnionWith(loaded.refused);
  if (loaded.status.ok() && !held->file.empty()) {
    const std::chrono::duration<double> seconds = options_.clock->Now() - held->assigned;
    options_.logger->Info(
        absl::StrCat("shard restored: shard=", key.shard.ToString(), " file=", held->file,
                     " lsn=", loaded.lsn, " seconds=", seconds.count()),
        directory_.About(key.job));
  }
  if (!loaded.status.ok()) {
    options_.logger->Error(absl::StrCat("cannot load a shard: shard=", key.shard.ToString(),
                                        " cause=", loaded.status.message()),
                           directory_.About(key.job));
    directory_.Remove(key);
  }
  SendAssigned(key, epoch, loaded.status);
  if (!loaded.status.ok()) directory_.ForgetJobIfUnheld(key.job);
  if (directory_.loading() == 0) {
    const v1::ServerProgress progress = Progress();
    options_.logger->Info(
        absl::StrCat("holding shards: shards=", progress.shards(), " bytes=", progress.bytes()),
        directory_.About(key.job));
  }
}

void Control::SendAssigned(const ShardKey& key, ShardEpoch epoch, const absl::Status& status) {
  v1::Assigned assigned;
  assigned.set_job_uid(key.job.value());
  assigned.set_shard(key.shard.value());
  *assigned.mutable_epoch() = client::ToProto(epoch);
  assigned.set_ok(status.ok());
  if (!status.ok()) *assigned.mutable_error() = client::ToErrorDetail(status);
  sender_.SendAssigned(assigned);
}

void Control::OnDrop(const v1::Drop& drop) {
  const ShardKey key{JobUid(drop.job_uid()), ShardId(drop.shard())};
  const auto epoch = client::FromProto<ShardEpoch>(drop.epoch());
  received_.Forget(key, epoch);
  if (directory_.Find(key, epoch) == nullptr) return;
  directory_.Remove(key);
  CancelOrders(key.job, key.shard);
  options_.host->shard_executor(key.shard).Drop(key, epoch);
  directory_.ForgetJobIfUnheld(key.job);
}

void Control::OnClose(const v1::Close& close) {
  const ShardKey key{JobUid(close.job_uid()), ShardId(close.shard())};
  const auto epoch = client::FromProto<ShardEpoch>(close.epoch());
  const auto version = client::FromProto<MapVersion>(close.version());
  v1::TaskMessage message;
  v1::Closed* closed = message.mutable_closed();
  closed->set_job_uid(close.job_uid());
  closed->set_shard(close.shard());
  *closed->mutable_epoch() = close.epoch();
  *closed->mutable_version() = close.version();
  auto done = client::FromProto(close.done());
  auto refused = client::FromProto(close.refused());
  HeldShard* const held = directory_.Find(key, epoch);
  // A shard that is being read from its file is skipped, because its sets are not known yet. The
  // next Close is complete.
  if (!done.ok() || !refused.ok() || held == nullptr || held->restoring() ||
      held->stopped_in != 0 || held->start > version) {
    if (!done.ok() || !refused.ok()) {
      options_.logger->Error(
          absl::StrCat("close is malformed: shard=", key.shard.ToString(),
                       " cause=", (done.ok() ? refused : done).status().message()),
          directory_.About(key.job));
    }
    sender_.Send(std::move(message));
    return;
  }
  options_.host->jobs().Learn(key.job, version, 0);
  held->done.UnionWith(*done);
  held->refused.UnionWith(*refused);
  options_.host->shard_executor(key.shard).Close(
      key, epoch, version, *std::move(done), *std::move(refused),
      [this, message = std::move(message), session = sender_.session()](bool taken) {
        options_.executor->Post([this, message, session, taken]() mutable {
          message.mutable_closed()->set_taken(taken);
          sender_.SendIn(session, std::move(message));
        });
      });
}

void Control::OnSeal(const v1::Seal& seal) {
  const ShardKey key{JobUid(seal.job_uid()), ShardId(seal.shard())};
  v1::TaskMessage message;
  v1::Sealed* sealed = message.mutable_sealed();
  sealed->set_job_uid(seal.job_uid());
  sealed->set_shard(seal.shard());
  *sealed->mutable_epoch() = seal.epoch();
  // A shard that is still being read would be live, and not sealed, once it is loaded. It is
  // dropped, because the job does not need it any more.
  const auto epoch = client::FromProto<ShardEpoch>(seal.epoch());
  if (const HeldShard* const held = directory_.Find(key, epoch);
      held != nullptr && held->restoring()) {
    directory_.Remove(key);
    options_.restorer->Cancel(key.job, key.shard);
  }
  options_.host->shard_executor(key.shard).Seal(
      key, epoch, [this, message = std::move(message), session = sender_.session()] {
        options_.executor->Post([this, message, session] { sender_.SendIn(session, message); });
      });
}

// ---------------------------------------------------------------- line 22

void Control::OnStop(const v1::StopShard& stop) {
  const ShardKey key{JobUid(stop.job_uid()), ShardId(stop.shard())};
  const auto epoch = client::FromProto<ShardEpoch>(stop.epoch());
  HeldShard* const held = directory_.Find(key, epoch);
  if (held == nullptr || held->loading) {
    return SendStopped(key, epoch, sender_.session(),
                       absl::NotFoundError(absl::StrCat(
                           "shard is not held at this epoch: shard=", key.shard.ToString(),
                           " epoch=", epoch.ToString())));
  }
  if (held->stopped_in == 0) held->stopped_in = term_;
  if (options_.images == nullptr)
    return SendStopped(key, epoch, sender_.session(),
                       absl::UnimplementedError("this server moves no shards"));
  options_.host->shard_executor(key.shard).Stop(
      key, epoch,
      [this, key, epoch, session = sender_.session(),
       fingerprint = stop.plan_fingerprint()](absl::StatusOr<ShardCut> cut) {
        auto given = std::make_shared<absl::StatusOr<ShardCut>>(std::move(cut));
        options_.executor->Post([this, key, epoch, session, fingerprint, given] {
          OnStopped(key, epoch, session, fingerprint, std::move(*given));
        });
      });
}

void Control::OnStopped(ShardKey key, ShardEpoch epoch, std::uint64_t session,
                        const std::string& fingerprint, absl::StatusOr<ShardCut> cut) {
  if (!cut.ok()) return SendStopped(key, epoch, session, cut.status());
  if (directory_.Find(key, epoch) == nullptr) return;  // dropped meanwhile
  Images::Order order;
  order.cut = *std::move(cut);
  order.plan_fingerprint = fingerprint;
  order.done = [this, key, epoch, session](absl::StatusOr<snapshot::FileDigest> image) {
    options_.executor->Post([this, key, epoch, session, image = std::move(image)] {
      SendStopped(key, epoch, session, image);
    });
  };
  if (const absl::Status status = options_.images->Submit(std::move(order)); !status.ok())
    SendStopped(key, epoch, session, status);
}

void Control::SendStopped(ShardKey key, ShardEpoch epoch, std::uint64_t session,
                          const absl::StatusOr<snapshot::FileDigest>& image) {
  v1::TaskMessage message;
  v1::ShardStopped* stopped = message.mutable_stopped();
  stopped->set_job_uid(key.job.value());
  stopped->set_shard(key.shard.value());
  *stopped->mutable_epoch() = client::ToProto(epoch);
  if (image.ok()) {
    stopped->set_bytes(image->bytes);
    stopped->set_sha256(image->sha256.data(), image->sha256.size());
  } else {
    *stopped->mutable_error() = client::ToErrorDetail(image.status());
  }
  sender_.SendIn(session, std::move(message));
}

void Control::OnReceive(const v1::ReceiveShard& receive) {
  const ShardKey key{JobUid(receive.job_uid()), ShardId(receive.spec().shard())};
  const auto from = client::FromProto<ShardEpoch>(receive.epoch());
  const HeldShard* const held = directory_.Find(key);
  const absl::Status status =
      held == nullptr || held->epoch < from
          ? received_.Begin(receive)
          : absl::FailedPreconditionError(absl::StrCat(
                "this server already holds the shard that it is to receive: shard=",
                key.shard.ToString(), " from=", from.ToString(), " held=", held->epoch.ToString()));
  if (status.ok()) return;
  options_.logger->Warning(absl::StrCat("cannot receive a moved shard: shard=",
                                        key.shard.ToString(), " cause=", status.message()),
                           directory_.About(key.job));
  SendReceived(key, from, status);
}

void Control::SendReceived(const ShardKey& key, ShardEpoch from, const absl::Status& status) {
  v1::TaskMessage message;
  v1::ShardReceived* received = message.mutable_received();
  received->set_job_uid(key.job.value());
  received->set_shard(key.shard.value());
  *received->mutable_epoch() = client::ToProto(from);
  if (!status.ok()) *received->mutable_error() = client::ToErrorDetail(status);
  // It is sent only in this session, because an order ends with its session.
  sender_.Send(std::move(message));
}

void Control::OnReport(const v1::ReportShards& request) {
  options_.host->Report(JobUid(request.job_uid()), request.digests(),
                        [this, id = request.request_id(),
                         session = sender_.session()](std::vector<v1::ShardState> states) {
                          std::vector<v1::TaskMessage> messages(1);
                          std::size_t bytes = 0;
                          for (v1::ShardState& state : states) {
                            const std::size_t more = state.ByteSizeLong();
                            if (bytes > 0 && bytes + more > kReportBytesMax) {
                              messages.emplace_back();
                              bytes = 0;
                            }
                            bytes += more;
                            *messages.back().mutable_shard_report()->add_shards() =
                                std::move(state);
                          }
                          for (std::size_t i = 0; i < messages.size(); ++i) {
                            messages[i].mutable_shard_report()->set_request_id(id);
                            messages[i].mutable_shard_report()->set_more(i + 1 < messages.size());
                          }
                          options_.executor->Post([this, messages = std::move(messages), session] {
                            for (const v1::TaskMessage& message : messages)
                              sender_.SendIn(session, message);
                          });
                        });
}

void Control::OnJobEnded(const v1::JobEnded& ended) {
  const JobUid job(ended.job_uid());
  const log::Context about = directory_.About(job);
  const std::size_t count = directory_.RemoveJob(job);
  received_.ForgetJob(job);
  CancelOrders(job, std::nullopt);
  options_.host->DropJob(job);
  options_.logger->Info(absl::StrCat("job ended: state=", ended.state(), " shards_dropped=", count),
                        about);
  options_.host->jobs().Forget(job);
  sender_.ForgetJob(job);
}

v1::ServerProgress Control::Progress() const {
  v1::ServerProgress progress = directory_.Progress();
  progress.set_updates_applied(options_.host->updates_applied());
  progress.set_duplicates_refused(options_.host->duplicates());
  return progress;
}

}  // namespace evergrad::ps_server
