#include "worker/runner/exchange_errors.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace evergrad::worker {

std::string SectionName(const Layout& layout, ShardId shard) {
  if (!layout.is_slot(shard)) {
    const ShardSlice& slice = layout.slice(shard);
    return absl::StrCat("rows ", slice.row_begin, " to ", slice.row_end, " of variable ",
                        layout.variable_of(shard).name);
  }
  std::vector<std::string> names;
  for (const LaidTable& table : layout.tables()) names.push_back(table.name);
  return absl::StrCat("the rows that one batch reads in slot ",
                      shard.value() - layout.dense_shards(), " of ", absl::StrJoin(names, ", "));
}

absl::Status NeverFits(const Layout& layout, const SectionSize& section, const std::string& server,
                       const client::RequestLimits& limits) {
  const ShardId shard(section.shard);
  const char* const remedy =
      layout.is_slot(shard)
          ? "use a smaller spec.data.batch_size, or more spec.strategy.table_slots"
          : "partition the variable into smaller shards (spec.strategy.partitioner)";
  return WithOrigin(UserError(absl::InvalidArgumentError(absl::StrCat(
                        SectionName(layout, shard), " do not fit into one request to ps_server/",
                        server, ": bytes=", section.request_bytes + section.response_bytes, " max=",
                        limits.section_bytes_max(), "; raise the limit of that server, now ",
                        limits.section_flag(), ", or ", remedy))),
                    absl::StrCat("ps_server/", server));
}

absl::Status PushError(const std::string& server, ClosureId closure, std::uint32_t update,
                       ShardId shard, const v1::PushResult& result) {
  const std::string origin = absl::StrCat("ps_server/", server);
  if (result.answer() == v1::OVER_BUDGET)
    return WithOrigin(UserError(absl::ResourceExhaustedError(absl::StrCat(
                          "out of memory at ", origin, ": ", result.message(),
                          " closure=", closure.value(), " update=", update,
                          "; give the servers more memory (--memory-bytes-max; bytes_max of the "
                          "table), add servers, let rows be removed (evict: lru, ttl_steps, "
                          "admit_after), or let the job wait (training.on_over_budget: pause)"))),
                      origin);
  return WithOrigin(absl::InternalError(absl::StrCat(
                        "push refused by the server: answer=", v1::PushAnswer_Name(result.answer()),
                        " closure=", closure.value(), " update=", update, " shard=", shard.value(),
                        " message=", result.message())),
                    origin);
}

absl::Status CheckPullAnswer(const v1::PullResult& result, ShardId shard, v1::DType want) {
  if (result.answer() != v1::VALUES && result.answer() != v1::UNCHANGED)
    return absl::InternalError(absl::StrCat("pull refused by the server: shard=", shard.value(),
                                            " message=", result.message()));
  if (result.dtype() == want) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the server sent values of another wire type: shard=", shard.value(),
                   " want=", v1::DType_Name(want), " got=", v1::DType_Name(result.dtype())));
}

}  // namespace evergrad::worker
