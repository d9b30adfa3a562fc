#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "coordinator/service/job_calls.h"

namespace evergrad::coordinator {
namespace {

constexpr int kHottestIds = 64;

// Adds the state of one slot to the state of the table.
void Add(const v1::TableState& part, v1::TableState* sum) {
  sum->set_rows(sum->rows() + part.rows());
  sum->set_waiting(sum->waiting() + part.waiting());
  sum->set_bytes(sum->bytes() + part.bytes());
  sum->set_slot_bytes(sum->slot_bytes() + part.slot_bytes());
  sum->set_memory_bytes(sum->memory_bytes() + part.memory_bytes());
  sum->set_index_places(sum->index_places() + part.index_places());
  sum->set_admitted(sum->admitted() + part.admitted());
  sum->set_evicted_ttl(sum->evicted_ttl() + part.evicted_ttl());
  sum->set_evicted_lru(sum->evicted_lru() + part.evicted_lru());
  sum->set_gradients_dropped(sum->gradients_dropped() + part.gradients_dropped());
  sum->set_duplicates(sum->duplicates() + part.duplicates());
  sum->set_refused(sum->refused() + part.refused());
  sum->set_digest(sum->digest() + part.digest());
  sum->set_slot_digest(sum->slot_digest() + part.slot_digest());
  // An id belongs to one slot only, so each of the table's hottest ids is among the hottest ids of
  // its slot.
  sum->mutable_hottest()->MergeFrom(part.hottest());
}

v1::VariableRow TableRow(const v1::Plan& plan, const v1::TableSpec& table,
                         const Job::ShardAnswer& answer,
                         const std::map<std::uint32_t, std::size_t>& answered) {
  v1::VariableRow row;
  row.set_name(table.name());
  row.set_dtype(table.dtype());
  row.set_complete(true);
  row.mutable_table()->set_name(table.name());
  *row.mutable_table_spec() = table;
  for (const v1::ShardSpec& spec : plan.shards()) {
    if (!spec.has_slot()) continue;
    const auto found = answered.find(spec.shard());
    const v1::ShardState* state = found == answered.end() ? nullptr : &answer.shards[found->second];
    if (state == nullptr || static_cast<std::uint32_t>(state->tables_size()) <= table.index()) {
      row.set_complete(false);
      continue;
    }
    const v1::TableState& part = state->tables(static_cast<int>(table.index()));
    Add(part, row.mutable_table());
    v1::ShardState& shard = *row.add_shards();
    shard = *state;
    shard.clear_tables();
    shard.set_bytes(part.bytes());
    shard.set_slot_bytes(part.slot_bytes());
    shard.set_digest(part.digest());
    shard.set_slot_digest(part.slot_digest());
    row.add_servers(answer.servers[found->second]);
  }
  auto* hottest = row.mutable_table()->mutable_hottest();
  std::sort(hottest->begin(), hottest->end(), [](const v1::HotId& a, const v1::HotId& b) {
    return a.pushes() != b.pushes() ? a.pushes() > b.pushes() : a.id() < b.id();
  });
  if (hottest->size() > kHottestIds)
    hottest->DeleteSubrange(kHottestIds, hottest->size() - kHottestIds);
  row.add_shape(row.table().rows());
  row.add_shape(table.dimension());
  row.set_bytes(row.table().bytes());
  row.set_digest(row.table().digest());
  row.set_slot_digest(row.table().slot_digest());
  return row;
}

// `only` selects the row of one variable; "" selects all.
v1::ListVariablesResponse Rows(const v1::Plan& plan, const Job::ShardAnswer& answer,
                               absl::string_view only) {
  std::map<std::uint32_t, std::size_t> answered;
  for (std::size_t i = 0; i < answer.shards.size(); ++i) answered[answer.shards[i].shard()] = i;
  std::map<std::uint32_t, v1::VariableRow> rows;  // by position in the plan
  for (const v1::ShardSpec& spec : plan.shards()) {
    if (spec.has_slot() || (!only.empty() && spec.variable().name() != only)) continue;
    v1::VariableRow& row = rows[spec.variable().index()];
    if (row.name().empty()) {
      row.set_name(spec.variable().name());
      *row.mutable_shape() = spec.variable().shape();
      row.set_dtype(spec.variable().dtype());
      std::uint64_t bytes = 4;
      for (const std::uint64_t d : spec.variable().shape()) bytes *= d;
      row.set_bytes(bytes);
      row.set_complete(true);
      *row.mutable_variable_spec() = spec.variable();
    }
    const auto found = answered.find(spec.shard());
    if (found == answered.end()) {
      row.set_complete(false);
      continue;
    }
    // Digests are sums mod 2^64, so they add up over any partition.
    const v1::ShardState& state = answer.shards[found->second];
    row.set_digest(row.digest() + state.digest());
    row.set_slot_digest(row.slot_digest() + state.slot_digest());
    *row.add_shards() = state;
    row.add_servers(answer.servers[found->second]);
  }
  v1::ListVariablesResponse response;
  for (auto& [index, row] : rows) *response.add_variables() = std::move(row);
  for (const v1::TableSpec& table : plan.tables())
    if (only.empty() || table.name() == only)
      *response.add_variables() = TableRow(plan, table, answer, answered);
  return response;
}

// Returns all names of the plan, dense variables first, without duplicates.
std::vector<std::string> NamesOf(const v1::Plan& plan) {
  std::vector<std::string> names;
  for (const v1::ShardSpec& spec : plan.shards())
    if (!spec.has_slot() && (names.empty() || names.back() != spec.variable().name()))
      names.push_back(spec.variable().name());
  for (const v1::TableSpec& table : plan.tables()) names.push_back(table.name());
  return names;
}

}  // namespace

// For a running job the owners of the shards are asked now; for an ended job its final report is
// used. Shards that do not answer in time leave their variable incomplete.
void JobCalls::Serve(const v1::ListVariablesRequest& request, const Responder& responder) {
  constexpr std::size_t kNamesShown = 64;
  Job* job = parts_.jobs->Find(request.job());
  if (job == nullptr) return responder->Answer(NoSuchJob(*parts_.life, request.job()));
  const v1::Plan* plan = job->plan_message();
  if (!request.variable().empty()) {
    const std::vector<std::string> names =
        plan == nullptr ? std::vector<std::string>() : NamesOf(*plan);
    if (std::find(names.begin(), names.end(), request.variable()) == names.end()) {
      const std::size_t shown = std::min(names.size(), kNamesShown);
      const std::string known = absl::StrCat(
          absl::StrJoin(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
          shown < names.size() ? absl::StrCat(" and ", names.size() - shown, " more") : "");
      return responder->Answer(UserError(absl::NotFoundError(absl::StrCat(
          "no such variable: variable=", request.variable().substr(0, 200), " job=", job->name(),
          "; ",
          plan == nullptr ? "the job's variables are not known until a worker has described the job"
                          : absl::StrCat("it has ", known)))));
    }
  }
  if (plan == nullptr) return AnswerWith(*responder, v1::ListVariablesResponse());
  job->QueryShards(!request.without_digests(), parts_.options->query_timeout,
                   [job, responder, only = request.variable()](const Job::ShardAnswer& answer) {
                     AnswerWith(*responder, Rows(*job->plan_message(), answer, only));
                   });
}

}  // namespace evergrad::coordinator
