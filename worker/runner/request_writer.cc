#include "worker/runner/request_writer.h"

#include <algorithm>

#include "common/client/protocol.h"
#include "common/client/wire_type.h"

namespace evergrad::worker {
namespace {

using client::ToProto;

// Adds rows of tables to a section, and stores the ids of the rows in the last element of `ids`.
template <class Section>
void NameRows(const std::shared_ptr<const SlotRows>& rows, const SlotRows::OfShard& part,
              Section* section, std::vector<tensor::SharedBytes>* ids) {
  const auto tables = rows->tables(part), counts = rows->table_rows(part);
  section->mutable_tables()->Add(tables.begin(), tables.end());
  section->mutable_table_rows()->Add(counts.begin(), counts.end());
  ids->back() = SlotRows::Ids(rows, part);
}

}  // namespace

void RequestWriter::FillPush(const ExchangeSections::PushKey& key,
                             const ExchangeSections::Push& push, const ShardMap& map,
                             Written* written) const {
  v1::PushSection* const section = written->header->add_pushes();
  const ExchangeSections::Gradient& gradient = push.gradient;
  const ShardId shard(key.shard);
  const bool skipped = !push.skip_reason.empty();
  section->set_shard(key.shard);
  *section->mutable_epoch() = ToProto(map.shards[key.shard].epoch);
  section->set_closure(identity_.closure.value());
  section->set_update(key.update);
  *section->mutable_attempt() = ToProto(identity_.attempt);
  section->set_kind(skipped ? v1::SKIP
                    : gradient.part == nullptr && layout_->variable_of(shard).moving_average
                        ? v1::MOVING_AVERAGE
                        : v1::GRADIENT);
  section->set_skip_reason(push.skip_reason);
  section->set_global_step(push.global_step);
  section->set_codec(v1::CODEC_NONE);
  written->payloads.push_back(gradient.bytes);
  written->ids.emplace_back();
  if (gradient.part != nullptr) {
    section->set_dtype(ToProto(gradient.part->wire));
    section->set_rows(gradient.part->rows);
    return NameRows(gradient.rows, *gradient.part, section, &written->ids);
  }
  // A skipped push to a slot names neither its rows nor their type.
  const ShardSlice& slice = layout_->slice(shard);
  if (!layout_->is_slot(shard)) section->set_dtype(ToProto(slice.wire));
  section->set_rows(skipped ? 0 : slice.rows());
}

void RequestWriter::FillPull(const ExchangeSections::PullKey& key,
                             const ExchangeSections::PulledRows& rows, const ShardMap& map,
                             Written* written) const {
  v1::PullSection* const section = written->header->add_pulls();
  section->set_shard(key.shard);
  *section->mutable_epoch() = ToProto(map.shards[key.shard].epoch);
  written->ids.emplace_back();
  if (rows.part != nullptr) return NameRows(rows.rows, *rows.part, section, &written->ids);
  const PullCache::Held& held = cache_->held(ShardId(key.shard));
  section->set_has(held.has);
  *section->mutable_have_start() = ToProto(held.start);
  section->set_have_vlsn(held.vlsn);
}

RequestWriter::Written RequestWriter::Write(const ExchangeSections& sections,
                                            const ExchangeSections::Group& group,
                                            const ShardMap& map) const {
  Written written{
      wire::Packed<v1::RequestHeader>::OfSections(group.pushes.size() + group.pulls.size()),
      {},
      {}};
  v1::RequestHeader& header = *written.header;
  header.set_job_uid(identity_.job.value());
  *header.mutable_client() = identity_.registration;
  header.set_client_name(identity_.client_name);
  if (!group.pushes.empty() && !identity_.proof.empty()) {
    v1::GrantProof& grant = *header.add_grants();
    grant.set_closure(identity_.closure.value());
    *grant.mutable_attempt() = ToProto(identity_.attempt);
    grant.set_mac(identity_.proof);
  }
  for (const auto& key : group.pushes) FillPush(key, sections.push(key), map, &written);
  for (const auto& key : group.pulls) FillPull(key, sections.rows(key), map, &written);
  const bool any_ids = std::any_of(written.ids.begin(), written.ids.end(),
                                   [](const auto& ids) { return !ids.bytes.empty(); });
  if (!any_ids) written.ids.clear();
  return written;
}

}  // namespace evergrad::worker
