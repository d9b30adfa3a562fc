#include "ps_server/service/control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/client/log_lines.h"
#include "common/client/protocol.h"

namespace evergrad::ps_server {
namespace {

// Limit of one message with reports of shards. The limit is far below the transport's limit of 4
// MiB per message.
constexpr std::size_t kReportBytesMax = 512 * 1024;

}  // namespace

Control::Control(Options options)
    : options_(std::move(options)),
      directory_(&options_.host->jobs(), options_.logger, options_.restored),
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
      assignments_(
          {.executor = options_.executor,
           .restorer = options_.restorer,
           .logger = options_.logger,
           .clock = options_.clock,
           .jobs = &options_.host->jobs(),
           .directory = &directory_,
           .received = &received_,
           .sender = &sender_,
           .shard_executor = ShardExecutors(),
           .cancel_orders = [this](const ShardKey& key) { CancelOrders(key.job, key.shard); }}),
      cuts_({.executor = options_.executor,
             .writer = options_.writer,
             .logger = options_.logger,
             .clock = options_.clock,
             .directory = &directory_,
             .sender = &sender_,
             .shard_executor = ShardExecutors()}),
      stops_({.executor = options_.executor,
              .images = options_.images,
              .directory = &directory_,
              .sender = &sender_,
              .shard_executor = ShardExecutors()}) {}

std::function<ShardExecutor&(ShardId)> Control::ShardExecutors() const {
  return [host = options_.host](ShardId shard) -> ShardExecutor& {
    return host->shard_executor(shard);
  };
}

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
  // These shards have been received, but are not assigned yet. The coordinator orders their moves
  // again in the next session.
  received_.ForgetAll();
}

void Control::OnMessage(const v1::CoordinatorMessage& message) {
  switch (message.message_case()) {
    case v1::CoordinatorMessage::kAssign: return assignments_.Submit(message.assign());
    case v1::CoordinatorMessage::kDrop: return OnDrop(message.drop());
    case v1::CoordinatorMessage::kStop: return stops_.Submit(message.stop(), term_);
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

void Control::CancelOrders(JobUid job, std::optional<ShardId> shard) {
  options_.writer->Cancel(job, shard);
  options_.restorer->Cancel(job, shard);
  if (options_.images != nullptr) options_.images->Drop(job, shard);
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
  // A shard that is being read from its file is skipped, because its sets are not known yet.
  // Nothing is lost, because the next Close lists all closures again.
  if (!done.ok() || !refused.ok() || held == nullptr || held->restoring() ||
      held->stopped_in != 0 || held->start > version) {
    if (!done.ok() || !refused.ok()) {
      options_.logger->Error(
          absl::StrCat("a Close message is malformed: shard=", key.shard.ToString(),
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
  // A shard that is still being read cannot be sealed, and would accept updates once it is loaded.
  // Such a shard is dropped, because the job does not need it any more.
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
  // The answer is sent only in this session, because an order ends with its session.
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
  options_.logger->Info(
      absl::StrCat("a job has ended: state=", ended.state(), " shards_dropped=", count), about);
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
