#include "ps_server/service/control.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/log_lines.h"
#include "common/client/protocol.h"
#include "common/snapshot/shard_file.h"
#include "ps_server/service/peer_image.h"
#include "ps_server/service/shard_spec.h"

namespace evergrad::ps_server {
namespace {

// Far below the transport's limit of 4 MiB per message.
constexpr std::size_t kReportBytesMax = 512 * 1024;
constexpr std::size_t kJobsNamedMax = 256, kJobNameBytesMax = 256;

double Seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

v1::TaskMessage DurableMessage(const ShardKey& key, ShardEpoch epoch) {
  v1::TaskMessage message;
  v1::ShardDurable* durable = message.mutable_shard_durable();
  durable->set_job_uid(key.job.value());
  durable->set_shard(key.shard.value());
  *durable->mutable_epoch() = client::ToProto(epoch);
  return message;
}

// Returns the source of a shard. The caller adds the parts that only an Assign has (settings,
// epoch, start, refused).
absl::StatusOr<RestoreOptions> RestoreOptionsOf(const v1::SnapshotSource& source) {
  RestoreOptions what;
  what.source.uri = source.uri();
  if (source.uri().empty()) return absl::InvalidArgumentError("the snapshot has no path");
  what.source.expected = snapshot::ShardFileReader::Expected{source.bytes(), {}};
  snapshot::Sha256Digest& sha256 = what.source.expected->sha256;
  if (source.sha256().size() != sha256.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the SHA-256 of a snapshot has a wrong length: path=", source.uri(),
                     " want=", sha256.size(), " got=", source.sha256().size()));
  }
  std::memcpy(sha256.data(), source.sha256().data(), sha256.size());
  what.source.file_job = JobUid(source.job_uid());
  what.source.plan_fingerprint = source.plan_fingerprint();
  what.forget_attempts = source.resumed();
  if (source.replace_ledger()) {
    EG_ASSIGN_OR_RETURN(what.replace_ledger, client::FromProto(source.done()));
  }
  return what;
}

void FillShardFile(const DurableCut& cut, v1::ShardFile* file) {
  file->set_shard(cut.shard.value());
  file->set_file(cut.file);
  file->set_bytes(cut.digest.bytes);
  file->set_sha256(cut.digest.sha256.data(), cut.digest.sha256.size());
  *file->mutable_epoch() = client::ToProto(cut.epoch);
  *file->mutable_start() = client::ToProto(cut.start);
  file->set_lsn(cut.lsn);
  file->set_vlsn(cut.vlsn);
  *file->mutable_done() = client::ToProto(cut.done);
  *file->mutable_refused() = client::ToProto(cut.refused);
}

}  // namespace

void Control::FillHello(v1::Hello* hello) {
  hello->set_highest_term(highest_term_);
  hello->set_life_id(life_id_);
  hello->set_journaled(journaled_);
  for (const auto& [key, held] : held_) {
    v1::HeldShard* shard = hello->add_shards();
    shard->set_job_uid(key.job.value());
    shard->set_shard(key.shard.value());
    *shard->mutable_epoch() = client::ToProto(held.epoch);
    *shard->mutable_start() = client::ToProto(held.start);
    *shard->mutable_done() = client::ToProto(held.done);
    *shard->mutable_refused() = client::ToProto(held.refused);
    shard->set_loading(held.loading);
    shard->set_stopped_in(held.stopped_in);
  }
}

void Control::OnRegistered(const v1::Registered& registered) {
  ++session_;
  term_ = registered.term();
  journaled_ = registered.journaled();
  if (registered.term() >= highest_term_) {
    highest_term_ = registered.term();
    life_id_ = registered.life_id();
  }
  ForgetUnheldJobs();
  if (registered.has_job()) NameJob(registered.job());
  // The Hello may have reported shards as "loading" that have been loaded since.
  for (v1::TaskMessage& message : std::exchange(unsent_assigned_, {}))
    options_.send(std::move(message));
}

void Control::OnLost() {
  ++session_;
  // Received shards are not assigned; the next coordinator orders their moves again.
  while (!moving_.empty()) Forget(moving_.begin());
}

// Drops the names of jobs without a held shard. Each session lists the running jobs again. If a
// job's end was missed because the session was interrupted, the list lacks the job.
void Control::ForgetUnheldJobs() {
  std::erase_if(job_names_, [&](const auto& entry) {
    if (Holds(entry.first)) return false;
    options_.host->jobs().Forget(entry.first);
    return true;
  });
}

void Control::NameJob(const v1::JobInfo& info) {
  const JobUid job(info.job_uid());
  if (job_names_.size() >= kJobsNamedMax && !job_names_.contains(job)) ForgetUnheldJobs();
  job_names_[job] = client::CleanText(info.name(), kJobNameBytesMax);
}

bool Control::Holds(JobUid job) const {
  const auto held = held_.lower_bound({job, ShardId(0)});
  return held != held_.end() && held->first.job == job;
}

void Control::OnMessage(const v1::CoordinatorMessage& message) {
  switch (message.message_case()) {
    case v1::CoordinatorMessage::kAssign: return OnAssign(message.assign());
    case v1::CoordinatorMessage::kDrop: return OnDrop(message.drop());
    case v1::CoordinatorMessage::kStop: return OnStop(message.stop());
    case v1::CoordinatorMessage::kReceive: return OnReceive(message.receive());
    case v1::CoordinatorMessage::kClose: return OnClose(message.close());
    case v1::CoordinatorMessage::kSeal: return OnSeal(message.seal());
    case v1::CoordinatorMessage::kCut: return OnCut(message.cut());
    case v1::CoordinatorMessage::kReportShards: return OnReport(message.report_shards());
    case v1::CoordinatorMessage::kReadLogs: return OnReadLogs(message.read_logs());
    case v1::CoordinatorMessage::kJobEnded: return OnJobEnded(message.job_ended());
    case v1::CoordinatorMessage::kJob: return NameJob(message.job());
    case v1::CoordinatorMessage::kMap: {
      const JobUid job(message.map().job_uid());
      if (Holds(job))
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
  const JobUid job(assign.job_uid());
  const ShardKey key{job, ShardId(assign.spec().shard())};
  const auto epoch = client::FromProto<ShardEpoch>(assign.epoch());
  const auto start = client::FromProto<MapVersion>(assign.start());
  if (const auto it = held_.find(key); it != held_.end()) {
    if (epoch < it->second.epoch) {
      return SendAssigned(
          key, epoch,
          absl::FailedPreconditionError(absl::StrCat(
              "assignment of an older epoch than the held one: shard=", key.shard.ToString(),
              " epoch=", epoch.ToString(), " held=", it->second.epoch.ToString())));
    }
    if (epoch == it->second.epoch) {  // a repeated Assign is answered when the shard is loaded
      if (!it->second.loading) SendAssigned(key, epoch, absl::OkStatus());
      return;
    }
  }
  auto settings = ShardSettingsOf(job, assign.spec());
  auto refused = client::FromProto(assign.refused());
  absl::Status problem = settings.ok() ? refused.status() : settings.status();
  std::optional<RestoreOptions> what;
  if (problem.ok() && assign.has_snapshot()) {
    auto options = RestoreOptionsOf(assign.snapshot());
    problem = options.status();
    if (options.ok()) what = *std::move(options);
  }
  const auto moving = moving_.find(key);
  std::unique_ptr<Shard> moved;
  if (problem.ok() && assign.has_moved_from()) {
    const auto from = client::FromProto<ShardEpoch>(assign.moved_from());
    if (moving == moving_.end() || moving->second.from != from || moving->second.shard == nullptr) {
      problem = absl::NotFoundError(absl::StrCat(
          "this server does not have the state of a moved shard: shard=", key.shard.ToString(),
          " from=", from.ToString(), " epoch=", epoch.ToString()));
    } else if (what) {
      problem = absl::InvalidArgumentError(absl::StrCat(
          "an assignment names both a move and a snapshot: shard=", key.shard.ToString()));
    } else {
      moved = std::move(moving->second.shard);
    }
  }
  if (moving != moving_.end()) Forget(moving);
  if (problem.ok() && assign.shards_total() != 0 && key.shard.value() >= assign.shards_total()) {
    problem = absl::InvalidArgumentError(
        absl::StrCat("shard number out of range: shard=", key.shard.ToString(),
                     " shards=", assign.shards_total()));
  }
  if (!problem.ok()) {
    options_.logger->Error(
        absl::StrCat("refused a shard: shard=", key.shard.ToString(), " cause=", problem.message()),
        About(job));
    return SendAssigned(key, epoch, problem);
  }
  options_.host->jobs().Learn(job, client::FromProto<MapVersion>(assign.version()),
                              assign.shards_total());
  options_.host->jobs().SetGrantKey(job, assign.grant_key());
  const auto before = held_.find(key);
  if (before == held_.end() || !before->second.loading) ++loading_;
  if (before != held_.end()) {
    options_.writer->Cancel(job, key.shard);
    options_.restorer->Cancel(job, key.shard);
    if (options_.images != nullptr) options_.images->Drop(job, key.shard);
  }
  Held& held = held_[key];
  held = Held{};
  held.epoch = epoch;
  held.start = start;
  held.refused = *refused;
  held.assigned = options_.clock->Now();
  held.file = what ? what->source.uri : "";
  held.rows = settings->slot.has_value();
  options_.logger->Debug(
      absl::StrCat("loading from ",
                   what               ? what->source.uri
                   : moved != nullptr ? "another server"
                                      : "the seed",
                   ": shard=", key.shard.ToString(), " variable=", settings->variable,
                   " rows=", settings->row_begin, "-", settings->row_end,
                   " epoch=", epoch.ToString(), " start=", start.ToString()),
      About(job));
  if (moved != nullptr) {
    moved->BecomeOwned(epoch, start, *refused);
    held.done = moved->ledger().done();
    held.refused = moved->ledger().refused();
    options_.host->shard_executor(key.shard).Adopt(
        std::move(moved), [this, key, epoch](ShardExecutor::Loaded loaded) {
          options_.executor->Post(
              [this, key, epoch, loaded = std::move(loaded)] { OnLoaded(key, epoch, loaded); });
        });
    return;
  }
  if (!what) {
    options_.host->shard_executor(key.shard).Assign(
        *std::move(settings), epoch, start, *std::move(refused),
        [this, key, epoch](ShardExecutor::Loaded loaded) {
          options_.executor->Post(
              [this, key, epoch, loaded = std::move(loaded)] { OnLoaded(key, epoch, loaded); });
        });
    return;
  }
  what->settings = *std::move(settings);
  what->epoch = epoch;
  what->start = start;
  what->refused = *std::move(refused);
  what->source.budget = options_.host->jobs().TablesOf(job);
  // The replaced shard is dropped first, because it is stale by now, and both may not fit into
  // memory.
  options_.host->shard_executor(key.shard).Vacate(key, [this, what = *std::move(what)] {
    options_.executor->Post([this, what] { BeginRestore(what); });
  });
}

bool Control::IsLoading(ShardKey key, ShardEpoch epoch) const {
  const auto it = held_.find(key);
  return it != held_.end() && it->second.epoch == epoch && it->second.loading;
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
  options_.host->shard_executor(key.shard).Adopt(
      *std::move(shard), [this, key, epoch](ShardExecutor::Loaded loaded) {
        options_.executor->Post(
            [this, key, epoch, loaded = std::move(loaded)] { OnLoaded(key, epoch, loaded); });
      });
}

void Control::OnLoaded(ShardKey key, ShardEpoch epoch, const ShardExecutor::Loaded& loaded) {
  const auto it = held_.find(key);
  // Dropped or assigned anew meanwhile, so nobody waits for this result.
  if (it == held_.end() || it->second.epoch != epoch) return;
  --loading_;
  it->second.loading = false;
  it->second.value_bytes = loaded.value_bytes;
  it->second.state_bytes = loaded.state_bytes;
  it->second.done.UnionWith(loaded.done);
  it->second.refused.UnionWith(loaded.refused);
  if (loaded.status.ok() && !it->second.file.empty()) {
    options_.logger->Info(absl::StrCat("shard restored: shard=", key.shard.ToString(),
                                       " file=", it->second.file, " lsn=", loaded.lsn, " seconds=",
                                       Seconds(options_.clock->Now() - it->second.assigned)),
                          About(key.job));
  }
  if (!loaded.status.ok()) {
    options_.logger->Error(absl::StrCat("cannot load a shard: shard=", key.shard.ToString(),
                                        " cause=", loaded.status.message()),
                           About(key.job));
    held_.erase(it);
  }
  SendAssigned(key, epoch, loaded.status);
  if (!loaded.status.ok()) ForgetJobIfUnheld(key.job);
  if (loading_ == 0) {
    const v1::ServerProgress progress = Progress();
    options_.logger->Info(
        absl::StrCat("holding shards: shards=", progress.shards(), " bytes=", progress.bytes()),
        About(key.job));
  }
}

void Control::SendAssigned(ShardKey key, ShardEpoch epoch, const absl::Status& status) {
  v1::TaskMessage message;
  v1::Assigned* assigned = message.mutable_assigned();
  assigned->set_job_uid(key.job.value());
  assigned->set_shard(key.shard.value());
  *assigned->mutable_epoch() = client::ToProto(epoch);
  assigned->set_ok(status.ok());
  if (!status.ok()) *assigned->mutable_error() = client::ToErrorDetail(status);
  if (options_.send(message)) return;
  std::erase_if(unsent_assigned_, [&](const v1::TaskMessage& m) {
    return m.assigned().job_uid() == key.job.value() && m.assigned().shard() == key.shard.value();
  });
  unsent_assigned_.push_back(std::move(message));
}

void Control::SendIn(std::uint64_t session, v1::TaskMessage message) {
  if (session == session_) options_.send(std::move(message));
}

void Control::OnDrop(const v1::Drop& drop) {
  const ShardKey key{JobUid(drop.job_uid()), ShardId(drop.shard())};
  const auto epoch = client::FromProto<ShardEpoch>(drop.epoch());
  if (const auto moving = moving_.find(key);
      moving != moving_.end() && moving->second.from == epoch)
    Forget(moving);
  const auto it = held_.find(key);
  if (it == held_.end() || it->second.epoch != epoch) return;
  if (it->second.loading) --loading_;
  held_.erase(it);
  options_.writer->Cancel(key.job, key.shard);
  options_.restorer->Cancel(key.job, key.shard);
  if (options_.images != nullptr) options_.images->Drop(key.job, key.shard);
  options_.host->shard_executor(key.shard).Drop(key, epoch);
  ForgetJobIfUnheld(key.job);
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
  const auto it = held_.find(key);
  // A shard that is being read from its file is skipped, because its sets are not known yet. The
  // next Close is complete.
  const bool restoring = it != held_.end() && it->second.loading && !it->second.file.empty();
  const bool stopped = it != held_.end() && it->second.stopped_in != 0;
  if (!done.ok() || !refused.ok() || it == held_.end() || restoring || stopped ||
      it->second.epoch != epoch || it->second.start > version) {
    if (!done.ok() || !refused.ok()) {
      options_.logger->Error(
          absl::StrCat("close is malformed: shard=", key.shard.ToString(),
                       " cause=", (done.ok() ? refused : done).status().message()),
          About(key.job));
    }
    options_.send(std::move(message));
    return;
  }
  options_.host->jobs().Learn(key.job, version, 0);
  it->second.done.UnionWith(*done);
  it->second.refused.UnionWith(*refused);
  options_.host->shard_executor(key.shard).Close(
      key, epoch, version, *std::move(done), *std::move(refused),
      [this, message = std::move(message), session = session_](bool taken) {
        options_.executor->Post([this, message, session, taken]() mutable {
          message.mutable_closed()->set_taken(taken);
          SendIn(session, std::move(message));
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
  if (const auto it = held_.find(key);
      it != held_.end() && it->second.loading && !it->second.file.empty() &&
      it->second.epoch == client::FromProto<ShardEpoch>(seal.epoch())) {
    --loading_;
    held_.erase(it);
    options_.restorer->Cancel(key.job, key.shard);
  }
  options_.host->shard_executor(key.shard).Seal(
      key, client::FromProto<ShardEpoch>(seal.epoch()),
      [this, message = std::move(message), session = session_] {
        options_.executor->Post([this, message, session] { SendIn(session, message); });
      });
}

// ---------------------------------------------------------------- line 22

void Control::OnStop(const v1::StopShard& stop) {
  const ShardKey key{JobUid(stop.job_uid()), ShardId(stop.shard())};
  const auto epoch = client::FromProto<ShardEpoch>(stop.epoch());
  const auto held = held_.find(key);
  if (held == held_.end() || held->second.epoch != epoch || held->second.loading) {
    return SendStopped(key, epoch, session_,
                       absl::NotFoundError(absl::StrCat(
                           "shard is not held at this epoch: shard=", key.shard.ToString(),
                           " epoch=", epoch.ToString())));
  }
  if (held->second.stopped_in == 0) held->second.stopped_in = term_;
  if (options_.images == nullptr)
    return SendStopped(key, epoch, session_,
                       absl::UnimplementedError("this server moves no shards"));
  options_.host->shard_executor(key.shard).Stop(
      key, epoch,
      [this, key, epoch, session = session_,
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
  const auto held = held_.find(key);
  if (held == held_.end() || held->second.epoch != epoch) return;  // dropped meanwhile
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
  SendIn(session, std::move(message));
}

void Control::OnReceive(const v1::ReceiveShard& receive) {
  const absl::Status status = BeginReceive(receive);
  if (status.ok()) return;
  const ShardKey key{JobUid(receive.job_uid()), ShardId(receive.spec().shard())};
  options_.logger->Warning(absl::StrCat("cannot receive a moved shard: shard=",
                                        key.shard.ToString(), " cause=", status.message()),
                           About(key.job));
  SendReceived(key, client::FromProto<ShardEpoch>(receive.epoch()), session_, status);
}

absl::Status Control::BeginReceive(const v1::ReceiveShard& receive) {
  const JobUid job(receive.job_uid());
  const ShardKey key{job, ShardId(receive.spec().shard())};
  const auto from = client::FromProto<ShardEpoch>(receive.epoch());
  if (options_.peers == nullptr)
    return absl::UnimplementedError("this server receives no shards of other servers");
  if (const auto held = held_.find(key); held != held_.end() && held->second.epoch >= from) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this server already holds the shard that it is to receive: shard=", key.shard.ToString(),
        " from=", from.ToString(), " held=", held->second.epoch.ToString()));
  }
  RestoreOptions what;
  EG_ASSIGN_OR_RETURN(what.settings, ShardSettingsOf(job, receive.spec()));
  what.epoch = from;
  what.start = client::FromProto<MapVersion>(receive.start());
  // This URI is only a name for messages; no file is opened by it.
  what.source.uri = absl::StrCat("ps_server/", receive.from().server(), ":", receive.spec().shard(),
                                 "@", from.ToString());
  what.source.expected = snapshot::ShardFileReader::Expected{receive.bytes(), {}};
  snapshot::Sha256Digest& sha256 = what.source.expected->sha256;
  if (receive.sha256().size() != sha256.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("SHA-256 of an image has a wrong length: want=", sha256.size(),
                     " got=", receive.sha256().size()));
  }
  std::memcpy(sha256.data(), receive.sha256().data(), sha256.size());
  what.source.file_job = job;
  what.source.plan_fingerprint = receive.plan_fingerprint();
  if (const auto before = moving_.find(key); before != moving_.end()) Forget(before);
  const std::uint64_t number = ++receives_;
  PeerImage image;
  image.unwanted = moving_.emplace(key, Moving{from, number}).first->second.unwanted;
  image.client = options_.peers;
  image.clock = options_.clock;
  image.server = receive.from();
  image.job = job;
  image.shard = key.shard;
  image.epoch = from;
  image.bytes = receive.bytes();
  // Shared with the order and destroyed with it.
  const std::shared_ptr<fs::FileSystem> files = MakePeerFileSystem(std::move(image));
  what.source.files = files.get();
  what.source.budget = options_.host->jobs().TablesOf(job);
  Restorer::Order order;
  order.what = std::move(what);
  order.done = [this, key, number, files](absl::StatusOr<std::unique_ptr<Shard>> shard) {
    auto given = std::make_shared<absl::StatusOr<std::unique_ptr<Shard>>>(std::move(shard));
    options_.executor->Post(
        [this, key, number, given] { OnReceived(key, number, std::move(*given)); });
  };
  if (const absl::Status status = options_.restorer->Submit(std::move(order)); !status.ok()) {
    moving_.erase(key);
    return status;
  }
  return absl::OkStatus();
}

void Control::OnReceived(ShardKey key, std::uint64_t number,
                         absl::StatusOr<std::unique_ptr<Shard>> shard) {
  const auto moving = moving_.find(key);
  // The shard is no longer wanted.
  if (moving == moving_.end() || moving->second.number != number) return;
  const ShardEpoch from = moving->second.from;
  const absl::Status status = shard.status();
  if (status.ok())
    moving->second.shard = *std::move(shard);
  else
    moving_.erase(moving);
  if (status.ok() && options_.failpoints != nullptr) options_.failpoints->At("move.received");
  // It is sent only in this session, because an order ends with its session.
  SendReceived(key, from, session_, status);
}

void Control::SendReceived(ShardKey key, ShardEpoch from, std::uint64_t session,
                           const absl::Status& status) {
  v1::TaskMessage message;
  v1::ShardReceived* received = message.mutable_received();
  received->set_job_uid(key.job.value());
  received->set_shard(key.shard.value());
  *received->mutable_epoch() = client::ToProto(from);
  if (!status.ok()) *received->mutable_error() = client::ToErrorDetail(status);
  SendIn(session, std::move(message));
}

void Control::Forget(std::map<ShardKey, Moving>::iterator moving) {
  moving->second.unwanted->store(true, std::memory_order_relaxed);
  if (moving->second.shard == nullptr)
    options_.restorer->Cancel(moving->first.job, moving->first.shard);
  moving_.erase(moving);
}

void Control::OnCut(const v1::CutShards& cut) {
  const JobUid job(cut.job_uid());
  const auto round = std::make_shared<CutRound>();  // shared by the orders
  round->job = job;
  round->begin = options_.clock->Now();
  round->shards = round->left = static_cast<std::size_t>(cut.shards_size());
  for (const v1::CutShard& wanted : cut.shards()) {
    const ShardKey key{job, ShardId(wanted.shard())};
    const auto epoch = client::FromProto<ShardEpoch>(wanted.epoch());
    const auto ended = [this, key, epoch, session = session_,
                        round](const absl::StatusOr<DurableCut>& result) {
      OnCutEnded(key, epoch, session, round.get(), result);
    };
    const auto held = held_.find(key);
    if (held == held_.end() || held->second.epoch != epoch) {
      ended(absl::NotFoundError(
          absl::StrCat("shard is not held at this epoch: shard=", key.shard.ToString(),
                       " epoch=", epoch.ToString(),
                       " held=", held == held_.end() ? "none" : held->second.epoch.ToString())));
      continue;
    }
    if (held->second.loading && !held->second.file.empty()) {
      ended(absl::UnavailableError(absl::StrCat(
          "shard is being restored: shard=", key.shard.ToString(), " file=", held->second.file)));
      continue;
    }
    if (cut.folder().empty()) {
      ended(absl::InvalidArgumentError(
          absl::StrCat("the order for a snapshot names no folder: shard=", key.shard.ToString())));
      continue;
    }
    SnapshotWriter::Order order;
    order.job = job;
    order.shard = key.shard;
    order.folder = cut.folder();
    order.plan_fingerprint = cut.plan_fingerprint();
    order.bytes = held->second.value_bytes + held->second.state_bytes;
    order.take = [shard_executor = &options_.host->shard_executor(key.shard), key,
                  epoch](ShardExecutor::CutReady ready) {
      shard_executor->Cut(key, epoch, std::move(ready));
    };
    order.done = [this, ended](absl::StatusOr<DurableCut> result) {
      options_.executor->Post([ended, result = std::move(result)] { ended(result); });
    };
    order.dropped = [this, key, epoch, session = session_, round](const absl::Status& cause) {
      options_.executor->Post([this, key, epoch, session, round, cause] {
        if (std::exchange(round->told_of_retry, true)) return;
        v1::TaskMessage message = DurableMessage(key, epoch);
        *message.mutable_shard_durable()->mutable_error() = client::ToErrorDetail(cause);
        message.mutable_shard_durable()->set_tried_again(true);
        SendIn(session, std::move(message));
        options_.logger->Warning(
            absl::StrCat("snapshot of a shard dropped, retrying until it succeeds: shard=",
                         key.shard.ToString(), " cause=", cause.message()),
            About(round->job));
      });
    };
    if (const absl::Status status = options_.writer->Submit(std::move(order)); !status.ok())
      ended(status);
  }
}

void Control::OnCutEnded(ShardKey key, ShardEpoch epoch, std::uint64_t session, CutRound* round,
                         const absl::StatusOr<DurableCut>& result) {
  if (result.ok()) {
    ++round->files;
    round->bytes += result->digest.bytes;
  } else if (!absl::IsCancelled(result.status()) && !absl::IsAborted(result.status())) {
    if (round->failed++ == 0) round->first_failure = std::string(result.status().message());
  }
  if (!absl::IsAborted(
          result.status())) {  // otherwise a newer order has replaced this one and will be answered
    v1::TaskMessage message = DurableMessage(key, epoch);
    v1::ShardDurable* durable = message.mutable_shard_durable();
    if (result.ok())
      FillShardFile(*result, durable->mutable_file());
    else
      *durable->mutable_error() = client::ToErrorDetail(result.status());
    SendIn(session, std::move(message));
  }
  if (--round->left > 0) return;
  if (round->files > 0) {
    options_.logger->Info(absl::StrCat("snapshot: shards=", round->files, " bytes=", round->bytes,
                                       " seconds=", Seconds(options_.clock->Now() - round->begin)),
                          About(round->job));
  }
  if (round->failed > 0) {
    options_.logger->Warning(absl::StrCat("snapshot failed: shards=", round->failed, " of=",
                                          round->shards, " first_cause=", round->first_failure),
                             About(round->job));
  }
}

void Control::OnReport(const v1::ReportShards& request) {
  options_.host->Report(
      JobUid(request.job_uid()), request.digests(),
      [this, id = request.request_id(), session = session_](std::vector<v1::ShardState> states) {
        std::vector<v1::TaskMessage> messages(1);
        std::size_t bytes = 0;
        for (v1::ShardState& state : states) {
          const std::size_t more = state.ByteSizeLong();
          if (bytes > 0 && bytes + more > kReportBytesMax) {
            messages.emplace_back();
            bytes = 0;
          }
          bytes += more;
          *messages.back().mutable_shard_report()->add_shards() = std::move(state);
        }
        for (std::size_t i = 0; i < messages.size(); ++i) {
          messages[i].mutable_shard_report()->set_request_id(id);
          messages[i].mutable_shard_report()->set_more(i + 1 < messages.size());
        }
        options_.executor->Post([this, messages = std::move(messages), session] {
          for (const v1::TaskMessage& message : messages) SendIn(session, message);
        });
      });
}

void Control::OnReadLogs(const v1::ReadLogs& request) {
  client::AnswerReadLogs(*options_.logger, request, options_.send);
}

void Control::OnJobEnded(const v1::JobEnded& ended) {
  const JobUid job(ended.job_uid());
  const auto count = std::erase_if(held_, [&](const auto& entry) {
    if (entry.first.job != job) return false;
    if (entry.second.loading) --loading_;
    return true;
  });
  for (auto it = moving_.begin(); it != moving_.end();) {
    const auto here = it++;
    if (here->first.job == job) Forget(here);
  }
  options_.writer->Cancel(job);
  options_.restorer->Cancel(job);
  if (options_.images != nullptr) options_.images->Drop(job);
  options_.host->DropJob(job);
  options_.logger->Info(absl::StrCat("job ended: state=", ended.state(), " shards_dropped=", count),
                        About(job));
  options_.host->jobs().Forget(job);
  job_names_.erase(job);
  std::erase_if(unsent_assigned_,
                [&](const v1::TaskMessage& m) { return m.assigned().job_uid() == job.value(); });
}

// Forgets a job of which no shard is held. A running job stays known: it may get shards here again,
// and its counters are read.
void Control::ForgetJobIfUnheld(JobUid job) {
  if (Holds(job)) return;
  options_.logger->Info("this server holds no shard of this job any more", About(job));
  if (!job_names_.contains(job)) options_.host->jobs().Forget(job);
}

v1::ServerProgress Control::Progress() const {
  v1::ServerProgress progress;
  std::uint64_t bytes = 0;
  std::map<JobUid, v1::JobUsage> usage;
  const auto of = [&](JobUid job) {
    const auto [it, added] = usage.try_emplace(job);
    if (added) {
      it->second.set_job_uid(job.value());
      if (const auto counters = options_.host->jobs().Find(job).counters) {
        it->second.set_stint(counters->stint);
        it->second.set_updates_applied(counters->updates_applied.load(std::memory_order_relaxed));
        it->second.set_duplicates_refused(
            counters->duplicates_refused.load(std::memory_order_relaxed));
        it->second.set_bytes_sent(counters->bytes_sent.load(std::memory_order_relaxed));
        it->second.set_bytes_received(counters->bytes_received.load(std::memory_order_relaxed));
      }
    }
    return it;
  };
  for (const auto& [job, name] : job_names_) of(job);
  for (const auto& [key, held] : held_) {
    const auto it = of(key.job);
    it->second.set_shards(it->second.shards() + 1);
    if (!held.rows) it->second.set_bytes(it->second.bytes() + held.value_bytes + held.state_bytes);
  }
  for (auto& [job, one] : usage) {
    one.set_bytes(one.bytes() + options_.host->jobs().TableBytes(job));
    bytes += one.bytes();
    const auto name = job_names_.find(job);
    options_.host->jobs().Held(job, name == job_names_.end() ? "" : name->second, one.shards(),
                               one.bytes());
    if (one.stint() != 0) *progress.add_jobs() = std::move(one);
  }
  progress.set_shards(static_cast<std::uint32_t>(held_.size()));
  progress.set_bytes(bytes);
  progress.set_updates_applied(options_.host->updates_applied());
  progress.set_duplicates_refused(options_.host->duplicates());
  return progress;
}

log::Context Control::About(JobUid job) const {
  const auto it = job_names_.find(job);
  return {it == job_names_.end() ? JobUidString(job) : it->second, ""};
}

}  // namespace evergrad::ps_server
