#include "coordinator/jobs/section_limit.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/request_limits.h"
#include "common/client/wire_type.h"

namespace evergrad::coordinator {

SectionLimit SectionLimit::Of(const std::map<std::string, v1::Endpoint>& servers) {
  SectionLimit least;
  for (const auto& [identity, endpoint] : servers) {
    const client::RequestLimits limits = client::RequestLimits::Of(endpoint);
    if (limits.section_bytes_max() >= least.bytes) continue;
    least = {limits.section_bytes_max(), identity, limits.section_flag()};
  }
  return least;
}

absl::Status SectionLimit::CheckRow(absl::string_view kind, absl::string_view name,
                                    std::uint64_t row_bytes) const {
  if (row_bytes <= bytes || server.empty()) return absl::OkStatus();
  return UserError(absl::InvalidArgumentError(absl::StrCat(
      kind, " ", name, ": one row exceeds the limit of one request to ps_server/", server,
      ": row_bytes=", row_bytes, " max=", bytes, "; start that server with more than ", flag)));
}

absl::Status SectionLimit::CheckShards(const v1::Plan& plan) const {
  if (server.empty()) return absl::OkStatus();
  for (const v1::ShardSpec& shard : plan.shards()) {
    if (shard.has_slot()) continue;
    const v1::VariableSpec& variable = shard.variable();
    std::uint64_t row_elements = 1;  // the plan's shapes are checked
    for (int i = 1; i < variable.shape_size(); ++i) row_elements *= variable.shape(i);
    const absl::StatusOr<tensor::WireType> wire = client::WireTypeOf(variable);
    if (!wire.ok()) return wire.status();
    const std::uint64_t shard_bytes =
        (shard.row_end() - shard.row_begin()) * row_elements * tensor::WireBytes(*wire);
    if (shard_bytes <= bytes) continue;
    return UserError(absl::InvalidArgumentError(absl::StrCat(
        "variable ", variable.name(), ": its rows ", shard.row_begin(), " to ", shard.row_end(),
        " exceed the limit of one request to ps_server/", server, ": bytes=", shard_bytes,
        " max=", bytes, "; start that server with more than ", flag,
        ", or submit the job again while it is connected, so that the variable is cut to its "
        "limit")));
  }
  return absl::OkStatus();
}

}  // namespace evergrad::coordinator
