#include "coordinator/jobs/job_notices.h"

#include <string>
#include <vector>

#include "common/client/protocol.h"

namespace evergrad::coordinator {

void JobNotices::FillInfo(v1::JobInfo* info) const {
  info->set_job_uid(id_.uid.value());
  info->set_name(id_.spec.name);
  info->set_yaml(id_.yaml);
  info->set_seed(id_.spec.training.seed);
  if (plan_) *info->mutable_plan() = plan_message_;
  info->set_runs_folder(id_.runs_folder);
}

void JobNotices::FillMap(v1::ShardMap* map) const {
  map->set_job_uid(id_.uid.value());
  if (!book_) return;
  *map->mutable_version() = client::ToProto(book_->durable().version);
  const std::vector<ShardOwner>& owners = book_->durable().map;
  for (std::uint32_t p = 0; p < owners.size(); ++p) {
    v1::ShardLocation* location = map->add_shards();
    location->set_shard(p);
    *location->mutable_epoch() = client::ToProto(owners[p].epoch);
    *location->mutable_start() = client::ToProto(owners[p].start);
    location->set_server_identity(owners[p].server);
    if (const v1::Endpoint* endpoint = totals_.EndpointOf(owners[p].server))
      *location->mutable_endpoint() = *endpoint;
  }
}

void JobNotices::SendInfo() {
  v1::CoordinatorMessage message;
  FillInfo(message.mutable_job());
  Send(message, true, true);
}

void JobNotices::SendMap() {
  if (!book_) return;
  v1::CoordinatorMessage message;
  FillMap(message.mutable_map());
  Send(message, true, false);
}

void JobNotices::Introduce(TaskId worker) {
  v1::CoordinatorMessage message;
  FillInfo(message.mutable_job());
  host_->Send(worker, message);
  FillMap(message.mutable_map());
  host_->Send(worker, message);
}

void JobNotices::SendCloses() {
  if (!book_) return;
  for (const auto& [task, server] : shards_.servers()) {
    if (!server.ready) continue;
    for (const ClosureBook::CloseOrder& order : book_->MakeCloses(task, server.identity)) {
      v1::CoordinatorMessage message;
      v1::Close* close = message.mutable_close();
      close->set_job_uid(id_.uid.value());
      close->set_shard(order.shard.value());
      *close->mutable_epoch() = client::ToProto(order.epoch);
      *close->mutable_version() = client::ToProto(order.version);
      *close->mutable_done() = client::ToProto(order.done);
      *close->mutable_refused() = client::ToProto(order.refused);
      close->set_whole(order.whole);
      host_->Send(task, message);
    }
  }
}

void JobNotices::SendEnded(JobState ending, bool workers, bool servers) {
  v1::CoordinatorMessage message;
  message.mutable_job_ended()->set_job_uid(id_.uid.value());
  message.mutable_job_ended()->set_state(std::string(JobStateName(ending)));
  Send(message, workers, servers);
}

void JobNotices::Send(const v1::CoordinatorMessage& message, bool workers, bool servers) {
  for (const auto& [task, worker] : roster_.workers()) {
    if (workers && worker.ready) host_->Send(task, message);
  }
  for (const auto& [task, server] : shards_.servers()) {
    if (servers && server.ready) host_->Send(task, message);
  }
}

}  // namespace evergrad::coordinator
