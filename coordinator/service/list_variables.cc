#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {
namespace {

v1::ListVariablesResponse Rows(const v1::Plan& plan, const Job::ShardAnswer& answer) {
  std::map<std::uint32_t, std::size_t> answered;
  for (std::size_t i = 0; i < answer.shards.size(); ++i) answered[answer.shards[i].shard()] = i;
  std::map<std::uint32_t, v1::VariableRow> rows;  // by position in the plan
  for (const v1::ShardSpec& spec : plan.shards()) {
    v1::VariableRow& row = rows[spec.variable().index()];
    if (row.name().empty()) {
      row.set_name(spec.variable().name());
      *row.mutable_shape() = spec.variable().shape();
      row.set_dtype(spec.variable().dtype());
      std::uint64_t bytes = 4;
      for (const std::uint64_t d : spec.variable().shape()) bytes *= d;
      row.set_bytes(bytes);
      row.set_complete(true);
    }
    const auto found = answered.find(spec.shard());
    if (found == answered.end()) {
      row.set_complete(false);
      continue;
    }
    // Digests are sums mod 2^64: they add up over any cut.
    const v1::ShardState& state = answer.shards[found->second];
    row.set_digest(row.digest() + state.digest());
    row.set_slot_digest(row.slot_digest() + state.slot_digest());
    *row.add_shards() = state;
    row.add_servers(answer.servers[found->second]);
  }
  v1::ListVariablesResponse response;
  for (auto& [index, row] : rows) *response.add_variables() = std::move(row);
  return response;
}

}  // namespace

// A running job's owners are asked now; an ended one is answered from its final report. Shards that do not answer in time leave
// their variable incomplete.
void ControlPlane::ListVariables(const v1::ListVariablesRequest& request, Responder responder) {
  Job* job = FindJob(request.job());
  if (job == nullptr) return responder->Answer(NoSuchJob(request.job()));
  if (job->plan_message() == nullptr) return AnswerWith(*responder, v1::ListVariablesResponse());
  job->QueryShards(true, options_.query_timeout,
                   [job, responder](const Job::ShardAnswer& answer) { AnswerWith(*responder, Rows(*job->plan_message(), answer)); });
}

}  // namespace evergrad::coordinator
