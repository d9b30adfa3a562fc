#include "ps_server/service/shard_reports.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "common/client/protocol.h"

namespace evergrad::ps_server {
namespace {

constexpr std::size_t kHottestIds = 16;  // per table of a slot

void Describe(const storage::EmbeddingTable& table, bool digests, v1::TableState* state) {
  const storage::TableStats stats = table.stats();
  state->set_name(table.settings().name);
  state->set_rows(stats.rows);
  state->set_waiting(stats.waiting);
  state->set_bytes(stats.value_bytes);
  state->set_slot_bytes(stats.state_bytes);
  state->set_memory_bytes(stats.memory_bytes);
  state->set_index_places(stats.index_places);
  state->set_admitted(stats.admitted);
  state->set_evicted_ttl(stats.evicted_ttl);
  state->set_evicted_lru(stats.evicted_lru);
  state->set_gradients_dropped(stats.gradients_dropped);
  state->set_duplicates(stats.duplicates);
  state->set_refused(stats.refused);
  for (const storage::HotId& hot : table.Hottest(kHottestIds)) {
    v1::HotId& id = *state->add_hottest();
    id.set_id(hot.id);
    id.set_pushes(hot.pushes);
    id.set_error(hot.error);
  }
  if (!digests) return;
  const storage::EmbeddingTable::Digests sums = table.Digest();
  state->set_digest(sums.values);
  state->set_slot_digest(sums.state + sums.counters);
}

v1::ShardState StateOf(const HostedShard& hosted, bool digests) {
  const Shard& shard = *hosted.shard;
  v1::ShardState state;
  state.set_job_uid(shard.settings().job.value());
  state.set_shard(shard.settings().shard.value());
  state.set_variable(shard.settings().variable);
  state.set_row_begin(shard.settings().row_begin);
  state.set_row_end(shard.settings().row_end);
  state.set_bytes(shard.value_bytes());
  state.set_slot_bytes(shard.state_bytes());
  *state.mutable_epoch() = client::ToProto(shard.epoch());
  *state.mutable_start() = client::ToProto(shard.start());
  state.set_lsn(shard.lsn());
  state.set_vlsn(shard.vlsn());
  state.set_updates_applied(shard.updates_applied());
  std::uint64_t skips = 0;
  for (const auto& [reason, count] : shard.skips()) skips += count;
  state.set_skips(skips);
  state.set_duplicates_refused(shard.duplicates());
  state.set_pulls(hosted.traffic.pulls);
  state.set_pushes(hosted.traffic.pushes);
  state.set_bytes_sent(hosted.traffic.bytes_sent);
  state.set_bytes_received(hosted.traffic.bytes_received);
  for (const storage::EmbeddingTable* table : shard.Tables())
    Describe(*table, digests, state.add_tables());
  if (digests) {
    if (state.tables_size() == 0) {
      state.set_digest(shard.Digest());
      state.set_slot_digest(shard.StateDigest());
    }
    // The digests of a slot are sums over its tables. The digests are summed here, because each
    // digest of a table needs a pass over the rows of the table.
    for (const v1::TableState& table : state.tables()) {
      state.set_digest(state.digest() + table.digest());
      state.set_slot_digest(state.slot_digest() + table.slot_digest());
    }
  }
  state.set_open_closures(static_cast<std::uint32_t>(shard.ledger().open().size()));
  state.set_ledger_intervals(static_cast<std::uint32_t>(shard.ledger().done().interval_count() +
                                                        shard.ledger().refused().interval_count()));
  return state;
}

}  // namespace

void ShardReports::Begin(JobUid job, bool digests, Done done) {
  auto report = std::make_shared<Report>();
  report->done = std::move(done);
  report->left = shards_.KeysOf(job == JobUid(0) ? std::nullopt : std::optional(job));
  if (!digests || report->left.empty()) return ContinuePlain(report);
  summing_.push_back(std::move(report));
  if (summing_.size() == 1) ContinueSums();
}

void ShardReports::ContinuePlain(const std::shared_ptr<Report>& report) {
  std::uint64_t spent = 0;
  while (!report->left.empty() && spent < kTurnBytes) {
    HostedShard* const hosted = shards_.Find(*report->left.begin());
    if (hosted != nullptr && hosted->applying) {
      hosted->after_apply.emplace_back([this, report] { ContinuePlain(report); });
      return;
    }
    report->left.erase(report->left.begin());
    if (hosted == nullptr) continue;
    report->states.push_back(StateOf(*hosted, /*digests=*/false));
    spent += kSectionCost;
  }
  if (report->left.empty()) return report->done(std::move(report->states));
  executor_.Post([this, report] { ContinuePlain(report); });
}

void ShardReports::ContinueSums() {
  std::uint64_t spent = 0;
  while (!summing_.empty() && spent < kTurnBytes) {
    const ShardKey key = *summing_.front()->left.begin();
    HostedShard* const hosted = shards_.Find(key);
    if (hosted != nullptr && hosted->applying) {
      hosted->after_apply.emplace_back([this] { ContinueSums(); });
      return;
    }
    std::optional<v1::ShardState> state;
    if (hosted != nullptr) {
      state = StateOf(*hosted, /*digests=*/true);
      spent += hosted->shard->value_bytes() + hosted->shard->state_bytes() + kSectionCost;
    }
    std::deque<std::shared_ptr<Report>> whole;
    std::erase_if(summing_, [&](const std::shared_ptr<Report>& report) {
      if (report->left.erase(key) > 0 && state) report->states.push_back(*state);
      if (!report->left.empty()) return false;
      whole.push_back(report);
      return true;
    });
    for (const std::shared_ptr<Report>& report : whole) report->done(std::move(report->states));
  }
  if (!summing_.empty()) executor_.Post([this] { ContinueSums(); });
}

}  // namespace evergrad::ps_server
