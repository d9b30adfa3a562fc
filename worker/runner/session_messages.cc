#include "worker/runner/session_messages.h"

#include "absl/strings/str_cat.h"

namespace evergrad::worker {
namespace {

using client::FromProto;

// The fields that grants and held attempts have in common.
template <class Message>
Work CommonWorkOf(const Message& message) {
  Work work;
  work.job = JobUid(message.job_uid());
  work.closure = ClosureId(message.closure());
  work.attempt = FromProto<Attempt>(message.attempt());
  work.kind = KindOf(message.kind()).value_or(WorkKind::kTrain);
  work.all_targets = message.all_targets();
  for (const std::uint32_t shard : message.targets()) work.targets.insert(ShardId(shard));
  return work;
}

}  // namespace

v1::WorkKind ToProto(WorkKind kind) {
  switch (kind) {
    case WorkKind::kTrain: return v1::TRAIN;
    case WorkKind::kEvaluate: return v1::EVALUATE;
    case WorkKind::kDescribe: return v1::DESCRIBE;
    case WorkKind::kExport: return v1::EXPORT;
  }
  return v1::WORK_KIND_UNSPECIFIED;
}

std::optional<WorkKind> KindOf(v1::WorkKind kind) {
  switch (kind) {
    case v1::TRAIN: return WorkKind::kTrain;
    case v1::EVALUATE: return WorkKind::kEvaluate;
    case v1::DESCRIBE: return WorkKind::kDescribe;
    case v1::EXPORT: return WorkKind::kExport;
    default: return std::nullopt;
  }
}

const char* StateName(WorkKind kind) {
  switch (kind) {
    case WorkKind::kTrain: return "running";
    case WorkKind::kEvaluate: return "evaluating";
    case WorkKind::kDescribe: return "describing";
    case WorkKind::kExport: return "exporting";
  }
  return "";
}

std::string ClosureName(const Work& work) {
  if (work.kind != WorkKind::kEvaluate) return work.closure.ToString();
  return absl::StrCat("eval ", work.closure.value() >> 32, "/", work.closure.value() & 0xffffffff);
}

Work WorkOf(const v1::HeldAttempt& attempt) { return CommonWorkOf(attempt); }

Work WorkOf(const v1::Grant& grant, const std::string& granted_to) {
  Work work = CommonWorkOf(grant);
  work.first = grant.first();
  work.proof = grant.proof();
  work.granted_to = granted_to;
  if (!grant.function().empty())
    work.function =
        std::make_shared<const FunctionWork>(FunctionWork{grant.function(), grant.arguments()});
  return work;
}

absl::StatusOr<PlacedShards> PlacedShardsOf(const v1::ShardMap& proto) {
  PlacedShards placed;
  placed.map.job = JobUid(proto.job_uid());
  placed.map.version = FromProto<MapVersion>(proto.version());
  placed.map.shards.resize(static_cast<std::size_t>(proto.shards_size()));
  for (const v1::ShardLocation& location : proto.shards()) {
    if (location.shard() >= placed.map.shards.size())
      return absl::InvalidArgumentError(
          absl::StrCat("the shard map has a shard out of range and is ignored: shards=",
                       placed.map.shards.size(), " got=", location.shard()));
    const std::string& server = location.server_identity();
    placed.map.shards[location.shard()] = {FromProto<ShardEpoch>(location.epoch()),
                                           FromProto<MapVersion>(location.start()), server};
    if (!server.empty() && placed.endpoints.try_emplace(server, location.endpoint()).second)
      placed.endpoints[server].set_server(server);
  }
  return placed;
}

}  // namespace evergrad::worker
