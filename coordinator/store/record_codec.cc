#include "coordinator/store/record_codec.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

void EncodeOwner(std::uint32_t shard, const ShardOwner& owner, v1::JournalOwner* out) {
  out->set_shard(shard);
  out->set_server(owner.server);
  *out->mutable_epoch() = client::ToProto(owner.epoch);
  *out->mutable_start() = client::ToProto(owner.start);
}

absl::Status CheckShard(std::uint32_t shard, std::uint32_t below) {
  if (shard < below) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a shard number is out of range: shard=", shard, " shards=", below));
}

ShardOwner DecodeOwner(const v1::JournalOwner& in) {
  return {in.server(), client::FromProto<ShardEpoch>(in.epoch()),
          client::FromProto<MapVersion>(in.start())};
}

void EncodeSnapshot(std::uint32_t shard, const Snapshot& snapshot, v1::JournalSnapshot* out) {
  v1::ShardFile* file = out->mutable_file();
  file->set_shard(shard);
  file->set_file(snapshot.file);
  file->set_bytes(snapshot.bytes);
  file->set_sha256(snapshot.sha256);
  *file->mutable_epoch() = client::ToProto(snapshot.epoch);
  *file->mutable_start() = client::ToProto(snapshot.start);
  file->set_lsn(snapshot.lsn);
  file->set_vlsn(snapshot.vlsn);
  *file->mutable_done() = client::ToProto(snapshot.done);
  *file->mutable_refused() = client::ToProto(snapshot.refused);
  file->set_host(snapshot.host);
  out->set_folder(snapshot.folder);
  out->set_job_uid(snapshot.job.value());
  out->set_plan_fingerprint(snapshot.plan_fingerprint);
  out->set_resumed(snapshot.resumed);
  out->set_replace_ledger(snapshot.replace_ledger);
}

absl::StatusOr<Snapshot> DecodeSnapshot(const v1::JournalSnapshot& in) {
  const v1::ShardFile& file = in.file();
  Snapshot snapshot;
  snapshot.folder = in.folder();
  snapshot.file = file.file();
  snapshot.bytes = file.bytes();
  snapshot.sha256 = file.sha256();
  snapshot.job = JobUid(in.job_uid());
  snapshot.plan_fingerprint = in.plan_fingerprint();
  snapshot.epoch = client::FromProto<ShardEpoch>(file.epoch());
  snapshot.start = client::FromProto<MapVersion>(file.start());
  snapshot.lsn = file.lsn();
  snapshot.vlsn = file.vlsn();
  EG_ASSIGN_OR_RETURN(snapshot.done, client::FromProto(file.done()));
  EG_ASSIGN_OR_RETURN(snapshot.refused, client::FromProto(file.refused()));
  snapshot.resumed = in.resumed();
  snapshot.replace_ledger = in.replace_ledger();
  snapshot.host = file.host();
  return snapshot;
}

template <class Repeated>
void EncodeSets(const std::map<std::uint32_t, IntervalSet>& sets, Repeated* out) {
  for (const auto& [shard, set] : sets) {
    v1::JournalSet* one = out->Add();
    one->set_shard(shard);
    *one->mutable_set() = client::ToProto(set);
  }
}

template <class Repeated>
absl::Status DecodeSets(const Repeated& in, std::map<std::uint32_t, IntervalSet>* sets) {
  for (const v1::JournalSet& one : in) {
    EG_RETURN_IF_ERROR(CheckShard(one.shard(), kJournalShardsMax));
    EG_ASSIGN_OR_RETURN((*sets)[one.shard()], client::FromProto(one.set()));
  }
  return absl::OkStatus();
}

}  // namespace

void EncodeRecord(const Record& record, v1::JournalRecord* out) {
  if (record.term) out->set_term(record.term->value());
  if (record.version) *out->mutable_version() = client::ToProto(*record.version);
  for (const auto& [shard, owner] : record.map) EncodeOwner(shard, owner, out->add_map());
  if (!record.succeeded_add.empty())
    *out->mutable_succeeded_add() = client::ToProto(record.succeeded_add);
  if (!record.dead_add.empty()) *out->mutable_dead_add() = client::ToProto(record.dead_add);
  EncodeSets(record.todo_add, out->mutable_todo_add());
  EncodeSets(record.todo_remove, out->mutable_todo_remove());
  EncodeSets(record.lost_add, out->mutable_lost_add());
  for (const auto& [shard, snapshots] : record.snapshot_add) {
    for (const Snapshot& snapshot : snapshots)
      EncodeSnapshot(shard, snapshot, out->add_snapshot_add());
  }
  for (const auto& [shard, uris] : record.snapshot_remove) {
    for (const std::string& uri : uris) {
      v1::JournalSnapshotName* name = out->add_snapshot_remove();
      name->set_shard(shard);
      name->set_uri(uri);
    }
  }
}

absl::StatusOr<Record> DecodeRecord(const v1::JournalRecord& in) {
  Record record;
  if (in.term() != 0) record.term = Term(in.term());
  if (in.has_version()) record.version = client::FromProto<MapVersion>(in.version());
  for (const v1::JournalOwner& owner : in.map()) {
    EG_RETURN_IF_ERROR(CheckShard(owner.shard(), kJournalShardsMax));
    record.map[owner.shard()] = DecodeOwner(owner);
  }
  EG_ASSIGN_OR_RETURN(record.succeeded_add, client::FromProto(in.succeeded_add()));
  EG_ASSIGN_OR_RETURN(record.dead_add, client::FromProto(in.dead_add()));
  EG_RETURN_IF_ERROR(DecodeSets(in.todo_add(), &record.todo_add));
  EG_RETURN_IF_ERROR(DecodeSets(in.todo_remove(), &record.todo_remove));
  EG_RETURN_IF_ERROR(DecodeSets(in.lost_add(), &record.lost_add));
  for (const v1::JournalSnapshot& one : in.snapshot_add()) {
    EG_RETURN_IF_ERROR(CheckShard(one.file().shard(), kJournalShardsMax));
    EG_ASSIGN_OR_RETURN(Snapshot snapshot, DecodeSnapshot(one));
    record.snapshot_add[one.file().shard()].push_back(std::move(snapshot));
  }
  for (const v1::JournalSnapshotName& one : in.snapshot_remove()) {
    EG_RETURN_IF_ERROR(CheckShard(one.shard(), kJournalShardsMax));
    record.snapshot_remove[one.shard()].insert(one.uri());
  }
  return record;
}

std::string EncodeState(const DurableState& state) {
  v1::JournalState out;
  out.set_term(state.term.value());
  *out.mutable_version() = client::ToProto(state.version);
  for (const auto& [term, n] : state.known) {
    v1::JournalKnown* known = out.add_known();
    known->set_term(term);
    known->set_n(n);
  }
  out.set_shards(static_cast<std::uint32_t>(state.map.size()));
  for (std::uint32_t p = 0; p < state.map.size(); ++p) {
    if (!(state.map[p] == ShardOwner{})) EncodeOwner(p, state.map[p], out.add_map());
    if (p < state.todo.size() && !state.todo[p].empty()) {
      out.add_todo()->set_shard(p);
      *out.mutable_todo(out.todo_size() - 1)->mutable_set() = client::ToProto(state.todo[p]);
    }
    if (p < state.lost.size() && !state.lost[p].empty()) {
      out.add_lost()->set_shard(p);
      *out.mutable_lost(out.lost_size() - 1)->mutable_set() = client::ToProto(state.lost[p]);
    }
    if (p < state.snapshots.size()) {
      for (const Snapshot& snapshot : state.snapshots[p])
        EncodeSnapshot(p, snapshot, out.add_snapshots());
    }
  }
  *out.mutable_succeeded() = client::ToProto(state.succeeded);
  *out.mutable_dead() = client::ToProto(state.dead);
  return out.SerializeAsString();
}

absl::StatusOr<DurableState> DecodeState(const std::string& bytes) {
  v1::JournalState in;
  if (!in.ParseFromString(bytes))
    return absl::InvalidArgumentError(
        absl::StrCat("the state of a job in the journal is malformed: bytes=", bytes.size()));
  if (in.shards() > kJournalShardsMax)
    return absl::InvalidArgumentError(absl::StrCat(
        "the state of a job in the journal has too many shards: shards=", in.shards()));
  DurableState state;
  state.term = Term(in.term());
  state.version = client::FromProto<MapVersion>(in.version());
  for (const v1::JournalKnown& known : in.known()) state.known[known.term()] = known.n();
  state.map.resize(in.shards());
  state.todo.resize(in.shards());
  state.lost.resize(in.shards());
  state.snapshots.resize(in.shards());
  for (const v1::JournalOwner& owner : in.map()) {
    EG_RETURN_IF_ERROR(CheckShard(owner.shard(), in.shards()));
    state.map[owner.shard()] = DecodeOwner(owner);
  }
  EG_ASSIGN_OR_RETURN(state.succeeded, client::FromProto(in.succeeded()));
  EG_ASSIGN_OR_RETURN(state.dead, client::FromProto(in.dead()));
  for (const v1::JournalSet& one : in.todo()) {
    EG_RETURN_IF_ERROR(CheckShard(one.shard(), in.shards()));
    EG_ASSIGN_OR_RETURN(state.todo[one.shard()], client::FromProto(one.set()));
  }
  for (const v1::JournalSet& one : in.lost()) {
    EG_RETURN_IF_ERROR(CheckShard(one.shard(), in.shards()));
    EG_ASSIGN_OR_RETURN(state.lost[one.shard()], client::FromProto(one.set()));
  }
  for (const v1::JournalSnapshot& one : in.snapshots()) {
    EG_RETURN_IF_ERROR(CheckShard(one.file().shard(), in.shards()));
    EG_ASSIGN_OR_RETURN(Snapshot snapshot, DecodeSnapshot(one));
    state.snapshots[one.file().shard()].push_back(std::move(snapshot));
  }
  return state;
}

}  // namespace evergrad::coordinator
